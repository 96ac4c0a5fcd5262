"""Closed loops of a file: which requests wait for which others, and how long after them they come."""
