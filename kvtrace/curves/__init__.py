"""Hits against capacity."""
