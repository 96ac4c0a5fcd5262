-- Block requests and bytes by process name, device and flags.
-- Needs: blocks.
SELECT origin, comm, device, rwbs, count(*) AS requests, sum(bytes)::BIGINT AS bytes,
    count(*) FILTER (error <> 0) AS errors
FROM blocks
GROUP BY ALL
ORDER BY origin, bytes DESC, comm, device, rwbs
