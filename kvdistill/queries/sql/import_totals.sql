-- Totals of imported block requests by direction. Without any insertion (I), insertions were not recorded.
SELECT op,
    nullif(count(insert_ns), 0) AS queued,
    count(issue_ns) AS issued,
    coalesce(sum(bytes) FILTER (issue_ns IS NOT NULL), 0)::BIGINT AS issued_bytes,
    count(complete_ns) AS completed,
    coalesce(sum(bytes) FILTER (complete_ns IS NOT NULL AND coalesce(error, 0) = 0), 0)::BIGINT AS completed_bytes,
    count(*) FILTER (error <> 0) AS errors
FROM requests
GROUP BY op
ORDER BY op
