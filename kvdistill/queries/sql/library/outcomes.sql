-- Outcomes of operations by tier and direction: ok, failed, short, corrupt or skipped; warm-up included.
-- Needs: ops.
SELECT origin, tier, op, outcome, engine, count(*) AS operations, sum(bytes)::BIGINT AS bytes
FROM ops
GROUP BY ALL
ORDER BY ALL
