-- Which share of the prompts' blocks an earlier request already had: the hit ratio of a cache that keeps all.
-- Needs: requests.
WITH blocks AS (SELECT origin, unnest(block_ids) AS block FROM requests)
SELECT origin, count(*) AS blocks, count(DISTINCT block) AS distinct_blocks,
    1 - count(DISTINCT block) / count(*) AS seen_before
FROM blocks
GROUP BY ALL
ORDER BY ALL
