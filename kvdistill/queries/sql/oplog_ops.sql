-- Operations of a run on one tier by submission; -1 for no request, or no completion.
SELECT
    submitted_ns AS ts_ns,
    CASE op WHEN 'read' THEN 0 WHEN 'write' THEN 1 ELSE 2 END::TINYINT AS op,
    object_id,
    0::BIGINT AS offset_bytes,
    coalesce(bytes, 0)::BIGINT AS length_bytes,
    coalesce(request_id, -1)::BIGINT AS request_id,
    0::SMALLINT AS rank,
    coalesce(completed_ns, -1)::BIGINT AS end_ns,
    CASE WHEN outcome = 'ok' THEN '' ELSE outcome::VARCHAR END AS error
FROM ops
WHERE tier = $tier AND submitted_ns IS NOT NULL
ORDER BY submitted_ns, "row"
