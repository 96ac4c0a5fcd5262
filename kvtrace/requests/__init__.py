"""Request sources: readers of published traces and logs, and synthetic users."""
