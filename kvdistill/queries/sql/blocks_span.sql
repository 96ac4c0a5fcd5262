-- When the first block request was queued and the last one completed, and how far the touched part of the disks goes.
SELECT count(*) AS requests, min(coalesce(insert_ns, issue_ns)) AS first_ns, max(coalesce(complete_ns, issue_ns)) AS last_ns,
    min(sector) * 512 AS low_bytes, max(sector) * 512 AS high_bytes
FROM blocks
WHERE issue_ns IS NOT NULL
