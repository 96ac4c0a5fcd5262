-- Requests of `processes` (of all if null) on one device by arrival, with packed addresses: untouched ranges of 1 MiB are
-- removed, except gaps within a region of random addresses, which chance explains.
-- The arrival is the time of queueing: the issue is the last one, after all requeues by a busy driver.
WITH requests AS (
    SELECT
        coalesce(insert_ns, issue_ns) AS arrived_ns, complete_ns, sector * 512 AS address, bytes,
        coalesce(pid, -1)::BIGINT AS process,
        CASE WHEN contains(rwbs, 'D') THEN 2 WHEN contains(rwbs, 'W') THEN 1 ELSE 0 END::TINYINT AS op
    FROM measured
    WHERE
        device = $device AND issue_ns IS NOT NULL AND bytes > 0 AND regexp_matches(rwbs, '[RWD]')
        AND ($processes IS NULL OR list_contains($processes, coalesce(pid, -1)))
),
touched AS (
    SELECT DISTINCT unnest(range(address // 1048576, (address + bytes - 1) // 1048576 + 1)) AS stretch
    FROM requests
    WHERE op <> 2
),
gaps AS (SELECT stretch, coalesce(stretch - lag(stretch) OVER (ORDER BY stretch), 1) AS gap FROM touched),
density AS (SELECT count(*) AS stretches, count(*) / sum(least(gap, 64)) AS touched_share FROM gaps),
-- The shortest gap that chance does not leave even once in a hundred such sources; any gap where few are touched.
longest AS (
    SELECT
        CASE
            WHEN touched_share < 0.25 OR touched_share > 0.999 THEN 2
            ELSE 2 + ln(0.01 / stretches) / ln(1 - touched_share)
        END AS gap
    FROM density
),
packed AS (
    SELECT stretch, sum(CASE WHEN gaps.gap < longest.gap THEN gaps.gap ELSE 1 END) OVER (ORDER BY stretch) - 1 AS position
    FROM gaps CROSS JOIN longest
)
SELECT
    arrived_ns AS ts_ns,
    op,
    CASE WHEN op = 2 THEN -1 ELSE position * 1048576 + address % 1048576 END::BIGINT AS address,
    CASE WHEN op = 2 THEN 0 ELSE bytes END::BIGINT AS io_bytes,
    bytes AS length_bytes,
    complete_ns AS completed_ns,
    process
FROM requests LEFT JOIN packed ON address // 1048576 = stretch
ORDER BY arrived_ns, requests.address, op, complete_ns, bytes
