-- The `lines` of a log of fio's windows, and when each window began: with the line `before` it. A time that does not go on
-- begins the log of another job (per_job_logs=0). Since fio writes no line of a window without I/O, a rate after a pause
-- is of a window alone: as long as the log's first ones and the shortest tenth of all; a job's last may be shorter.
WITH timed AS (
    SELECT *, coalesce(if(above < ms, above, NULL), start_ms) AS before
    FROM (
        SELECT *, lag(ms) OVER same AS above, lead(ms) OVER same AS below
        FROM lines WINDOW same AS (PARTITION BY direction ORDER BY line)
    )
),
lasting AS (
    SELECT least(min(ms - before) FILTER (coalesce(above >= ms, true)), quantile_disc(ms - before, 0.1)) AS window_ms
    FROM timed
    WHERE ms > before AND below > ms
)
SELECT timed.*, if(ms - before >= 2 * window_ms, ms - window_ms, before) AS began FROM timed CROSS JOIN lasting
