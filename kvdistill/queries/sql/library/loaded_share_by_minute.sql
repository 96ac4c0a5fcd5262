-- Which share was loaded of the KV that was loaded or newly stored (phases load and prefill), objects and bytes, minute
-- by minute of the trace's clock. It is no hit ratio: what was computed and stored in no tier has no row, and what is
-- stored need not have been looked for. `kvtrace info` and `kvdistill report` have the hits that the simulation counted.
-- Needs: trace.
SELECT origin, ts_ns // 60_000_000_000 AS minute,
    count(*) FILTER (phase = 'load') AS loaded_objects,
    count(*) FILTER (phase = 'prefill') AS stored_objects,
    count(*) FILTER (phase = 'load') / count(*) AS loaded_share,
    sum(length_bytes) FILTER (phase = 'load') / sum(length_bytes) AS loaded_byte_share
FROM trace
WHERE (phase = 'load' AND op = 'read') OR (phase = 'prefill' AND op = 'write')
GROUP BY ALL
ORDER BY ALL
