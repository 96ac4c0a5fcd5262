-- Operations by completion time and latency (powers of two of ns). Latency is the response time in an open loop, else the
-- service time.
SELECT tier, op::VARCHAR AS op, (completed_ns - $first_ns) // $bucket_ns * $bucket_ns AS start_ns,
    (1::BIGINT << floor(log2(greatest(completed_ns - coalesce(scheduled_ns, submitted_ns), 1)))::INT) AS low_ns,
    count(*) AS operations
FROM measured
WHERE outcome = 'ok' AND engine <> 'sim' AND completed_ns - coalesce(scheduled_ns, submitted_ns) IS NOT NULL
GROUP BY ALL
ORDER BY tier, op, start_ns, low_ns
