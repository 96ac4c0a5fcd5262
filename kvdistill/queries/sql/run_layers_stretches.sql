-- Stretches of time in which any request of one direction was at the device, or, with $is_queued, at the device or
-- queued for it. What has no completion is left out; a flush without an issue counts as issued when it was queued.
WITH spans AS (
    SELECT if($is_queued, insert_ns, coalesce(issue_ns, insert_ns)) AS start_ns, complete_ns AS end_ns
    FROM blocks
    WHERE complete_ns IS NOT NULL AND insert_ns IS NOT NULL
        AND if($op = 'read', starts_with(rwbs, 'R'), contains(rwbs, 'W') OR starts_with(rwbs, 'F'))
),
marked AS (
    SELECT start_ns, end_ns,
        max(end_ns) OVER (ORDER BY start_ns, end_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before_ns
    FROM spans
),
numbered AS (
    SELECT start_ns, end_ns,
        count_if(before_ns IS NULL OR before_ns < start_ns) OVER (ORDER BY start_ns, end_ns ROWS UNBOUNDED PRECEDING)
            AS stretch
    FROM marked
)
SELECT min(start_ns) AS start_ns, max(end_ns) AS end_ns
FROM numbered
GROUP BY stretch
ORDER BY start_ns
