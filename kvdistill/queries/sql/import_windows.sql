-- Windows of a log of fio: since the line `before`, or the start if another job's log begins, as time does not go on. fio
-- writes no line without I/O: after a pause, a rate is of what `began` later, as long as first windows or the shortest tenth.
WITH timed AS (
    SELECT *, coalesce(if(lag(ms) OVER same < ms, lag(ms) OVER same, NULL), zero_ms) AS before, lead(ms) OVER same AS after
    FROM lines WINDOW same AS (PARTITION BY direction ORDER BY line)
),
lasting AS (
    SELECT least(min(ms - before) FILTER (before = zero_ms), quantile_disc(ms - before, 0.1)) AS window_ms
    FROM timed WHERE ms > before AND after > ms
)
SELECT timed.*, if(ms - before >= 2 * window_ms, ms - window_ms, before) AS began FROM timed CROSS JOIN lasting
