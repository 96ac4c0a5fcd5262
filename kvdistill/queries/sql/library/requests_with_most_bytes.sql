-- The 20 requests with the most bytes in a trace.
-- Needs: trace.
SELECT origin, request_id, min(ts_ns) AS first_ns, count(*) AS operations,
    coalesce(sum(length_bytes) FILTER (op = 'read'), 0)::BIGINT AS read_bytes,
    coalesce(sum(length_bytes) FILTER (op = 'write'), 0)::BIGINT AS written_bytes
FROM trace
WHERE request_id IS NOT NULL AND op <> 'delete'
GROUP BY origin, request_id
ORDER BY read_bytes + written_bytes DESC, origin, request_id
LIMIT 20
