-- The exact distribution of lengths in one direction: as they go to the device (whole sectors), and as the trace has them.
SELECT io_bytes, length_bytes, count(*) AS ops
FROM ios
WHERE op = $op AND io_bytes > 0 AND ts_ns BETWEEN $from_ns AND $to_ns AND ($process IS NULL OR process = $process)
GROUP BY io_bytes, length_bytes
