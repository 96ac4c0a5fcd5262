-- All bursts in order of time, each with the gap before it.
SELECT burst, gap FROM bursts ORDER BY start_ns
