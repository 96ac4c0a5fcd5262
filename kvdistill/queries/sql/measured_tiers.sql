-- Tiers with completed reads or writes, by index, and their reads and writes that failed or were not reached.
SELECT tier, count(*) FILTER (engine <> 'none' AND (outcome <> 'ok' OR submitted_ns IS NULL)) AS left_ops
FROM measured WHERE op <> 'delete' GROUP BY tier HAVING bool_or(outcome = 'ok' AND submitted_ns IS NOT NULL) ORDER BY tier
