-- The 20 operations with the longest latency, and their times.
-- Needs: measured.
SELECT origin, row, tier, op, phase, object_id, request_id, bytes, submitted_ns,
    completed_ns - submitted_ns AS latency_ns, completed_ns - scheduled_ns AS response_ns
FROM measured
WHERE outcome = 'ok' AND engine <> 'sim'
ORDER BY latency_ns DESC, origin, row
LIMIT 20
