-- Bytes that the device moved for each byte of the objects, by direction: above 1, padding or others' I/O; below 1,
-- the page cache answered. Over all tiers on files or devices, of one run with its probes, its warm-up among them.
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
