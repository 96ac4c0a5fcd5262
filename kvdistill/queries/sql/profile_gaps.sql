-- Histogram slots of the reads and writes that arrive together (bursts), and of the gaps between them.
-- Arrivals of one microsecond are one: fio's logs have no finer times, and no drive tells them apart.
WITH instants AS (
    SELECT count(*) AS burst, min(ts_ns) - lag(min(ts_ns)) OVER (ORDER BY min(ts_ns)) AS gap
    FROM ios
    WHERE op <> 2 AND io_bytes > 0
    GROUP BY ts_ns // 1000
)
SELECT measure, slot(value)::BIGINT AS slot, count(*) AS instants, sum(value)::BIGINT AS total
FROM (UNPIVOT instants ON burst, gap INTO NAME measure VALUE value)
GROUP BY measure, slot
ORDER BY measure, slot
