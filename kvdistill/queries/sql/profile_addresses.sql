-- Bytes of the operations of one direction by start address, in granules of the address space.
SELECT address // $granule_bytes * $granule_bytes AS start, sum(io_bytes)::BIGINT AS moved_bytes
FROM ios
WHERE op = $op AND io_bytes > 0 AND ts_ns BETWEEN $from_ns AND $to_ns AND ($process IS NULL OR process = $process)
GROUP BY start
ORDER BY start
