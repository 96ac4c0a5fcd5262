-- Points of the distributions of latency (completed - submitted) and lateness (submitted - scheduled): the values at
-- `$parts` (ten-thousandths), by nearest rank, where there are enough operations for that point.
WITH timed AS (
    SELECT tier, op::VARCHAR AS op, measure, time_ns
    FROM (
        SELECT tier, op, 'latency' AS measure, completed_ns - submitted_ns AS time_ns, outcome, engine FROM measured
        UNION ALL
        SELECT tier, op, 'lateness', submitted_ns - scheduled_ns, outcome, engine FROM measured
    )
    WHERE outcome = 'ok' AND engine <> 'sim' AND time_ns IS NOT NULL
),
wanted AS (
    SELECT tier, op, measure, part, (n * part + 9999) // 10000 AS rank
    FROM (SELECT tier, op, measure, count(*) AS n FROM timed GROUP BY ALL), (SELECT unnest($parts) AS part)
    WHERE n * part >= 10000 AND (part = 10000 OR n * (10000 - part) >= 10000)
),
ranked AS (
    SELECT *, row_number() OVER (PARTITION BY tier, op, measure ORDER BY time_ns) AS rank
    FROM timed
)
SELECT measure, tier, op, part / 10000 AS share, time_ns
FROM wanted JOIN ranked USING (tier, op, measure, rank)
ORDER BY measure, tier, op, part
