-- Block request latency by device and direction: queued in the kernel (Q2D) and in the device (D2C).
-- Needs: blocks.
SELECT origin, device, CASE WHEN contains(rwbs, 'D') THEN 'discard' WHEN contains(rwbs, 'W') THEN 'write'
        WHEN contains(rwbs, 'R') THEN 'read' ELSE 'other' END AS direction,
    count(*) AS requests, percentile(issue_ns - insert_ns, 0.5) AS q2d_p50_ns,
    percentile(issue_ns - insert_ns, 0.99) AS q2d_p99_ns, percentile(complete_ns - issue_ns, 0.5) AS d2c_p50_ns,
    percentile(complete_ns - issue_ns, 0.99) AS d2c_p99_ns, max(complete_ns - issue_ns) AS d2c_max_ns
FROM blocks
GROUP BY ALL
ORDER BY ALL
