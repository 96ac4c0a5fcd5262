-- Sizes of completed operations by tier and operation: count, distinct sizes, percentiles (nearest rank, with enough
-- operations) and the most frequent sizes. The table `size_counts` is that of run_size_counts.
WITH ranked AS (
    SELECT *, sum(n) OVER (PARTITION BY tier, op ORDER BY size) AS upto, sum(n) OVER (PARTITION BY tier, op) AS total
    FROM size_counts
)
SELECT tier, op, sum(n)::BIGINT AS ops, count(*) AS "distinct", min(size) AS min_bytes,
    min(size) FILTER (total >= 2 AND 2 * upto >= total) AS p50_bytes,
    min(size) FILTER (total >= 100 AND 100 * upto >= 99 * total) AS p99_bytes,
    max(size) AS max_bytes, sum(size * n) / sum(n) AS mean_bytes,
    list({'length_bytes': size, 'ops': n, 'share': n / total} ORDER BY n DESC, size)[:5] AS top
FROM ranked
GROUP BY tier, op
ORDER BY tier, op
