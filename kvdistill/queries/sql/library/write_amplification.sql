-- Bytes written to each tier for every byte of new KV (phases prefill and decode, at the first write to any tier). Above 1:
-- tiers copy, demote or rewrite. Amplification inside a drive is not included.
-- Needs: trace.
WITH fresh AS (
    SELECT origin, sum(length_bytes) AS new_bytes
    FROM trace
    WHERE op = 'write' AND phase IN ('prefill', 'decode')
    GROUP BY origin
)
SELECT origin, tier, sum(length_bytes)::BIGINT AS written_bytes, any_value(new_bytes)::BIGINT AS new_bytes,
    sum(length_bytes) / any_value(new_bytes) AS written_per_new_byte
FROM trace LEFT JOIN fresh USING (origin)
WHERE op = 'write'
GROUP BY origin, tier
ORDER BY origin, tier
