"""What the shell offers as the value of an option of kvtrace: names that begin with what was typed.

The shell starts the program at each press of the tab key, so these functions import what they need
only when they are called.
"""

from __future__ import annotations


def presets(incomplete: str) -> list[str]:
    """Return the names of presets."""
    from kvtrace.sim.presets.preset import preset_names

    return [name for name in preset_names() if name.startswith(incomplete)]


def models(incomplete: str) -> list[str]:
    """Return the names of models."""
    from kvtrace.llm.catalogue import load_models

    return [name for name in load_models() if name.startswith(incomplete)]


def gpus(incomplete: str) -> list[str]:
    """Return the names of GPUs."""
    from kvtrace.llm.serving import GPUS, INSTANT

    return [name for name in (*GPUS, INSTANT) if name.startswith(incomplete)]


def routers(incomplete: str) -> list[str]:
    """Return the names of routers."""
    from kvtrace.sim.routers import Router

    return [name for name in Router if name.startswith(incomplete)]
