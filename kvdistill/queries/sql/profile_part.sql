-- The first reads and writes, or only those of kind $op, of a process (of all if null) within a window, in order of
-- time: the order of the file.
SELECT ts_ns, op, address, io_bytes, completed_ns, coalesce(request_id, -1) AS request_id, coalesce(stage, -1) AS stage
FROM ios
WHERE op <> 2 AND ($op IS NULL OR op = $op) AND io_bytes > 0 AND ts_ns BETWEEN $from_ns AND $to_ns AND ($process IS NULL OR process = $process)
LIMIT $most
