"""Limits of a replay: the queue depth, and whether its memory suffices, checked before it starts.

The depth is what the user says; else 8 in a closed loop, and in an open loop what memory allows. An open loop that
holds due operations back measures itself, so its limit is one that a drive hardly reaches, halved while the buffers
would take more than their part of the memory. Memory is checked first because libc and NumPy do not survive a shortage.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence

import msgspec

from kvreplay.config.config import MAX_QUEUE_DEPTH, POOL_BYTES, Config
from kvreplay.engine.engine import EngineName
from kvreplay.plan.buffers import buffer_bytes
from kvreplay.tiers.ram import RamTier, available_bytes
from kvreplay.tiers.tier import Tier, copied, goes_by_ring, has_times
from kvtrace.core.errors import OutOfMemory
from kvtrace.core.units import format_bytes

THREADS = 128
"""In an open loop where each I/O in flight takes a thread."""
BUFFERS_PART = 4
"""Buffers may take this part of the memory that is available and that no tier needs; most are never touched."""
ASKED = "--queue-depth"


def with_depth(
    config: Config, tiers: Sequence[Tier | None], peak_bytes: Sequence[int], *, is_pooled: bool = False
) -> tuple[Config, str]:
    """Choose the queue depth: return `config` with it, and the reason; `peak_bytes` are the most bytes on each tier.

    `is_pooled` says that the buffers of an open loop come out of a pool, the default one if none was asked for.
    """
    if config.queue_depth is not None:
        return config, ASKED
    if config.speed is None:
        why = "the default of a closed loop"
        if config.pool is not None and buffer_bytes(config.depth, config.io_bytes) > config.pool:
            return msgspec.structs.replace(config, queue_depth=_in_pool(config.pool, config.io_bytes)), "--pool"
        return msgspec.structs.replace(config, queue_depth=config.depth), why
    depth, why = MAX_QUEUE_DEPTH, "the most"
    if _takes_threads(config, tiers):
        depth, why = THREADS, "a thread each"
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    available = available_bytes()
    held = sum(peak for tier, peak in zip(tiers, peak_bytes, strict=True) if isinstance(tier, RamTier))
    most = None if available is None else max(0, available - held) // BUFFERS_PART
    while depth > config.depth:
        if 0 <= files < depth:
            why = "open files, ulimit -n"
        elif most is not None and buffer_bytes(depth, config.io_bytes) > most:
            why = "memory for buffers"
        else:
            break
        depth //= 2
    pool = config.pool or (POOL_BYTES if is_pooled else None)
    if pool is not None and buffer_bytes(depth, config.io_bytes) > pool:
        depth, why = max(config.depth, _in_pool(pool, config.io_bytes)), "--pool, the memory of buffers"
    return msgspec.structs.replace(config, queue_depth=depth), why


def _in_pool(pool: int, io_bytes: int) -> int:
    """Return the most I/Os in flight whose buffers fit `pool`, at least 1."""
    depth = 1
    while depth < MAX_QUEUE_DEPTH and buffer_bytes(depth + 1, io_bytes) <= pool:
        depth += 1
    return depth


def _takes_threads(config: Config, tiers: Sequence[Tier | None]) -> bool:
    working = [t for t in tiers if t is not None and has_times(t)]
    is_ring = all(goes_by_ring(t) or copied(t) for t in working)
    return config.engine == EngineName.THREADS or not is_ring


PROCESS_BYTES = 192 << 20
"""What the programs' own code takes resident, in a replay of nothing."""
PROCESS_ADDRESS_BYTES = 7 << 28
"""The address space of the same: with libraries, and stacks and pools of its threads."""
ROW_BYTES = 150
"""What a row takes while it is in the ring, and what is made of it as it ends."""


def check_memory(rows: int = 0, buffers_bytes: int = 0) -> None:
    """Check that a replay of `rows` rows with `buffers_bytes` of I/O buffers fits; tiers of RAM check theirs later.

    Raises:
        OutOfMemory: it does not, with both figures.

    """
    row_check(buffers_bytes)(rows)


def row_check(buffers_bytes: int) -> Callable[[int], None]:
    """Return `check_memory` for a number of rows that is not known yet, by the memory that is available now."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    available = available_bytes()

    def check(rows: int) -> None:
        extra = rows * ROW_BYTES + buffers_bytes
        parts = f"{rows:,} rows, {format_bytes(buffers_bytes)} of buffers" if extra else "before any row"
        if limit not in (resource.RLIM_INFINITY, -1) and PROCESS_ADDRESS_BYTES + extra > limit:
            raise OutOfMemory(
                f"the replay needs about {format_bytes(PROCESS_ADDRESS_BYTES + extra)} of address space ({parts}), but "
                f"this process may have {format_bytes(limit)} (ulimit -v); raise that limit{_less(rows)}"
            )
        if available is not None and PROCESS_BYTES + extra > available:
            raise OutOfMemory(
                f"the replay needs about {format_bytes(PROCESS_BYTES + extra)} of memory ({parts}), but only "
                f"{format_bytes(available)} is available; free some{_less(rows)}"
            )

    return check


def _less(rows: int) -> str:
    return ", or replay less with --limit" if rows else ""
