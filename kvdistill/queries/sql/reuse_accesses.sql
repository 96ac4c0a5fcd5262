-- The first reads and writes of a tier that went well, in order.
SELECT op = 'read' AS is_read, object_id, coalesce(bytes, 0)::BIGINT AS bytes
FROM ops
WHERE tier = $tier AND op <> 'delete' AND outcome = 'ok'
LIMIT $most
