-- The first successful reads and writes of a tier, in order.
SELECT op = 'read' AS is_read, object_id, bytes
FROM ops
WHERE tier = $tier AND op <> 'delete' AND outcome = 'ok' AND bytes IS NOT NULL
LIMIT $most
