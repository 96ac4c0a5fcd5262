-- What one device was issued, by when it was queued, with addresses packed: stretches of 1 MiB that nothing touched are
-- left out. A request arrives when it is queued: its issue is its last one, after all requeues by a busy driver.
WITH requests AS (
    SELECT
        coalesce(insert_ns, issue_ns) AS arrived_ns, complete_ns, sector * 512 AS address, bytes,
        CASE WHEN contains(rwbs, 'D') THEN 2 WHEN contains(rwbs, 'W') THEN 1 ELSE 0 END::TINYINT AS op
    FROM measured
    WHERE device = $device AND issue_ns IS NOT NULL AND bytes > 0 AND regexp_matches(rwbs, '[RWD]')
),
touched AS (
    SELECT DISTINCT unnest(range(address // 1048576, (address + bytes - 1) // 1048576 + 1)) AS stretch
    FROM requests
    WHERE op <> 2
),
packed AS (SELECT stretch, row_number() OVER (ORDER BY stretch) - 1 AS position FROM touched)
SELECT
    arrived_ns AS ts_ns,
    op,
    CASE WHEN op = 2 THEN -1 ELSE position * 1048576 + address % 1048576 END::BIGINT AS address,
    CASE WHEN op = 2 THEN 0 ELSE bytes END::BIGINT AS io_bytes,
    bytes AS length_bytes,
    complete_ns AS completed_ns
FROM requests LEFT JOIN packed ON address // 1048576 = stretch
ORDER BY arrived_ns, address
