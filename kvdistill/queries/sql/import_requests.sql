-- Imported block requests with their direction, named as `kvreplay probe` names them.
SELECT *,
    CASE WHEN contains(rwbs, 'D') THEN 'discard' WHEN contains(rwbs, 'W') THEN 'write' WHEN contains(rwbs, 'R') THEN 'read'
        WHEN contains(rwbs, 'F') THEN 'flush' ELSE 'other' END AS op
FROM blocks
