-- Points of the distributions of the times: the values at `$parts` (ten-thousandths), by nearest rank, where
-- there are enough operations for that point. Exact without sorting all: only slots in which a wanted rank lies are.
WITH slotted AS NOT MATERIALIZED (
    SELECT *, CASE WHEN time_ns < 1 THEN -1 ELSE floor(log2(time_ns) * 1024)::INT END AS slot FROM times
),
counted AS (
    SELECT measure, tier, op, slot, count(*) AS n FROM slotted GROUP BY ALL
),
placed AS (
    SELECT *,
        sum(n) OVER (PARTITION BY measure, tier, op) AS total,
        sum(n) OVER (PARTITION BY measure, tier, op ORDER BY slot) - n AS before
    FROM counted
),
wanted AS (
    SELECT measure, tier, op, slot, part, (total * part + 9999) // 10000 - before AS rank
    FROM placed, (SELECT unnest($parts) AS part)
    WHERE total * part >= 10000 AND (part = 10000 OR total * (10000 - part) >= 10000)
        AND (total * part + 9999) // 10000 BETWEEN before + 1 AND before + n
),
ranked AS (
    SELECT *, row_number() OVER (PARTITION BY measure, tier, op, slot ORDER BY time_ns) AS rank
    FROM slotted SEMI JOIN wanted USING (measure, tier, op, slot)
)
SELECT measure, tier, op, part / 10000 AS share, time_ns
FROM wanted JOIN ranked USING (measure, tier, op, slot, rank)
ORDER BY measure, tier, op, part
