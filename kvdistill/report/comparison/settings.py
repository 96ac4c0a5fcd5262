"""The settings in which sides differ: what changes a run most first, and what only some sides have by itself."""

from __future__ import annotations

from typing import Any

_FIRST = (
    "tiers.", "trace", "preset", "model", "seed", "speed", "queue_depth", "io_bytes", "engine", "is_buffered",
    "window.", "limit",
)  # fmt: skip
_LAST = ("version", "host.")

Settings = dict[str, list[Any]]
"""One value a side, by name."""


def in_order(settings: Settings) -> Settings:
    """Return `settings` with what changes a run most first: its targets, its load, how it is done; then the host."""
    return {name: settings[name] for name in sorted(settings, key=_place)}


def _place(name: str) -> int:
    for place, start in enumerate(_FIRST):
        if name.startswith(start):
            return place
    return len(_FIRST) + name.startswith(_LAST)


def split(settings: Settings) -> tuple[Settings, Settings]:
    """Return those of `settings` to be read first, and those that only some sides have.

    One side may be of a version or a machine that says more than another: that is no difference between them. A target
    that only one has is one, and so is an option that is null on one: it was not given.
    """
    one_sided = [
        name for name, values in settings.items() if None in values and "." in name and not name.startswith("tiers.")
    ]
    return (
        {name: values for name, values in settings.items() if name not in one_sided},
        {name: settings[name] for name in one_sided},
    )
