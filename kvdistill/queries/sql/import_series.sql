-- What fio's bandwidth and IOPS logs say of each second: an amount that spans several is spread evenly over its time.
WITH spread AS (
    SELECT kind, op, second,
        CASE WHEN to_ms > from_ms
            THEN amount * (least(to_ms, (second + 1) * 1000) - greatest(from_ms, second * 1000)) / (to_ms - from_ms)
            ELSE amount END AS amount
    FROM (
        SELECT *, unnest(range(from_ms // 1000, greatest(to_ms - 1, from_ms) // 1000 + 1)) AS second
        FROM rates
    )
)
SELECT second, op,
    CAST(round(sum(amount) FILTER (kind = 'iops')) AS BIGINT) AS operations,
    CAST(round(sum(amount) FILTER (kind = 'bw')) AS BIGINT) AS bytes
FROM spread
GROUP BY second, op
