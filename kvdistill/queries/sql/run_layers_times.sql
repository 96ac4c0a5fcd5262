-- Times of the operations on storage whose totals are in run_layers_objects.
SELECT 'object' AS measure, '' AS tier, op::VARCHAR AS op,
    completed_ns - coalesce(scheduled_ns, submitted_ns) AS time_ns
FROM ops
WHERE outcome = 'ok' AND engine IN ('threads', 'uring') AND op IN ('read', 'write')
    AND completed_ns - coalesce(scheduled_ns, submitted_ns) IS NOT NULL
