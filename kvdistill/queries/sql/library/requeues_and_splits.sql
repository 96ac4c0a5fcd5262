-- What the block layer did to requests: merges, splits, requeues (issues that a busy driver returned), errors, and
-- what the probes lost: completions that the kernel did not show are no requeues.
-- Needs: probes.
SELECT origin, direction, bios, bios_merged, splits, queued, issued, requeues, requeues / nullif(issued, 0)
        AS requeues_per_issue, completed, errors, ends_not_seen, lost_events, lost_requests
FROM probes
ORDER BY ALL
