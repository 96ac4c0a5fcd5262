-- The exact distribution of lengths in one direction, as they go to the device (whole sectors).
SELECT io_bytes, count(*) AS ops, sum(length_bytes)::BIGINT AS object_bytes
FROM ios
WHERE op = $op AND io_bytes > 0 AND ts_ns BETWEEN $from_ns AND $to_ns AND ($process IS NULL OR process = $process)
GROUP BY io_bytes
ORDER BY io_bytes
