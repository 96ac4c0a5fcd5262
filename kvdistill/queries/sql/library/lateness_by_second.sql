-- Lateness of submissions and response time in an open loop by second of the due time, warm-up included: shows where a run
-- fell behind.
-- Needs: ops.
SELECT origin, tier, scheduled_ns // 1_000_000_000 AS second, count(*) AS operations,
    percentile(submitted_ns - scheduled_ns, 0.5) AS p50_ns, max(submitted_ns - scheduled_ns) AS max_ns,
    percentile(completed_ns - scheduled_ns, 0.5) AS response_p50_ns, max(completed_ns - scheduled_ns) AS response_max_ns
FROM ops
WHERE scheduled_ns IS NOT NULL AND submitted_ns IS NOT NULL
GROUP BY ALL
ORDER BY ALL
