"""Checks of a user's options, warm-up, queue depth and memory, before any storage is touched.

The depth is the user's; else 8 in a closed loop, and in an open loop what memory allows. An
open loop that holds due operations back measures itself, so its limit is one that a drive hardly
reaches, halved while the buffers would take more than their part of the memory. Memory is checked
first because libc and NumPy do not survive a shortage.
"""

from __future__ import annotations

import resource
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kvreplay.engine.native_engine import EngineName
from kvreplay.engine.share import check_submitters
from kvreplay.plan import pacing
from kvreplay.plan.buffers import PAGE_BYTES
from kvreplay.plan.contents import check_ratios
from kvreplay.plan.pacing import Pacer
from kvreplay.plan.replay_config import (
    DEFAULT_REQUEST_TIMEOUT,
    MAX_QUEUE_DEPTH,
    MAX_SEED,
    POOL_BYTES,
    Config,
    Precondition,
)
from kvreplay.plan.tier_targets import named
from kvreplay.plan.window import Facts
from kvreplay.tiers.ram import RamTier
from kvreplay.tiers.s3_clients.address import is_object_store
from kvreplay.tiers.s3_clients.make_client import ClientName
from kvreplay.tiers.s3_clients.store_client import Balance
from kvreplay.tiers.tier import FileLayout, Tier
from kvtrace.core.errors import ConfigError
from kvtrace.core.memory import available_bytes
from kvtrace.core.metrics.warmup import Warmup, parse_warmup
from kvtrace.core.parameters import named as named_parameter
from kvtrace.core.units import format_bytes, format_io_size

MAX_RETRIES = 20
MAX_IO_BYTES = 1 << 30  # of one call the kernel moves less than 2 GiB
THREADS = 128
"""Maximum queue depth of an open loop in which each I/O in flight takes a thread."""
BUFFERS_DIVISOR = 4
"""Buffers may take one part in this of the memory that is available and that no tier needs.

All that may be in use are touched before the run.
"""
GIVEN_DEPTH = "--queue-depth"


def check(config: Config) -> pacing.Pacer:
    """Check `config`, and return its pacer.

    ConfigError, which names the option, for a value that cannot be used.
    """
    if not 1 <= config.depth <= MAX_QUEUE_DEPTH:
        raise ConfigError(
            f"{named_parameter('queue_depth', config.depth)}: give 1 to {MAX_QUEUE_DEPTH}"
        )
    if not PAGE_BYTES <= config.io_bytes <= MAX_IO_BYTES or config.io_bytes % PAGE_BYTES:
        raise ConfigError(
            f"{named_parameter('io_bytes', config.io_bytes)}: give a multiple of 4096,"
            f" {MAX_IO_BYTES} at most"
        )
    need, available = config.depth * config.io_bytes, available_bytes()
    # The pool must have space for the given depth, or without one for at least one I/O.
    pooled = (config.queue_depth or 1) * config.io_bytes
    if config.pool is not None and pooled > config.pool:
        raise ConfigError(
            f"{named_parameter('pool', format_bytes(config.pool))}: {config.queue_depth or 1} I/Os"
            f" of {format_io_size(config.io_bytes)} in flight need {format_bytes(pooled)}; raise"
            f" {named_parameter('pool')}, or lower {named_parameter('io_bytes')} or"
            f" {named_parameter('queue_depth')}"
        )
    if available is not None and need > available // 2:
        raise ConfigError(
            f"{named_parameter('queue_depth', config.depth)} of"
            f" {named_parameter('io_bytes', config.io_bytes)} takes"
            f" {format_bytes(need)} of buffers, more than half of the {format_bytes(available)}"
            f" available; lower {named_parameter('queue_depth')} or {named_parameter('io_bytes')}"
        )
    check_submitters(config.submitters)
    for parameter, value, allowed in (
        ("engine", config.engine, tuple(EngineName)),
        ("fsync", config.fsync, ("never", "close")),
        ("advice", config.advice, ("none", "sequential", "dontneed")),
        ("on_error", config.on_error, ("stop", "continue")),
        ("layout", config.layout, tuple(FileLayout)),
        ("balance", config.balance, tuple(Balance)),
        ("s3_client", config.s3_client, tuple(ClientName)),
    ):
        if value not in allowed:
            raise ConfigError(f"{named_parameter(parameter, value)}: choose {' or '.join(allowed)}")
    if config.seed is not None and not 0 <= config.seed <= MAX_SEED:
        raise ConfigError(f"{named_parameter('seed', config.seed)}: give 0 to {MAX_SEED}")
    parse_warmup(config.warmup)
    config.runtime_ns, config.stall_ns, config.request_timeout_s  # noqa: B018 - refuses what is no time
    if config.is_histograms_only and not config.is_probed:
        raise ConfigError(
            f"{named_parameter('is_histograms_only')} is an option of {named_parameter('probes')};"
            f" add {named_parameter('probes')}"
        )
    if config.precondition not in (None, *Precondition):
        raise ConfigError(
            f"{named_parameter('precondition', config.precondition)}: choose"
            f" {' or '.join(Precondition)}"
        )
    _check_storage(config)
    check_ratios(config.dedup_ratio, config.compress_ratio, is_verified=config.is_verified)
    return pacing.choose(speed=config.speed, as_fast_as_possible=config.is_as_fast_as_possible)


