-- Counts of the `done` operations, and of those that an op log cannot express.
WITH steps AS (SELECT *, lag(op) OVER (PARTITION BY object_id ORDER BY row) AS before FROM done)
SELECT
    count(*) FILTER (op = 0) AS gets,
    count(*) FILTER (op = 1) AS puts,
    count(*) FILTER (op = 2) AS deletes,
    (SELECT count(*) FROM named WHERE is_prior) AS populated,
    count(*) FILTER (op = 0 AND before = 2) AS gone_reads,
    count(*) FILTER (op = 2 AND coalesce(before, 2) = 2) AS gone_deletes,
    count(*) FILTER (op = 0 AND length_bytes > 0 AND length_bytes < size_bytes) AS partial_reads,
    coalesce(sum(size_bytes - length_bytes) FILTER (op = 0 AND length_bytes > 0), 0)::BIGINT AS unread_bytes,
    count(*) FILTER (op = 1 AND offset_bytes > 0) AS partial_writes,
    count(*) FILTER (request_id >= 0) AS requests,
    count(*) FILTER (rank > 0) AS ranks
FROM steps JOIN named USING (object_id)
