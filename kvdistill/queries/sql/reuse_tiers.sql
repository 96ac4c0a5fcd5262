-- Tiers with successful reads and writes, and their number. Simulated tiers transfer no bytes, so they are left out.
SELECT tier::VARCHAR AS tier, count(bytes) AS accesses FROM ops WHERE op <> 'delete' AND outcome = 'ok' GROUP BY ops.tier
ORDER BY ops.tier
