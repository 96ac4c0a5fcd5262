-- Histogram slots of the reads and writes at one instant (bursts), and of the gaps between instants.
WITH instants AS (
    SELECT count(*) AS burst, ts_ns - lag(ts_ns) OVER (ORDER BY ts_ns) AS gap
    FROM ios
    WHERE op <> 2 AND io_bytes > 0
    GROUP BY ts_ns
)
SELECT measure, slot(value)::BIGINT AS slot, count(*) AS instants, sum(value)::BIGINT AS total
FROM (UNPIVOT instants ON burst, gap INTO NAME measure VALUE value)
GROUP BY measure, slot
ORDER BY measure, slot