def _check_storage(config: Config) -> None:
    if config.advice != "none" and not config.is_buffered:
        raise ConfigError(
            f"{named_parameter('advice', config.advice)} is for the page cache, which O_DIRECT"
            f" bypasses; add {named_parameter('buffered')}"
        )
    if config.advice == "dontneed" and config.fsync != "close":
        raise ConfigError(
            f"{named_parameter('advice')} dontneed drops written pages only once they are on the"
            f" drive; add {named_parameter('fsync')} close"
        )
    if config.checkpoint_depth is not None and not 1 <= config.checkpoint_depth <= MAX_QUEUE_DEPTH:
        raise ConfigError(
            f"{named_parameter('checkpoint_depth', config.checkpoint_depth)}: give 1 to"
            f" {MAX_QUEUE_DEPTH}"
        )
    has_storage = not all(
        named(target) or is_object_store(target) for target in config.tiers.values()
    )
    if config.endpoints and not any(map(is_object_store, config.tiers.values())):
        raise ConfigError(
            f"{named_parameter('endpoints')} is for object stores, and no"
            f" {named_parameter('tiers')} names one (s3://BUCKET/PREFIX); leave it out"
        )
    if (
        config.s3_client == ClientName.S3TORCHCONNECTOR
        and config.request_timeout != DEFAULT_REQUEST_TIMEOUT
    ):
        raise ConfigError(
            f"{named_parameter('request_timeout', config.request_timeout)}: {config.s3_client} has"
            " no such setting, and gives up a silent connection after about 60 s; leave it out"
        )
    if not 0 <= config.retries <= MAX_RETRIES:
        raise ConfigError(f"{named_parameter('retries', config.retries)}: give 0 to {MAX_RETRIES}")
    storage_options = {
        f"{named_parameter('precondition')} writes drives full": config.precondition,
        f"{named_parameter('is_gds')} moves files": config.is_gds,
    }
    for option_text, is_asked in storage_options.items():
        if is_asked and not has_storage:
            raise ConfigError(
                f"{option_text}, but no {named_parameter('tiers')} names storage; leave it out"
            )


def with_depth(
    config: Config,
    tiers: Sequence[Tier | None],
    peak_bytes: Sequence[int],
    *,
    is_pooled: bool = False,
) -> tuple[Config, str]:
    """Return `config` with a queue depth, and the reason for it.

    `peak_bytes` are the peaks of the tiers. With `is_pooled`, the buffers of an open loop come out
    of a pool, which has the default size if `config` gives none.
    """
    if config.queue_depth is not None:
        return config, GIVEN_DEPTH
    if config.speed is None:
        if config.pool is not None and config.depth * config.io_bytes > config.pool:
            return replace(config, queue_depth=_in_pool(config.pool, config.io_bytes)), "--pool"
        return replace(config, queue_depth=config.depth), "the default of a closed loop"
    depth, reason = MAX_QUEUE_DEPTH, "the most"
    working = [t for t in tiers if t is not None and t.has_times]
    is_virtual = config.engine == EngineName.AUTO and all(t.is_simulated for t in working)
    takes_threads = config.engine == EngineName.THREADS or not all(
        t.has_ring or t.is_copied for t in working
    )
    if takes_threads and not is_virtual:
        depth, reason = THREADS, "a thread each"
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    available = available_bytes()
    ram_bytes = sum(
        peak for tier, peak in zip(tiers, peak_bytes, strict=True) if isinstance(tier, RamTier)
    )
    max_buffer_bytes = (
        None if available is None else max(0, available - ram_bytes) // BUFFERS_DIVISOR
    )
    while depth > config.depth:
        if 0 <= files < depth:
            reason = "open files, ulimit -n"
        elif max_buffer_bytes is not None and depth * config.io_bytes > max_buffer_bytes:
            reason = "memory for buffers"
        else:
            break
        depth //= 2
    pool = config.pool or (POOL_BYTES if is_pooled else None)
    if pool is not None and depth * config.io_bytes > pool:
        depth, reason = (
            max(config.depth, _in_pool(pool, config.io_bytes)),
            "--pool, the memory of buffers",
        )
    return replace(config, queue_depth=depth), reason


def _in_pool(pool: int, io_bytes: int) -> int:
    """Return the maximum number of I/Os in flight with buffers that fit `pool`, at least 1."""
    return min(MAX_QUEUE_DEPTH, max(1, pool // io_bytes))


def check_warmup(
    warmup: Warmup | None, text: str | None, rows: int, facts: Facts, pacer: Pacer
) -> None:
    """Raise ConfigError if the warm-up covers all `rows` of the trace, as far as that is known
    before the run.
    """
    if warmup is None or not facts.rows:
        return
    if warmup.rows is not None:
        is_all = facts.last_row < warmup.rows
    else:
        last = pacer.due_ns(np.array([facts.last_ns]))
        is_all = last is not None and int(last[0]) < (warmup.time_ns or 0)
    if is_all:
        raise ConfigError(
            f"{named_parameter('warmup', text)} covers all {rows:,} rows, so nothing would be"
            " measured; make it shorter"
        )
