-- Bytes and operations completed by second, tier and direction, warm-up included; seconds without any have no row.
-- Needs: ops.
SELECT origin, tier, op, completed_ns // 1_000_000_000 AS second, count(*) AS operations_per_s,
    sum(bytes)::BIGINT AS bytes_per_s
FROM ops
WHERE outcome = 'ok' AND engine <> 'sim' AND op <> 'delete'
GROUP BY ALL
ORDER BY ALL
