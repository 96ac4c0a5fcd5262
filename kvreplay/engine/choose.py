"""Which engine a run takes: what was asked for, else io_uring where files and the kernel allow it; always said."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from kvreplay.engine import ring
from kvreplay.engine.threads import ThreadEngine
from kvreplay.engine.uring import UringEngine
from kvreplay.tiers.tier import DeviceTier, RingExtents, RingTier, has_times
from kvtrace.core.errors import ConfigError, DeviceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvreplay.engine.job import IoEngine
    from kvreplay.tiers.tier import Tier


class EngineName(StrEnum):
    """What `--engine` takes."""

    AUTO = "auto"
    THREADS = "threads"
    URING = "uring"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The engine of a run, and why it is this one."""

    engine: IoEngine
    because: str


def check_name(text: str) -> EngineName:
    """Return the engine that `--engine` names; ConfigError if there is none."""
    try:
        return EngineName(text)
    except ValueError:
        raise ConfigError(f"--engine {text}: choose {', '.join(EngineName)}") from None


def choose(wanted: EngineName, tiers: Sequence[Tier | None], depth: int, io_bytes: int) -> Chosen:
    """Return the engine to run with; tell the tiers of files which it is, and those on a GPU of its buffers.

    Raises:
        DeviceError: io_uring was asked for by name and the kernel does not give it.

    """
    chosen = _chosen(wanted, _is_for_threads(tiers), depth, io_bytes)
    for tier in tiers:
        if isinstance(tier, RingTier | RingExtents):
            tier.engine = chosen.engine.name
        if isinstance(tier, DeviceTier):
            tier.pin(chosen.engine.arenas)
    return chosen


def _is_for_threads(tiers: Sequence[Tier | None]) -> bool:
    """Return whether a thread an I/O is the shorter way: tiers do something, and none of it is for io_uring."""
    working = [t for t in tiers if t is not None and has_times(t)]
    return bool(working) and not any(isinstance(t, RingTier | RingExtents) for t in working)


def _chosen(wanted: EngineName, is_for_threads: bool, depth: int, io_bytes: int) -> Chosen:
    if wanted is EngineName.THREADS:
        return Chosen(ThreadEngine(depth, io_bytes), "--engine threads")
    if wanted is EngineName.AUTO and is_for_threads:
        return Chosen(ThreadEngine(depth, io_bytes), "no tier has files, which io_uring is for")
    refused = ring.refusal()
    if refused is None:
        try:
            return Chosen(UringEngine(depth, io_bytes), "--engine uring" if wanted is EngineName.URING else "auto")
        except ring.RingRefused as error:
            refused = str(error)
    if wanted is EngineName.URING:
        raise DeviceError(f"--engine uring: {refused}; say --engine threads")
    return Chosen(ThreadEngine(depth, io_bytes), f"no io_uring: {refused}")
