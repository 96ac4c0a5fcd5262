-- Operations and bytes that a trace requests from each tier by second of simulated time; idle seconds have no row.
-- Needs: trace.
SELECT origin, tier, ts_ns // 1_000_000_000 AS second,
    count(*) FILTER (op = 'read') AS reads_per_s,
    count(*) FILTER (op = 'write') AS writes_per_s,
    coalesce(sum(length_bytes) FILTER (op = 'read'), 0)::BIGINT AS read_bytes_per_s,
    coalesce(sum(length_bytes) FILTER (op = 'write'), 0)::BIGINT AS written_bytes_per_s
FROM trace
GROUP BY ALL
ORDER BY ALL
