-- Short and long reads and writes of a process (of all if null) by bucket of equal time.
SELECT
    (ts_ns - $start_ns) // $bucket_ns AS bucket,
    2 * op + (io_bytes > $short_bytes)::INTEGER AS kind,
    count(*) AS ops
FROM ios
WHERE op <> 2 AND io_bytes > 0 AND ($process IS NULL OR process = $process)
GROUP BY bucket, kind
ORDER BY bucket, kind
