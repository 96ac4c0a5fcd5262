-- The objects of the `done` operations, by their `objects` names: minimum length, and whether a read precedes the first
-- write, so that the object existed from the start. A failed operation proves nothing: its object may have been missing.
CREATE TABLE named AS
SELECT object_id, coalesce(key, 'object/' || object_id) AS name,
    greatest(coalesce(size_bytes, 0), extent_bytes) AS size_bytes, is_prior
FROM (
    SELECT object_id, coalesce(max(offset_bytes + length_bytes) FILTER (op <> 2), 0) AS extent_bytes,
        arg_min(op = 0 AND error = '', row) AS is_prior
    FROM done
    GROUP BY object_id
) LEFT JOIN objects USING (object_id)
