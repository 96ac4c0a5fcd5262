-- Reads and writes by stage of a request, which may run at once: maximum and mean. Null without stages.
SELECT max(ops)::BIGINT AS max_stage_ops, avg(ops) AS mean_stage_ops
FROM (
    SELECT count(*) AS ops
    FROM ios
    WHERE op <> 2 AND io_bytes > 0 AND request_id >= 0 AND stage >= 0
    GROUP BY request_id, stage
)
