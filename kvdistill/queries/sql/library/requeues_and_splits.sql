-- Merges, splits, requeues (issues that a busy driver returned), errors and events lost by the probes. A completion that the
-- probes missed is not counted as a requeue.
-- Needs: probes.
SELECT origin, direction, bios, bios_merged, splits, queued, issued, requeues, requeues / nullif(issued, 0)
        AS requeues_per_issue, completed, errors, ends_not_seen, lost_events, lost_requests
FROM probes
ORDER BY ALL
