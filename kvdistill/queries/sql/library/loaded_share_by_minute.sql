-- Which share of the KV that prompts asked for was found in a tier, minute by minute of the trace's clock: objects and
-- bytes loaded, over loaded or computed anew (phases load and prefill).
-- Needs: trace.
SELECT origin, ts_ns // 60_000_000_000 AS minute,
    count(*) FILTER (phase = 'load') AS loaded_objects,
    count(*) FILTER (phase = 'prefill') AS computed_objects,
    count(*) FILTER (phase = 'load') / count(*) AS hit_ratio,
    sum(length_bytes) FILTER (phase = 'load') / sum(length_bytes) AS byte_hit_ratio
FROM trace
WHERE (phase = 'load' AND op = 'read') OR (phase = 'prefill' AND op = 'write')
GROUP BY ALL
ORDER BY ALL
