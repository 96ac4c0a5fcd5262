-- How many reads and writes were timed, and for how long they were in flight, by direction.
SELECT
    count(*) AS ops,
    count(completed_ns) AS timed,
    coalesce(sum(completed_ns - ts_ns) FILTER (op = 0), 0)::BIGINT AS read_ns,
    coalesce(sum(completed_ns - ts_ns) FILTER (op = 1), 0)::BIGINT AS write_ns
FROM ios
WHERE op <> 2 AND io_bytes > 0
