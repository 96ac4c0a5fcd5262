-- Share of the bytes written to a tier that are never read before their delete or the end of the trace.
-- Needs: trace.
WITH lives AS (
    SELECT origin, tier, object_id, op, length_bytes,
        count(*) FILTER (op = 'delete') OVER (
            PARTITION BY origin, tier, object_id ORDER BY ts_ns, row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS life
    FROM trace
),
by_life AS (
    SELECT origin, tier, coalesce(sum(length_bytes) FILTER (op = 'write'), 0) AS written_bytes,
        count(*) FILTER (op = 'read') AS reads
    FROM lives
    GROUP BY origin, tier, object_id, life
)
SELECT origin, tier, sum(written_bytes)::BIGINT AS written_bytes,
    coalesce(sum(written_bytes) FILTER (reads = 0), 0)::BIGINT AS never_read_bytes,
    coalesce(sum(written_bytes) FILTER (reads = 0), 0) / nullif(sum(written_bytes), 0) AS never_read_share
FROM by_life
GROUP BY ALL
ORDER BY ALL
