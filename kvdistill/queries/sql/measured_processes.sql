-- Reads and writes by process (-1: unknown) on one device, and whether the process belongs to the workload. Short-lived
-- helpers and neighbours do not: fewer than 20 operations, under 0.2 % of operations and of bytes, or active in fewer than
-- 3 tenths of the time with under 5 %.
WITH requests AS (
    SELECT coalesce(pid, -1)::BIGINT AS process, coalesce(insert_ns, issue_ns) AS arrived_ns, bytes
    FROM measured
    WHERE device = $device AND issue_ns IS NOT NULL AND bytes > 0 AND regexp_matches(rwbs, '[RW]')
),
span AS (SELECT min(arrived_ns) AS first_ns, max(arrived_ns) - min(arrived_ns) + 1 AS length_ns FROM requests),
counted AS (
    SELECT process, count(*) AS ops, count(*) / sum(count(*)) OVER () AS ops_share,
        sum(bytes) / sum(sum(bytes)) OVER () AS bytes_share,
        count(DISTINCT (arrived_ns - span.first_ns) * 10 // span.length_ns) AS tenths
    FROM requests CROSS JOIN span
    GROUP BY process
)
SELECT process, ops,
    ops >= 20 AND (tenths >= 3 OR ops_share >= 0.05) AND greatest(ops_share, bytes_share) >= 0.002 AS is_of_workload
FROM counted
ORDER BY process
