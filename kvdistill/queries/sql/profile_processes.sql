-- Reads and writes, and their first and last time, by process (-1: unknown).
SELECT process, count(*) AS ops, min(ts_ns) AS first_ns, max(ts_ns) AS last_ns
FROM ios
WHERE op <> 2 AND io_bytes > 0
GROUP BY process
ORDER BY process
