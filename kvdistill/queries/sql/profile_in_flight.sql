-- Time, and number of stretches of time, by the number of operations in flight.
WITH changes AS (
    SELECT ts_ns AS moment, 1 AS change FROM ios WHERE op <> 2 AND io_bytes > 0 AND completed_ns IS NOT NULL
    UNION ALL
    SELECT completed_ns, -1 FROM ios WHERE op <> 2 AND io_bytes > 0 AND completed_ns IS NOT NULL
),
steps AS (
    SELECT sum(sum(change)) OVER (ORDER BY moment) AS in_flight, lead(moment) OVER (ORDER BY moment) - moment AS ns
    FROM changes
    GROUP BY moment
)
SELECT
    in_flight::BIGINT AS in_flight,
    sum(ns)::BIGINT AS total_ns,
    count(*) AS stretches,
    percentile(ns, 0.5) AS p50_ns
FROM steps
WHERE ns IS NOT NULL
GROUP BY in_flight
ORDER BY in_flight
