"""The free fields of run.json, of which only some parts are looked at: those must have their types."""

from __future__ import annotations

from typing import Any

import msgspec

from kvtrace.core.metadata import Count


class _Host(msgspec.Struct):
    kernel: str | None = None
    cpu_model: str | None = None
    cpus: Count | None = None


class _Target(msgspec.Struct):
    drives: list[dict[str, Any]] | None = None


class KnownFacts(msgspec.Struct):
    """The parts of the free fields that readers look at."""

    host: _Host
    tiers: dict[str, _Target]
