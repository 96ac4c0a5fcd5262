-- Variance/mean of reads and writes in whole windows of three lengths from the first operation; null with fewer than five
-- windows. The last window is partial and left out.
WITH counted AS (
    SELECT name, (ts_ns - $start_ns) // length_ns AS place, count(*) AS ops
    FROM ios, (VALUES ('in_1ms', 1_000_000), ('in_100ms', 100_000_000), ('in_10s', 10_000_000_000)) AS of (name, length_ns)
    WHERE op <> 2 AND io_bytes > 0
    GROUP BY ALL
), whole AS (
    SELECT name, max(place) AS windows, (sum(ops) - arg_max(ops, place)) / windows AS mean,
        (sum(ops * ops) - arg_max(ops * ops, place)) / windows AS square
    FROM counted
    GROUP BY name
)
SELECT name, CASE WHEN windows >= 5 AND mean > 0 THEN (square - mean * mean) / mean END AS dispersion
FROM whole
