"""Eviction policies, one a file."""
