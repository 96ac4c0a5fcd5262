-- Device bytes for each object byte by direction. Above 1: padding or other I/O; below 1: page cache hits. Covers all tiers
-- on files or devices of one run with its probes, warm-up included.
-- Needs: ops, blocks.
WITH moved AS (
    SELECT origin, op::VARCHAR AS direction, sum(bytes) AS object_bytes
    FROM ops
    WHERE outcome = 'ok' AND engine IN ('uring', 'threads') AND op <> 'delete'
    GROUP BY ALL
),
device AS (
    SELECT origin, if(contains(rwbs, 'R'), 'read', 'write') AS direction, sum(bytes) AS device_bytes
    FROM blocks
    WHERE issue_ns IS NOT NULL AND NOT contains(rwbs, 'D') AND (contains(rwbs, 'R') OR contains(rwbs, 'W'))
    GROUP BY ALL
)
SELECT origin, direction, object_bytes::BIGINT AS object_bytes, device_bytes::BIGINT AS device_bytes,
    device_bytes / object_bytes AS amplification
FROM moved LEFT JOIN device USING (origin, direction)
ORDER BY ALL
