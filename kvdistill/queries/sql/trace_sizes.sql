-- The exact distribution of operation lengths by tier and operation.
SELECT tier, op::VARCHAR AS op, length_bytes, count(*) AS ops
FROM trace
GROUP BY ALL
ORDER BY tier, op, length_bytes
