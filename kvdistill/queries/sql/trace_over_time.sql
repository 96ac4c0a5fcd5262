-- Reads, writes, deletes and bytes of each tier in equal stretches of time; stretches without any are 0.
WITH counted AS (
    SELECT tier, (ts_ns - $first_ns) // $bucket_ns AS bucket,
        count(*) FILTER (op = 'read') AS reads, count(*) FILTER (op = 'write') AS writes,
        count(*) FILTER (op = 'delete') AS deletes,
        coalesce(sum(length_bytes) FILTER (op = 'read'), 0)::BIGINT AS read_bytes,
        coalesce(sum(length_bytes) FILTER (op = 'write'), 0)::BIGINT AS written_bytes
    FROM trace
    GROUP BY ALL
),
grid AS (
    SELECT tier, bucket
    FROM (SELECT DISTINCT tier FROM counted), (SELECT unnest(range($buckets::BIGINT)) AS bucket)
)
SELECT tier, $first_ns + bucket * $bucket_ns AS start_ns,
    coalesce(reads, 0) AS reads, coalesce(writes, 0) AS writes, coalesce(deletes, 0) AS deletes,
    coalesce(read_bytes, 0) AS read_bytes, coalesce(written_bytes, 0) AS written_bytes
FROM grid LEFT JOIN counted USING (tier, bucket)
ORDER BY tier, start_ns
