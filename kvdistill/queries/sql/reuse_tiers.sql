-- Tiers whose reads and writes went well, and how many; those of simulated tiers move no bytes.
SELECT tier::VARCHAR AS tier, count(bytes) AS accesses FROM ops WHERE op <> 'delete' AND outcome = 'ok' GROUP BY ops.tier
ORDER BY ops.tier
