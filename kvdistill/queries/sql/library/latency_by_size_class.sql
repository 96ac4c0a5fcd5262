-- Latency (completed - submitted), and in an open loop response time (completed - due), by size class (powers of two, lower
-- bound), tier and direction.
-- Needs: measured.
SELECT origin, tier, op, 1::BIGINT << floor(log2(greatest(bytes, 1)))::INT AS from_bytes,
    count(*) AS operations, avg(completed_ns - submitted_ns) AS mean_ns,
    percentile(completed_ns - submitted_ns, 0.5) AS p50_ns, percentile(completed_ns - submitted_ns, 0.99) AS p99_ns,
    max(completed_ns - submitted_ns) AS max_ns, percentile(completed_ns - scheduled_ns, 0.5) AS response_p50_ns,
    percentile(completed_ns - scheduled_ns, 0.99) AS response_p99_ns
FROM measured
WHERE outcome = 'ok' AND engine <> 'sim' AND op <> 'delete'
GROUP BY ALL
ORDER BY ALL
