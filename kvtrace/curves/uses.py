"""What one cache does with a trace's references."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Uses:
    """What one cache does with all references."""

    hits: int
    """References in the leading run of their request."""
    inserts: int
    """References that were not there, and were inserted."""
