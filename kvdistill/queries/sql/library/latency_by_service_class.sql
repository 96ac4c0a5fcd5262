-- Time to first token (if the trace models compute) and storage time of requests by service class.
-- Needs: measured_requests.
SELECT origin, qos, count(*) AS requests,
    percentile(first_token_ns, 0.5) AS first_token_p50_ns, percentile(first_token_ns, 0.95) AS first_token_p95_ns,
    percentile(first_token_ns, 0.99) AS first_token_p99_ns, percentile(storage_ns, 0.5) AS storage_p50_ns,
    percentile(storage_ns, 0.95) AS storage_p95_ns, max(storage_ns) AS storage_max_ns
FROM measured_requests
GROUP BY ALL
ORDER BY ALL
