-- Completed operations by tier, operation and size. Deletes transfer nothing in a run.
SELECT tier, op::VARCHAR AS op, bytes AS size, count(*) AS n
FROM measured
WHERE outcome = 'ok' AND bytes IS NOT NULL AND (op <> 'delete' OR $has_deletes)
GROUP BY ALL
