-- Operations, bytes and share of the tier's bytes by tier, phase and operation: the sources of a trace's traffic.
-- Needs: trace.
SELECT origin, tier, phase, op, count(*) AS operations, sum(length_bytes)::BIGINT AS bytes,
    sum(length_bytes) / sum(sum(length_bytes)) OVER (PARTITION BY origin, tier) AS share_of_tier
FROM trace
GROUP BY origin, tier, phase, op
ORDER BY origin, tier, bytes DESC, phase, op
