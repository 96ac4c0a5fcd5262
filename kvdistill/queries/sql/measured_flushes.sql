-- Cache flushes of one device by `processes` (by all if null): empty requests with flags that begin with F.
SELECT count(*) AS flushes
FROM measured
WHERE
    device = $device AND bytes = 0 AND starts_with(rwbs, 'F') AND complete_ns IS NOT NULL
    AND ($processes IS NULL OR list_contains($processes, coalesce(pid, -1)))
