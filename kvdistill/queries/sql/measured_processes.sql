-- What one device was asked for by each process (-1 if that is not known), and in how many tenths of the time.
WITH requests AS (
    SELECT coalesce(pid, -1)::BIGINT AS process, coalesce(insert_ns, issue_ns) AS arrived_ns, bytes
    FROM measured
    WHERE device = $device AND issue_ns IS NOT NULL AND bytes > 0 AND regexp_matches(rwbs, '[RW]')
),
span AS (SELECT min(arrived_ns) AS first_ns, max(arrived_ns) - min(arrived_ns) + 1 AS length_ns FROM requests)
SELECT
    process,
    count(*) AS ops,
    sum(bytes)::BIGINT AS moved_bytes,
    count(DISTINCT (arrived_ns - span.first_ns) * 10 // span.length_ns) AS tenths
FROM requests CROSS JOIN span
GROUP BY process
ORDER BY process
