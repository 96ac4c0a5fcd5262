-- Number the objects of imported operations by first appearance. The size is the farthest byte of a successful read or
-- write; null without one. White space in names becomes %20 and the like: names of a trace have none.
CREATE TABLE objects AS
SELECT name,
    row_number() OVER (ORDER BY first_ns, first_file, first_line) - 1 AS object_id,
    regexp_replace(replace(replace(name, ' ', '%20'), chr(9), '%09'), '\s', '%0A', 'g') AS key,
    size_bytes
FROM (
    SELECT name, min(start_ns) AS first_ns, arg_min(file, (start_ns, file, line)) AS first_file,
        arg_min(line, (start_ns, file, line)) AS first_line,
        max(offset_bytes + length_bytes) FILTER (op <> 2 AND outcome = 0) AS size_bytes
    FROM input
    GROUP BY name
)
