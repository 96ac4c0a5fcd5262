-- When a tier's first and last read or write is due, and what it deletes; over placed operations (`ios`).
SELECT
    min(ts_ns) FILTER (io_bytes > 0) AS start_ns,
    max(ts_ns) FILTER (io_bytes > 0) AS end_ns,
    count(*) FILTER (op = 2) AS delete_ops,
    coalesce(sum(length_bytes) FILTER (op = 2), 0)::BIGINT AS delete_bytes,
    count(*) FILTER (op <> 2 AND io_bytes = 0) AS empty_ops
FROM ios
