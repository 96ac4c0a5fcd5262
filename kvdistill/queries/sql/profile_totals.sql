-- Totals of a tier's placed operations: first and last time, counts, timed operations, time in flight by direction, deletes.
SELECT
    min(ts_ns) FILTER (io_bytes > 0) AS start_ns,
    max(ts_ns) FILTER (io_bytes > 0) AS end_ns,
    max(ts_ns) FILTER (io_bytes > 0 OR op = 2) - min(ts_ns) FILTER (io_bytes > 0 OR op = 2) AS whole_ns,
    count(*) FILTER (io_bytes > 0) AS ops,
    count(completed_ns) FILTER (io_bytes > 0) AS timed,
    coalesce(sum(completed_ns - ts_ns) FILTER (op = 0 AND io_bytes > 0), 0)::BIGINT AS read_ns,
    coalesce(sum(completed_ns - ts_ns) FILTER (op = 1 AND io_bytes > 0), 0)::BIGINT AS write_ns,
    min(ts_ns) FILTER (op = 2) AS delete_start_ns,
    max(ts_ns) FILTER (op = 2) AS delete_end_ns,
    count(*) FILTER (op = 2) AS delete_ops,
    coalesce(sum(length_bytes) FILTER (op = 2), 0)::BIGINT AS delete_bytes,
    count(*) FILTER (op <> 2 AND io_bytes = 0) AS empty_ops
FROM ios
