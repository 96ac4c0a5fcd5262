-- Exact distribution of lengths in one direction: padded as sent to the device, and as in the trace.
SELECT io_bytes, length_bytes, count(*) AS ops
FROM ios
WHERE op = $op AND io_bytes > 0 AND ts_ns BETWEEN $from_ns AND $to_ns AND ($process IS NULL OR process = $process)
GROUP BY io_bytes, length_bytes
