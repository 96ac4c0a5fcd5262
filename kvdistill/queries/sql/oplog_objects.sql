-- The objects of the operations `done`, by the names in `objects`: how long each is at least, and whether it was read
-- before it was written, so that it was there from the start. What failed may have failed because nothing was there.
CREATE TABLE named AS
SELECT object_id, coalesce(key, 'object/' || object_id) AS name,
    greatest(coalesce(size_bytes, 0), extent_bytes) AS size_bytes, is_prior
FROM (
    SELECT object_id, coalesce(max(offset_bytes + length_bytes) FILTER (op <> 2), 0) AS extent_bytes,
        arg_min(op = 0 AND error = '', row) AS is_prior
    FROM done
    GROUP BY object_id
) LEFT JOIN objects USING (object_id)
