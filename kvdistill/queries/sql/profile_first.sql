-- The first reads and writes, in order.
SELECT op, address, io_bytes FROM ios WHERE op <> 2 AND io_bytes > 0 LIMIT $most
