-- Figures by second from fio's logs of windows: an amount that spans several seconds is spread evenly, a mean is weighted
-- by its time.
WITH spread AS (
    SELECT kind, op, second,
        least(to_ms, (second + 1) * 1000) - greatest(from_ms, second * 1000) AS ms,
        CASE WHEN to_ms > from_ms THEN amount * ms / (to_ms - from_ms) ELSE amount END AS amount
    FROM (
        SELECT *, unnest(range(from_ms // 1000, greatest(to_ms - 1, from_ms) // 1000 + 1)) AS second
        FROM rates
    )
)
SELECT second, op,
    TRY_CAST(round(sum(amount) FILTER (kind = 'iops')) AS BIGINT) AS operations,
    TRY_CAST(round(sum(amount) FILTER (kind = 'bw')) AS BIGINT) AS bytes,
    TRY_CAST(round(sum(amount) FILTER (kind = 'means') / nullif(sum(ms) FILTER (kind = 'means'), 0)) AS BIGINT) AS mean_ns
FROM spread
GROUP BY second, op
