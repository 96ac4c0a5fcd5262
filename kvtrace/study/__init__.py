"""Many configurations beside each other: each simulated once, on all cores, into one table and one answer."""
