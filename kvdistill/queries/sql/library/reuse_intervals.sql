-- Time from an object's last read or write in a tier to its next read there: how long the tier must keep it.
-- Needs: trace.
WITH touched AS (
    SELECT origin, tier, op, ts_ns - lag(ts_ns) OVER (PARTITION BY origin, tier, object_id ORDER BY ts_ns) AS gap_ns
    FROM trace
    WHERE op <> 'delete'
)
SELECT origin, tier, count(*) AS reads, count(gap_ns) AS rereads,
    percentile(gap_ns, 0.5) AS p50_ns, percentile(gap_ns, 0.95) AS p95_ns, percentile(gap_ns, 0.99) AS p99_ns,
    max(gap_ns) AS max_ns
FROM touched
WHERE op = 'read'
GROUP BY ALL
ORDER BY ALL
