-- The exact distribution of lengths in one direction, as the trace has them, without padding to sectors.
SELECT length_bytes, count(*) AS ops
FROM ios
WHERE op = $op AND io_bytes > 0 AND ts_ns BETWEEN $from_ns AND $to_ns AND ($process IS NULL OR process = $process)
GROUP BY length_bytes
ORDER BY length_bytes
