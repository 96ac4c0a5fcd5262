-- Totals of operations on storage by direction, for the whole run with its warm-up, as the probes saw it. Times are response
-- times in an open loop; `waiting_ns` is their part before submission.
WITH timed AS (
    SELECT *, coalesce(scheduled_ns, submitted_ns) AS due_ns
    FROM ops
    WHERE outcome = 'ok' AND engine IN ('threads', 'uring') AND op IN ('read', 'write')
)
SELECT op::VARCHAR AS op, count(*) AS operations, sum(bytes)::BIGINT AS object_bytes, sum(io_bytes)::BIGINT AS io_bytes,
    count(scheduled_ns) > 0 AS is_response,
    sum(completed_ns - due_ns)::BIGINT AS latency_ns, sum(submitted_ns - due_ns)::BIGINT AS waiting_ns,
    min(submitted_ns) AS first_ns, max(completed_ns) AS last_ns
FROM timed
GROUP BY op
ORDER BY op
