-- Imported block requests with their direction, named as `kvreplay probe` does; a flush may be an empty write.
SELECT *,
    CASE WHEN contains(rwbs, 'D') THEN 'discard' WHEN bytes = 0 AND starts_with(rwbs, 'F') THEN 'flush'
        WHEN contains(rwbs, 'W') THEN 'write' WHEN contains(rwbs, 'R') THEN 'read' ELSE 'other' END AS op
FROM blocks
