-- Operations and object bytes that completed in equal stretches of a run, by tier; stretches without any are 0.
WITH counted AS (
    SELECT tier, (completed_ns - $first_ns) // $bucket_ns AS bucket,
        count(*) FILTER (op = 'read') AS reads, count(*) FILTER (op = 'write') AS writes,
        count(*) FILTER (op = 'delete') AS deletes,
        coalesce(sum(bytes) FILTER (op = 'read'), 0)::BIGINT AS read_bytes,
        coalesce(sum(bytes) FILTER (op = 'write'), 0)::BIGINT AS written_bytes
    FROM measured
    WHERE outcome = 'ok' AND engine <> 'sim'
    GROUP BY ALL
),
grid AS (
    SELECT tier, bucket
    FROM (SELECT DISTINCT tier FROM counted), (SELECT unnest(range($buckets::BIGINT)) AS bucket)
)
SELECT tier, bucket * $bucket_ns AS start_ns,
    coalesce(reads, 0) AS reads, coalesce(writes, 0) AS writes, coalesce(deletes, 0) AS deletes,
    coalesce(read_bytes, 0) AS read_bytes, coalesce(written_bytes, 0) AS written_bytes
FROM grid LEFT JOIN counted USING (tier, bucket)
ORDER BY tier, start_ns
