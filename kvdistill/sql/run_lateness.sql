-- How late operations were submitted (submitted - scheduled) by tier and operation, over all that completed well. Percentiles are
-- by nearest rank and null with fewer than 1 / (1 - q) operations; simulated tiers have no such times.
WITH timed AS (
    SELECT tier, op::VARCHAR AS op, submitted_ns - scheduled_ns AS time_ns
    FROM measured
    WHERE outcome = 'ok' AND engine <> 'sim' AND submitted_ns - scheduled_ns IS NOT NULL
),
ranked AS (
    SELECT tier, op, time_ns,
        row_number() OVER (PARTITION BY tier, op ORDER BY time_ns) AS rank,
        count(*) OVER (PARTITION BY tier, op) AS n
    FROM timed
)
SELECT tier, op, any_value(n) AS count, avg(time_ns) AS mean_ns,
    max(time_ns) FILTER (n >= 2 AND rank = (n * 5000 + 9999) // 10000) AS p50_ns,
    max(time_ns) FILTER (n >= 20 AND rank = (n * 9500 + 9999) // 10000) AS p95_ns,
    max(time_ns) FILTER (n >= 100 AND rank = (n * 9900 + 9999) // 10000) AS p99_ns,
    max(time_ns) FILTER (n >= 1000 AND rank = (n * 9990 + 9999) // 10000) AS p99_9_ns,
    max(time_ns) FILTER (n >= 10000 AND rank = (n * 9999 + 9999) // 10000) AS p99_99_ns,
    max(time_ns) AS max_ns
FROM ranked
GROUP BY tier, op
ORDER BY tier, op
