-- Latency (completed - submitted), and in an open loop response time (completed - due), by phase of the request: shows
-- whether loads wait behind background work.
-- Needs: measured.
SELECT origin, tier, op, phase, count(*) AS operations, avg(completed_ns - submitted_ns) AS mean_ns,
    percentile(completed_ns - submitted_ns, 0.5) AS p50_ns, percentile(completed_ns - submitted_ns, 0.99) AS p99_ns,
    max(completed_ns - submitted_ns) AS max_ns, avg(completed_ns - scheduled_ns) AS response_mean_ns,
    percentile(completed_ns - scheduled_ns, 0.5) AS response_p50_ns,
    percentile(completed_ns - scheduled_ns, 0.99) AS response_p99_ns, max(completed_ns - scheduled_ns) AS response_max_ns
FROM measured
WHERE outcome = 'ok' AND engine <> 'sim'
GROUP BY ALL
ORDER BY ALL
