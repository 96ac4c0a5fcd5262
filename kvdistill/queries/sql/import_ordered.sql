-- Imported operations in order of time, as rows of the trace and of the measured operations. A delete frees its object's
-- bytes; deletes and failed operations transfer none.
CREATE TABLE ordered AS
SELECT row_number() OVER (ORDER BY start_ns, file, line) - 1 AS row, start_ns AS ts_ns, op, object_id, offset_bytes,
    CASE WHEN op = 2 THEN coalesce(size_bytes, 0) ELSE length_bytes END AS length_bytes,
    start_ns AS submitted_ns, end_ns AS completed_ns, outcome,
    CASE WHEN outcome <> 0 THEN NULL WHEN op = 2 THEN 0 ELSE length_bytes END AS bytes,
    CASE WHEN outcome = 0 THEN io_bytes END AS io_bytes
FROM input JOIN objects USING (name)
