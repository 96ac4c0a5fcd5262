-- The 20 most read objects, and their share of all reads.
-- Needs: trace, objects.
SELECT origin, key, kind, count(*) AS reads, sum(length_bytes)::BIGINT AS read_bytes,
    count(*) / (SELECT count(*) FROM trace WHERE op = 'read') AS share_of_reads
FROM trace JOIN objects USING (origin, object_id)
WHERE op = 'read'
GROUP BY origin, object_id, key, kind
ORDER BY reads DESC, read_bytes DESC, origin, key
LIMIT 20
