-- Times of imported block requests in the scheduler (q2d) and on the device (d2c).
SELECT 'q2d' AS measure, '' AS tier, op, issue_ns - insert_ns AS time_ns FROM requests WHERE issue_ns >= insert_ns
UNION ALL
SELECT 'd2c', '', op, complete_ns - issue_ns FROM requests WHERE complete_ns >= issue_ns
