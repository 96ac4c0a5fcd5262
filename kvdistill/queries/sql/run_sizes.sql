-- The exact distribution of what completed reads and writes moved, by tier and operation.
SELECT tier, op::VARCHAR AS op, bytes AS length_bytes, count(*) AS ops
FROM measured
WHERE outcome = 'ok' AND op <> 'delete' AND bytes IS NOT NULL
GROUP BY ALL
ORDER BY tier, op, length_bytes
