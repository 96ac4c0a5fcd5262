-- Imported times in buckets of powers of two, by layer and direction. Times without requests are left out.
WITH powers AS (
    SELECT measure, op, CASE WHEN time_ns < 1 THEN 0 ELSE length(ltrim(bin(time_ns), '0')) END AS power FROM times
)
SELECT measure, op, CASE power WHEN 0 THEN 0 ELSE 1::BIGINT << (power - 1) END AS "from", 1::BIGINT << power AS below,
    count(*) AS count
FROM powers
GROUP BY ALL
ORDER BY ALL
