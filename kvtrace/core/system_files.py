"""The small files in which the kernel tells of itself, in /proc and /sys."""

from __future__ import annotations

from pathlib import Path


def sys_text(path: Path) -> str | None:
    """Return the text of a small system file; null if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
