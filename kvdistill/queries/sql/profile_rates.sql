-- Operations and bytes of reads and writes by bucket of equal time.
SELECT
    (ts_ns - $start_ns) // $bucket_ns AS bucket,
    count(*) FILTER (op = 0) AS read_ops,
    count(*) FILTER (op = 1) AS write_ops,
    coalesce(sum(io_bytes) FILTER (op = 0), 0)::BIGINT AS read_bytes,
    coalesce(sum(io_bytes) FILTER (op = 1), 0)::BIGINT AS write_bytes
FROM ios
WHERE op <> 2 AND io_bytes > 0
GROUP BY bucket
ORDER BY bucket
