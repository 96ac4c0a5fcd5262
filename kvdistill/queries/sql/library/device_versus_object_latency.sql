-- Latency of object operations against device latency by second and direction. If the gap grows, the time goes to queueing
-- or the program, not the device. Covers all tiers on the probed devices of one run with its probes, warm-up included.
-- Needs: ops, blocks.
WITH objects_by_second AS (
    SELECT origin, op::VARCHAR AS direction, completed_ns // 1_000_000_000 AS second, count(*) AS operations,
        avg(completed_ns - submitted_ns) AS object_mean_ns, avg(completed_ns - scheduled_ns) AS object_response_mean_ns
    FROM ops
    WHERE outcome = 'ok' AND engine IN ('uring', 'threads') AND op <> 'delete'
    GROUP BY ALL
),
blocks_by_second AS (
    SELECT origin, if(contains(rwbs, 'R'), 'read', 'write') AS direction, complete_ns // 1_000_000_000 AS second,
        count(*) AS device_requests, avg(issue_ns - insert_ns) AS q2d_mean_ns, avg(complete_ns - issue_ns) AS d2c_mean_ns
    FROM blocks
    WHERE complete_ns IS NOT NULL AND NOT contains(rwbs, 'D') AND (contains(rwbs, 'R') OR contains(rwbs, 'W'))
    GROUP BY ALL
)
SELECT origin, direction, second, operations, object_mean_ns, object_response_mean_ns, device_requests, q2d_mean_ns,
    d2c_mean_ns
FROM objects_by_second FULL JOIN blocks_by_second USING (origin, direction, second)
ORDER BY ALL
