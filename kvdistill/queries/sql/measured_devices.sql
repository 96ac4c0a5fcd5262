-- Devices with reads or writes.
SELECT DISTINCT device FROM measured WHERE regexp_matches(rwbs, '[RW]') AND issue_ns IS NOT NULL ORDER BY device
