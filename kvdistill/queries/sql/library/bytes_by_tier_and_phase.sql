-- Where the bytes of a trace go, and why: operations, bytes and the share of its tier's bytes by tier, phase and op.
-- Needs: trace, tiers.
SELECT origin, name AS tier, phase, op, count(*) AS operations, sum(length_bytes)::BIGINT AS bytes,
    sum(length_bytes) / sum(sum(length_bytes)) OVER (PARTITION BY origin, name) AS share_of_tier
FROM trace JOIN tiers USING (origin, tier)
GROUP BY origin, name, phase, op
ORDER BY origin, tier, bytes DESC, phase, op
