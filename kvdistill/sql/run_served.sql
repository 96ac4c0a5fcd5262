-- What storage took of requests: the time in which any of a request's operations was in flight, and how late its first
-- one was submitted. Requests for which nothing completed are counted, but have no time.
SELECT count(*) AS requests, count(storage_ns) AS timed, avg(storage_ns) AS mean_ns,
    percentile(storage_ns, 0.5) AS p50_ns, percentile(storage_ns, 0.95) AS p95_ns,
    percentile(storage_ns, 0.99) AS p99_ns, percentile(storage_ns, 0.999) AS p99_9_ns,
    percentile(storage_ns, 0.9999) AS p99_99_ns, max(storage_ns) AS max_ns,
    sum(hits)::BIGINT AS hits, sum(hit_bytes)::BIGINT AS hit_bytes, sum(unfinished)::BIGINT AS unfinished_operations
FROM served
