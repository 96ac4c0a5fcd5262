-- How many rows a trace has, when the first and the last are due, and how many requests they serve.
SELECT count(*) AS rows, min(ts_ns) AS first_ns, max(ts_ns) AS last_ns, count(DISTINCT request_id) AS requests
FROM trace
