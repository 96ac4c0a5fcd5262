-- What each device completed in each second, by direction.
-- Needs: blocks.
SELECT origin, device, complete_ns // 1_000_000_000 AS second,
    coalesce(sum(bytes) FILTER (contains(rwbs, 'R')), 0)::BIGINT AS read_bytes_per_s,
    coalesce(sum(bytes) FILTER (contains(rwbs, 'W')), 0)::BIGINT AS written_bytes_per_s, count(*) AS requests_per_s
FROM blocks
WHERE complete_ns IS NOT NULL AND NOT contains(rwbs, 'D')
GROUP BY ALL
ORDER BY ALL
