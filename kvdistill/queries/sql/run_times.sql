-- How many operations have a latency (completed - submitted), a response time (completed - scheduled) and a lateness
-- (submitted - scheduled), their mean and longest, by tier and operation, over the view `times`.
SELECT measure, tier, op, count(*) AS count, avg(time_ns) AS mean_ns, max(time_ns) AS max_ns
FROM times
GROUP BY ALL
ORDER BY measure, tier, op
