-- The 20 requests with the longest storage time: time with any of their operations in flight.
-- Needs: measured_requests.
SELECT origin, request_id, storage_ns, operations, read_bytes, written_bytes,
    submitted_ns - scheduled_ns AS lateness_ns, completed_ns - submitted_ns AS span_ns,
    completed_ns - scheduled_ns AS response_span_ns
FROM measured_requests
WHERE storage_ns IS NOT NULL
ORDER BY storage_ns DESC, origin, request_id
LIMIT 20
