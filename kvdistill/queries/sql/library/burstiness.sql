-- Burstiness of a trace: coefficient of variation of the gaps between operations (1 is Poisson, more is burstier), and the
-- peak second against the mean.
-- Needs: trace.
WITH gaps AS (
    SELECT origin, tier, ts_ns - lag(ts_ns) OVER (PARTITION BY origin, tier ORDER BY ts_ns) AS gap_ns
    FROM trace
),
seconds AS (
    SELECT origin, tier, max(n) AS busiest_per_s
    FROM (SELECT origin, tier, count(*) AS n FROM trace GROUP BY origin, tier, ts_ns // 1_000_000_000)
    GROUP BY origin, tier
)
SELECT origin, tier, count(*) AS operations, avg(gap_ns) AS mean_gap_ns,
    stddev_pop(gap_ns) / nullif(avg(gap_ns), 0) AS gap_variation,
    any_value(busiest_per_s) AS busiest_per_s, count(*) / nullif(sum(gap_ns) / 1e9, 0) AS mean_per_s
FROM gaps JOIN seconds USING (origin, tier)
GROUP BY origin, tier
ORDER BY origin, tier
