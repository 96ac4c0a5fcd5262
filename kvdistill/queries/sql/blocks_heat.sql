-- Block requests by queueing time and start sector, by device and direction.
SELECT device, if(contains(rwbs, 'R'), 'read', 'write') AS op,
    (coalesce(insert_ns, issue_ns) - $first_ns) // $bucket_ns * $bucket_ns AS start_ns,
    sector * 512 // $zone_bytes * $zone_bytes AS low_bytes, count(*) AS requests, sum(bytes)::BIGINT AS bytes
FROM blocks
WHERE issue_ns IS NOT NULL AND NOT contains(rwbs, 'D') AND (contains(rwbs, 'R') OR contains(rwbs, 'W'))
GROUP BY ALL
ORDER BY ALL
