-- Lifetimes of objects in a tier, from their first write there to their delete: the tier's turnover.
-- Needs: trace.
WITH lives AS (
    SELECT origin, tier, object_id, op, ts_ns,
        count(*) FILTER (op = 'delete') OVER (
            PARTITION BY origin, tier, object_id ORDER BY ts_ns, row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS life
    FROM trace
    WHERE op <> 'read'
),
ended AS (
    SELECT origin, tier, max(ts_ns) FILTER (op = 'delete') - min(ts_ns) FILTER (op = 'write') AS lifetime_ns
    FROM lives
    GROUP BY origin, tier, object_id, life
)
SELECT origin, tier, count(lifetime_ns) AS ended, count(*) - count(lifetime_ns) AS still_live_or_never_written,
    percentile(lifetime_ns, 0.5) AS p50_ns, percentile(lifetime_ns, 0.95) AS p95_ns, max(lifetime_ns) AS max_ns
FROM ended
GROUP BY ALL
ORDER BY ALL
