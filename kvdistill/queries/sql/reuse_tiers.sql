-- Tiers whose reads and writes went well, and how many.
SELECT tier::VARCHAR AS tier, count(*) AS accesses FROM ops WHERE op <> 'delete' AND outcome = 'ok' GROUP BY ops.tier
ORDER BY ops.tier
