-- One row a run: trace, configuration, completeness and verdict.
-- Needs: runs.
SELECT origin, trace, status, verdict, loop, speed, engine, queue_depth, operations, errors, wall_ns / 1e9 AS wall_s,
    started
FROM runs
ORDER BY started, origin
