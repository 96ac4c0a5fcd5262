-- When operations of one direction on storage were under way.
SELECT submitted_ns, completed_ns
FROM ops
WHERE outcome = 'ok' AND engine IN ('threads', 'uring') AND op::VARCHAR = $op
