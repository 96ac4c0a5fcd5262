-- Live bytes by tier: the most at any row, and at the end. An object lives in a tier from its first write
-- there to its delete, and is as long as the writes of that life reached; what the trace only reads is not in.
WITH numbered AS (
    SELECT row_number() OVER () AS row, tier, object_id, op, offset_bytes + length_bytes AS reach
    FROM trace
),
lives AS (
    SELECT row, tier, object_id, op, reach,
        count(*) FILTER (op = 'delete') OVER (
            PARTITION BY tier, object_id ORDER BY row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS life
    FROM numbered
    WHERE op <> 'read'
),
reached AS (
    SELECT row, tier, op, reach, coalesce(max(reach) FILTER (op = 'write') OVER (
        PARTITION BY tier, object_id, life ORDER BY row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ), 0) AS before
    FROM lives
),
running AS (
    SELECT row, tier, sum(CASE WHEN op = 'delete' THEN -before ELSE greatest(reach - before, 0) END) OVER (
        PARTITION BY tier ORDER BY row ROWS UNBOUNDED PRECEDING
    ) AS live
    FROM reached
)
SELECT tier, max(live)::BIGINT AS peak_live_bytes, arg_max(live, row)::BIGINT AS end_live_bytes
FROM running
GROUP BY tier
ORDER BY tier
