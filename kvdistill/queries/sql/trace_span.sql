-- Rows of a trace, due times of the first and last, and the number of requests.
SELECT count(*) AS rows, min(ts_ns) AS first_ns, max(ts_ns) AS last_ns, count(DISTINCT request_id) AS requests
FROM trace
