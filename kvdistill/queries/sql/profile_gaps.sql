-- Histogram slots of the sizes of bursts, in operations, and of the gaps between bursts.
SELECT measure, slot(value)::BIGINT AS slot, count(*) AS instants, sum(value)::BIGINT AS total
FROM (UNPIVOT (SELECT burst, gap FROM bursts) ON burst, gap INTO NAME measure VALUE value)
GROUP BY measure, slot
ORDER BY measure, slot
