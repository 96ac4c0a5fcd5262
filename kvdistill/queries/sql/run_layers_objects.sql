-- What operations on storage moved and took, by direction: the whole run, as the probes saw it, warm-up included.
SELECT op::VARCHAR AS op, count(*) AS operations, sum(bytes)::BIGINT AS object_bytes, sum(io_bytes)::BIGINT AS io_bytes,
    sum(completed_ns - submitted_ns)::BIGINT AS latency_ns, min(submitted_ns) AS first_ns, max(completed_ns) AS last_ns,
    avg(completed_ns - submitted_ns) AS mean_ns, percentile(completed_ns - submitted_ns, 0.5) AS p50_ns,
    percentile(completed_ns - submitted_ns, 0.95) AS p95_ns, percentile(completed_ns - submitted_ns, 0.99) AS p99_ns,
    percentile(completed_ns - submitted_ns, 0.999) AS p99_9_ns,
    percentile(completed_ns - submitted_ns, 0.9999) AS p99_99_ns
FROM ops
WHERE outcome = 'ok' AND engine IN ('threads', 'uring') AND op IN ('read', 'write')
GROUP BY op
ORDER BY op
