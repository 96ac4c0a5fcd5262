-- Time of the operations of one direction during which a request of that direction was at the device or, with $is_queued,
-- at the device or queued. Requests without a completion are left out; a flush without an issue counts from its queueing.
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
),
-- Stretches in which any request was there do not overlap; `sum_ns` is how long they last up to the end of each.
stretches AS (
    SELECT start_ns, end_ns, sum(end_ns - start_ns) OVER (ORDER BY start_ns ROWS UNBOUNDED PRECEDING) AS sum_ns
    FROM (SELECT min(start_ns) AS start_ns, max(end_ns) AS end_ns FROM numbered GROUP BY stretch)
),
-- What lies within an operation is what lies before its end, less what lies before its begin.
edges AS (
    SELECT unnest([submitted_ns, completed_ns]) AS at_ns, unnest([-1, 1]) AS sign
    FROM ops
    WHERE outcome = 'ok' AND engine IN ('threads', 'uring') AND op::VARCHAR = $op
)
SELECT coalesce(sum(sign * (sum_ns - greatest(end_ns - at_ns, 0))), 0)::BIGINT AS within_ns
FROM edges ASOF JOIN stretches ON edges.at_ns >= stretches.start_ns
