-- Imported block requests by the number in flight on their disk at their issue, themselves included, in any direction.
-- At one instant completions come first. A request without a completion stays in flight.
WITH steps AS (
    SELECT device, op, issue_ns AS ns, 1 AS step FROM requests WHERE issue_ns IS NOT NULL
    UNION ALL
    SELECT device, op, complete_ns, -1 FROM requests WHERE issue_ns IS NOT NULL AND complete_ns IS NOT NULL
),
levels AS (
    SELECT op, step, sum(step) OVER (PARTITION BY device ORDER BY ns, step ROWS UNBOUNDED PRECEDING)::BIGINT AS in_flight
    FROM steps
)
SELECT op, in_flight, count(*) AS count FROM levels WHERE step = 1 GROUP BY ALL ORDER BY ALL
