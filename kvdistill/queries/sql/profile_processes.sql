-- Reads and writes by the process that asked for them (-1 if that is not known), how many, and when the first and last came.
SELECT process, count(*) AS ops, min(ts_ns) AS first_ns, max(ts_ns) AS last_ns
FROM ios
WHERE op <> 2 AND io_bytes > 0
GROUP BY process
ORDER BY process
