-- Block requests from the events of blkparse. Events of one device and first sector between two completions are one
-- request: queued first (Q of a bio, G of a request, I in the scheduler), issued last, completed once. A merged bio (Q, M) is
-- no request, nor is the empty one that ends a flush (C WS 0), after the kernel's own request for it (FN).
WITH unmerged AS (
    SELECT * FROM events
    WHERE action IN ('Q', 'G', 'I', 'D', 'C', 'M')
    QUALIFY action <> 'M'
        AND (action <> 'Q' OR lead(action, 1, '') OVER (PARTITION BY file, device, sector ORDER BY ns, line) <> 'M')
),
numbered AS (
    SELECT *,
        coalesce(count(*) FILTER (action = 'C') OVER (
            PARTITION BY file, device, sector ORDER BY ns, line ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), 0) AS request
    FROM unmerged
)
SELECT
    min(ns) FILTER (action IN ('Q', 'G', 'I')) AS insert_ns,
    max(ns) FILTER (action = 'D') AS issue_ns,
    max(ns) FILTER (action = 'C') AS complete_ns,
    device, sector,
    512 * coalesce(arg_max(sectors, (ns, line)) FILTER (action = 'D'), max(sectors)) AS bytes,
    coalesce(arg_max(rwbs, (ns, line)) FILTER (action = 'D'), max(rwbs)) AS rwbs,
    arg_min(pid, (ns, line)) FILTER (action <> 'C') AS pid,
    arg_min(said, (ns, line)) FILTER (action <> 'C' AND said <> '') AS comm,
    abs(TRY_CAST(max(said) FILTER (action = 'C') AS INTEGER)) AS error
FROM numbered
GROUP BY file, device, sector, request
HAVING bool_or(action = 'D') OR bool_or(action = 'C') AND max(sectors) > 0
