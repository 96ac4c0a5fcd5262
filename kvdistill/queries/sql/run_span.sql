-- When the first operation of what is measured was submitted and the last one completed, on tiers that move bytes.
SELECT min(submitted_ns) AS first_ns, max(completed_ns) AS last_ns
FROM measured
WHERE outcome = 'ok' AND engine <> 'sim'
