-- Bytes transferred and operations completed in equal windows by tier; 0 without any. An operation's bytes are spread over
-- its time in flight: operations that complete together were not transferred in that moment.
WITH in_flight AS (
    SELECT tier, op, bytes, completed_ns - $first_ns AS ended,
        least(coalesce(submitted_ns, completed_ns), completed_ns) - $first_ns AS began
    FROM measured
    WHERE outcome = 'ok' AND engine <> 'sim'
),
spread AS (
    SELECT *, unnest(range(greatest(began, 0) // $bucket_ns, ended // $bucket_ns + 1)) AS bucket FROM in_flight
),
shared AS (
    SELECT tier, op, bucket, bucket = ended // $bucket_ns AS is_end,
        bytes * CASE WHEN ended > began
            THEN (least(ended, (bucket + 1) * $bucket_ns) - greatest(began, bucket * $bucket_ns)) / (ended - began)
            ELSE 1 END AS moved
    FROM spread
),
counted AS (
    SELECT tier, bucket,
        count(*) FILTER (is_end AND op = 'read') AS reads, count(*) FILTER (is_end AND op = 'write') AS writes,
        count(*) FILTER (is_end AND op = 'delete') AS deletes,
        round(coalesce(sum(moved) FILTER (op = 'read'), 0))::BIGINT AS read_bytes,
        round(coalesce(sum(moved) FILTER (op = 'write'), 0))::BIGINT AS written_bytes
    FROM shared
    GROUP BY ALL
),
grid AS (
    SELECT tier, bucket
    FROM (SELECT DISTINCT tier FROM counted), (SELECT unnest(range($buckets::BIGINT)) AS bucket)
)
SELECT tier, $start_ns + bucket * $bucket_ns AS start_ns,
    coalesce(reads, 0) AS reads, coalesce(writes, 0) AS writes, coalesce(deletes, 0) AS deletes,
    coalesce(read_bytes, 0) AS read_bytes, coalesce(written_bytes, 0) AS written_bytes
FROM grid LEFT JOIN counted USING (tier, bucket)
ORDER BY tier, start_ns
