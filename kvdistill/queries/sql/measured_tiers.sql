-- The tiers that completed reads or writes in a replay, by index, and how many of these failed or were not reached.
SELECT tier, count(*) FILTER (outcome <> 'ok' OR submitted_ns IS NULL) AS left_ops
FROM measured WHERE op <> 'delete' GROUP BY tier HAVING left_ops < count(*) ORDER BY tier
