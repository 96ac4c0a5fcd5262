-- Operations, bytes and objects of a trace by tier, operation and phase.
SELECT tier, op::VARCHAR AS op, phase::VARCHAR AS phase, count(*) AS ops,
    sum(length_bytes)::BIGINT AS bytes, count(DISTINCT object_id) AS objects
FROM trace
GROUP BY ALL
ORDER BY tier, op, phase
