-- Requests and tokens by minute: the load over time.
-- Needs: requests.
SELECT origin, arrival_ns // 60_000_000_000 AS minute, count(*) AS requests, count(DISTINCT session_id) AS sessions,
    sum(input_tokens)::BIGINT AS input_tokens, sum(output_tokens)::BIGINT AS output_tokens
FROM requests
GROUP BY ALL
ORDER BY ALL
