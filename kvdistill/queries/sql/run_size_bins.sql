-- Operations that completed and their bytes by tier, operation and power of two of their size; 0 for none.
SELECT tier, op::VARCHAR AS op,
    CASE WHEN bytes > 0 THEN 1::BIGINT << (length(ltrim(bin(bytes), '0')) - 1) ELSE 0 END AS low_bytes,
    count(*) AS ops, sum(bytes)::BIGINT AS bytes
FROM measured
WHERE outcome = 'ok' AND bytes IS NOT NULL AND (op <> 'delete' OR $has_deletes)
GROUP BY ALL
ORDER BY tier, op, low_bytes
