-- Operations and bytes of a trace by size class (powers of two, lower bound).
-- Needs: trace.
SELECT origin, tier, op,
    CASE WHEN length_bytes > 0 THEN 1::BIGINT << floor(log2(length_bytes))::INT ELSE 0 END AS from_bytes,
    count(*) AS operations, sum(length_bytes)::BIGINT AS bytes
FROM trace
WHERE op <> 'delete'
GROUP BY ALL
ORDER BY ALL
