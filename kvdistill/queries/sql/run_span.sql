-- First submission and last completion of measured operations, on tiers that transfer bytes.
SELECT min(submitted_ns) AS first_ns, max(completed_ns) AS last_ns
FROM measured
WHERE outcome = 'ok' AND engine <> 'sim'
