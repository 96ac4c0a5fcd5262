-- Operations on objects that a replay completed on one tier, by submission; their offsets come from `offsets`.
SELECT
    submitted_ns AS ts_ns,
    CASE op WHEN 'read' THEN 0 WHEN 'write' THEN 1 ELSE 2 END::TINYINT AS op,
    object_id,
    coalesce(offset_bytes, 0) AS offset_bytes,
    coalesce(bytes, io_bytes, 0)::BIGINT AS length_bytes,
    coalesce(request_id, -1)::BIGINT AS request_id,
    (-1)::INTEGER AS stage,
    completed_ns
FROM measured LEFT JOIN offsets USING (row)
WHERE tier = $tier AND outcome = 'ok' AND submitted_ns IS NOT NULL
ORDER BY submitted_ns, "row"
