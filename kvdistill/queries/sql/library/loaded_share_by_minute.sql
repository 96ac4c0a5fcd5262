-- Loaded share of the KV that was loaded or newly stored (phases load and prefill), in objects and bytes, by minute of
-- simulated time. This is not a hit rate: computed KV that no tier stores has no row, and stored KV need not have been looked
-- up. `kvtrace info` and `kvdistill report` print the hit rates that the simulation counted.
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
