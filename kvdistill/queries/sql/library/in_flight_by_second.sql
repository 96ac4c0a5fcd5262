-- Mean operations in flight by second and tier, warm-up included.
-- Needs: ops.
WITH spread AS (
    SELECT origin, tier, submitted_ns, completed_ns,
        unnest(range(submitted_ns // 1_000_000_000, completed_ns // 1_000_000_000 + 1)) AS second
    FROM ops
    WHERE submitted_ns IS NOT NULL AND completed_ns IS NOT NULL AND engine <> 'sim'
)
SELECT origin, tier, second,
    sum(least(completed_ns, (second + 1) * 1_000_000_000) - greatest(submitted_ns, second * 1_000_000_000)) / 1e9
        AS in_flight_mean
FROM spread
GROUP BY ALL
ORDER BY ALL
