-- The tiers that completed reads or writes in a replay, by index.
SELECT DISTINCT tier FROM measured WHERE op <> 'delete' AND outcome = 'ok' AND submitted_ns IS NOT NULL ORDER BY tier
