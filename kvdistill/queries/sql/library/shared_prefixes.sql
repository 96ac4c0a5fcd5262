-- Share of prompt blocks that an earlier request also had: the hit rate of an infinite cache.
-- Needs: requests.
WITH blocks AS (SELECT origin, unnest(block_ids) AS block FROM requests)
SELECT origin, count(*) AS blocks, count(DISTINCT block) AS distinct_blocks,
    1 - count(DISTINCT block) / count(*) AS seen_before
FROM blocks
GROUP BY ALL
ORDER BY ALL
