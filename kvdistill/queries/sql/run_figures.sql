-- What a replay measured by tier and operation. Bandwidth and rate: completed operations over the time from
-- the first submission to the last completion. Simulated tiers have no times of a device: null. Deletes move nothing:
-- null. Rows that were left out, such as those of other nodes, have no engine.
SELECT tier, op::VARCHAR AS op, coalesce(any_value(engine::VARCHAR) FILTER (engine <> 'none'), 'none') AS engine,
    count(*) AS rows, count(*) FILTER (outcome = 'ok') AS operations,
    count(*) FILTER (outcome IN ('error', 'short', 'corrupt')) AS errors,
    count(*) FILTER (outcome = 'corrupt') AS corrupt,
    count(*) FILTER (outcome = 'skipped') AS skipped,
    sum(bytes) FILTER (outcome = 'ok' AND op <> 'delete')::BIGINT AS bytes,
    sum(io_bytes) FILTER (outcome = 'ok')::BIGINT AS io_bytes,
    max(completed_ns) FILTER (outcome = 'ok') - min(submitted_ns) FILTER (outcome = 'ok') AS span_ns
FROM measured
GROUP BY tier, op
ORDER BY tier, op
