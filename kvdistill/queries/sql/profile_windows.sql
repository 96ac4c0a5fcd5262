-- Reads and writes in whole windows of three lengths from the first one on: how many windows, operations, and squares of
-- a window's operations. The last window is not whole.
WITH counted AS (
    SELECT name, (ts_ns - $start_ns) // length_ns AS place, count(*) AS ops
    FROM ios, (VALUES ('in_1ms', 1_000_000), ('in_100ms', 100_000_000), ('in_10s', 10_000_000_000)) AS of (name, length_ns)
    WHERE op <> 2 AND io_bytes > 0
    GROUP BY ALL
)
SELECT name, max(place) AS windows, sum(ops)::BIGINT - arg_max(ops, place) AS ops,
    (sum(ops * ops) - arg_max(ops * ops, place))::BIGINT AS squares
FROM counted
GROUP BY name
