"""What the shell offers as the value of an option of kvdistill: names that begin with what was typed.

The shell starts the program at each press of the tab key, so these functions import what they need
only when they are called.
"""

from __future__ import annotations

import os
from pathlib import Path

from kvtrace.core.errors import KvError
from kvtrace.core.files import MANIFEST


def presets(incomplete: str) -> list[str]:
    """Return the names of presets of kvtrace."""
    import kvtrace

    return [preset.name for preset in kvtrace.presets() if preset.name.startswith(incomplete)]


def models(incomplete: str) -> list[str]:
    """Return the names of models of kvtrace."""
    import kvtrace

    return [model.name for model in kvtrace.models() if model.name.startswith(incomplete)]


def queries(incomplete: str) -> list[str]:
    """Return the names of the library's queries."""
    import kvdistill

    names = (entry.name for entry in kvdistill.named_queries())
    return [name for name in names if name.startswith(incomplete)]


def tiers(incomplete: str) -> list[str]:
    """Return the tiers of the trace that the command line names."""
    import kvtrace

    # The line is read here because click has no arguments while the last option lacks its value.
    # bash has it in the first variable, zsh and fish in the second.
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    for path in map(Path, line.split()):
        is_file = path.name.endswith((".parquet", ".csv.zst")) and path.is_file()
        if is_file or (path / MANIFEST).is_file():
            try:
                names = kvtrace.read_trace(path).tiers
            except KvError:
                return []
            return [name for name in names if name.startswith(incomplete)]
    return []
