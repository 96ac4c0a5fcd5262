-- Lengths of prompts and answers in tokens, by kind of user.
-- Needs: requests.
SELECT origin, kind, count(*) AS requests, avg(input_tokens) AS mean_input_tokens,
    percentile(input_tokens, 0.5) AS p50_input_tokens, percentile(input_tokens, 0.99) AS p99_input_tokens,
    max(input_tokens) AS max_input_tokens, percentile(output_tokens, 0.5) AS p50_output_tokens,
    max(output_tokens) AS max_output_tokens
FROM requests
GROUP BY ALL
ORDER BY ALL
