-- The columns of an op log of sai3 and warp, for the `logged` operations on one of several hosts. A host is a hash of the
-- object's number (times 2^64 over the golden ratio), so that no pattern of numbers lands on one host.
SELECT
    row_number() OVER (ORDER BY row) - 1 AS idx,
    0 AS thread,
    ['GET', 'PUT', 'DELETE'][op + 1] AS op,
    'kvdistill' AS client_id,
    1 AS n_objects,
    -- A delete moves nothing; warp would count its bytes as throughput.
    if(op = 2, 0, length_bytes) AS bytes,
    $endpoint AS endpoint,
    name AS file,
    error,
    strftime(make_timestamp_ns(ts_ns + $first_unix_ns), '%Y-%m-%dT%H:%M:%S.%nZ') AS start,
    '' AS first_byte,
    '' AS last_byte,
    if(end_ns >= 0, strftime(make_timestamp_ns(end_ns + $first_unix_ns), '%Y-%m-%dT%H:%M:%S.%nZ'), '') AS "end",
    if(end_ns >= 0, (end_ns - ts_ns)::VARCHAR, '') AS duration_ns,
    0 AS cat
FROM logged JOIN named USING (object_id)
WHERE object_id::HUGEINT * 11400714819323198485 % 18446744073709551616 // 4294967296 % $hosts = $host
ORDER BY row
