-- First queueing and last completion of block requests, and the end of the touched range of the disks.
SELECT count(*) AS requests, min(coalesce(insert_ns, issue_ns)) AS first_ns, max(coalesce(complete_ns, issue_ns)) AS last_ns,
    min(sector) * 512 AS low_bytes, max(sector) * 512 AS high_bytes
FROM blocks
WHERE issue_ns IS NOT NULL
