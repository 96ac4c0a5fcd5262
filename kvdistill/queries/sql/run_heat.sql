-- How many operations of each latency completed when: stretches of time by powers of two of nanoseconds.
SELECT tier, op::VARCHAR AS op, (completed_ns - $first_ns) // $bucket_ns * $bucket_ns AS start_ns,
    (1::BIGINT << floor(log2(greatest(completed_ns - submitted_ns, 1)))::INT) AS low_ns, count(*) AS operations
FROM measured
WHERE outcome = 'ok' AND engine <> 'sim' AND completed_ns - submitted_ns IS NOT NULL
GROUP BY ALL
ORDER BY tier, op, start_ns, low_ns
