"""Which rows wait for which, compiled."""
