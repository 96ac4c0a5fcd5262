-- Reads and writes by the process that asked for them (-1 if that is not known), and when its first and last came.
SELECT process, min(ts_ns) AS first_ns, max(ts_ns) AS last_ns
FROM ios
WHERE op <> 2 AND io_bytes > 0
GROUP BY process
ORDER BY process
