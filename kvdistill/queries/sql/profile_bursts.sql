-- The bursts of profile_gaps.sql in order of time, with the gap before each: null before the first.
SELECT count(*) AS burst, min(ts_ns) - lag(min(ts_ns)) OVER (ORDER BY min(ts_ns)) AS gap
FROM ios
WHERE op <> 2 AND io_bytes > 0
GROUP BY ts_ns // 1000
ORDER BY min(ts_ns)
