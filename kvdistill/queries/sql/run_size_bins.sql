-- Operations that completed and their bytes by tier, operation and power of two of their size; 0 for none. The table
-- `size_counts` is that of run_size_counts.
SELECT tier, op,
    CASE WHEN size > 0 THEN 1::BIGINT << (length(ltrim(bin(size), '0')) - 1) ELSE 0 END AS low_bytes,
    sum(n)::BIGINT AS ops, sum(size * n)::BIGINT AS bytes
FROM size_counts
GROUP BY ALL
ORDER BY tier, op, low_bytes
