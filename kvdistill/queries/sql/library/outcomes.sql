-- How operations ended: what failed, was cut short, corrupt or skipped, by tier and direction.
-- Needs: ops, tiers.
SELECT origin, name AS tier, op, outcome, engine, count(*) AS operations, sum(bytes)::BIGINT AS bytes
FROM ops JOIN tiers USING (origin, tier)
GROUP BY ALL
ORDER BY ALL
