-- How operations ended: what failed, was cut short, corrupt or skipped, by tier and direction; a warm-up's too.
-- Needs: ops.
SELECT origin, tier, op, outcome, engine, count(*) AS operations, sum(bytes)::BIGINT AS bytes
FROM ops
GROUP BY ALL
ORDER BY ALL
