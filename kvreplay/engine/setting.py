"""The setting of a replay, complete before it starts.

It is the configuration, the trace compiled to a plan, its tiers, and its repeats.

How often a window is repeated for `--duration` is decided here, because a plan is made before the
run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from kvreplay.engine.limits import GIVEN_DEPTH, check, with_depth
from kvreplay.plan.buffers import PAGE_BYTES
from kvreplay.plan.memory_check import ROW_BYTES, check_memory
from kvreplay.plan.pacing import Pacer, Repeated
from kvreplay.plan.replay_config import MAX_SEED, Config
from kvreplay.plan.row_ring import READ, WINDOW_ROWS, WRITE
from kvreplay.plan.window import (
    RequestTable,
    TraceWindow,
    compile_window,
    ranks_needed,
    read_request_table,
    shared_instances,
)
from kvreplay.tiers.make_tiers import make_tiers
from kvreplay.tiers.objects import ObjectTier
from kvreplay.tiers.tier import FileLayout, SeveralDrives, Tier
from kvtrace.core.errors import ConfigError
from kvtrace.core.limit import ALL, Limit, parse_limit
from kvtrace.core.memory import available_bytes
from kvtrace.core.metadata import Metadata
from kvtrace.core.metrics.warmup import Warmup, parse_warmup
from kvtrace.core.parameters import named
from kvtrace.core.schema import TRACE
from kvtrace.core.tables import Reader, open_table
from kvtrace.core.units import NS_PER_S, counted


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything a replay needs to know before it touches storage."""

    config: Config
    pacer: Pacer
    reader: Reader
    window: TraceWindow
    tiers: list[Tier | None]
    trace: Path
    argv: list[str]
    request_table: RequestTable | None = None
    """The trace's requests; None if their table was not named."""
    depth_because: str = GIVEN_DEPTH
    """The reason for the queue depth."""
    unplaced: tuple[str, ...] = ()
    """Tiers with writes that have streams in the trace, on targets that take no streams."""
    shared_instances: tuple[tuple[str, int, int], ...] = ()
    """Tiers that are separate on each node: name, instances that share our target, ranks needed for
    a target each.
    """
    rows_once: int = 0
    """Rows of the window that --duration repeats; 0 without --duration."""
    planned_once: int = 0
    """Number of these rows that each repeat replays."""

    @property
    def seed(self) -> int:
        """The seed of the data: the option's, else the trace's, else 0."""
        return (
            self.config.seed
            if self.config.seed is not None
            else (self.reader.meta.seed or 0) & MAX_SEED
        )

    @property
    def is_whole_trace(self) -> bool:
        """True if all rows of the trace are replayed."""
        return self.window.is_whole and self.config.node is None

    @property
    def warmup(self) -> Warmup | None:
        """The warm-up, which figures leave out."""
        return parse_warmup(self.config.warmup)


def settle(
    config: Config,
    trace: Path,
    output: Path,
    argv: list[str],
    tiers: list[Tier | None] | None = None,
    repeats: int | None = None,
) -> Setting:
    """Compile the trace and make the tiers, without touching storage.

    `tiers` replace the configured ones.

    `repeats` says how often at most a window is repeated for --duration; None: as often as that may
    take.

    ConfigError, TraceError if it cannot be done.
    """
    pacer = check(config)
    reader = open_table(trace, TRACE)
    _check_node(reader, config.node)
    check_memory(0, config.depth * config.io_bytes)
    if tiers is None:
        tiers = make_tiers(config, reader.meta, trace, output)
    alignments = {i: t.alignment for i, t in enumerate(tiers) if t is not None}
    limit = replace(parse_limit(config.limit), node=config.node, window=config.window)
    shared = {
        i: (t.drive_of, len(t.drives)) for i, t in enumerate(tiers) if isinstance(t, SeveralDrives)
    }
    if config.window not in (None, ALL) and config.requests is not None:
        raise ConfigError(
            f"{named('window')} with {named('requests')}: a window has other times than the table;"
            " leave one out"
        )
    window = compile_window(reader, trace, alignments, limit, shared)
    reader, once, config = window.reader, window.rows, replace(config, window=window.part)
    planned_once = window.planned_rows
    if config.runtime_ns is not None and window.planned_rows:
        repeats = repeats or repeats_of(reader, window, pacer, tiers, config.runtime_ns)
        span_ns = None if pacer.speed is None else int(config.runtime_ns * pacer.speed)
        if repeats > 1 or span_ns is not None:
            reader = Repeated(reader, once, repeats, window.residency.last_deletes)
            planned_once -= int(reader.left_out.sum())
            limit = Limit(span_ns=span_ns, begin_ns=window.begin_ns or 0, node=config.node)
            window = replace(
                compile_window(reader, trace, alignments, limit, shared), is_whole=False
            )
    if not window.planned_rows:
        raise ConfigError(_nothing_on(reader.meta, window, config))
    window.log_part()
    # Tiers are told of which writes have streams; some take none.
    placed = [] if config.is_ignoring_streams else [tiers[index] for index in window.facts.placed]
    unplaced = tuple(
        t.name for t in placed if t is not None and not t.place() and not t.is_simulated
    )
    if config.layout == FileLayout.VLLM:
        longest = -(-int(window.facts.kinds["end_bytes"].max()) // PAGE_BYTES) * PAGE_BYTES
        config = replace(config, io_bytes=max(config.io_bytes, longest))
    requests = (
        read_request_table(Path(config.requests), reader.meta)
        if config.requests is not None
        else None
    )
    config, because = with_depth(
        config, tiers, window.residency.peak_bytes, is_pooled=window.facts.is_bulk
    )
    check_memory(min(window.planned_rows, WINDOW_ROWS), config.depth * config.io_bytes)
    repeated = (once, planned_once) if config.runtime else (0, 0)
    names = [tier.name for tier in reader.meta.tiers]
    shared_by = shared_instances(reader, alignments, once) if config.node is None else {}
    several = tuple(
        (names[t], count, ranks_needed(reader.meta, t, count)) for t, count in shared_by.items()
    )
    return Setting(
        config,
        pacer,
        reader,
        window,
        tiers,
        trace,
        argv,
        requests,
        because,
        unplaced,
        several,
        *repeated,
    )


def _check_node(reader: Reader, node: int | None) -> None:
    if node is None:
        return
    if "node" not in reader.extras:
        raise ConfigError(
            f"{named('node', node)}: {reader.path} has no nodes (kvtrace gen --nodes);"
            f" leave out {named('node')}"
        )
    nodes: set[int] = set()
    for batch in reader.batches(("node",)):
        nodes |= set(batch.column("node").unique().to_pylist())
        if node in nodes:
            return
    raise ConfigError(
        f"{named('node', node)}: {reader.path} has nodes {min(nodes, default=0)} to"
        f" {max(nodes, default=0)}"
    )


def _nothing_on(meta: Metadata, window: TraceWindow, config: Config) -> str:
    """Return why no row can be replayed: which tiers have rows instead."""
    if window.rows == 0:
        reason = (
            f"{named('limit', config.limit)} ends before its first row, or within it"
            if config.limit
            else "it has no rows"
        )
        return (
            "nothing to replay:"
            f" {f'--window {config.window} has no rows' if config.window else reason}"
        )
    tier_names = ", ".join(config.tiers) or "the tiers named"
    within = f" within --limit {config.limit}" if config.limit else ""
    within += f" of --node {config.node}" if config.node is not None else ""
    if window.residency.absent_deletes:
        deletes_text = (
            f"but deletes ({window.residency.absent_deletes:,}) of objects that were never written"
        )
        return f"nothing to replay: the trace{within} has no rows on {tier_names}, {deletes_text}"
    skipped = sorted(window.skipped_rows.items())
    have = ", ".join(f"{meta.tiers[i].name} ({counted(count, 'row')})" for i, count in skipped)
    return (
        f"nothing to replay: the trace{within} has no rows on {tier_names}; name one that has some:"
        f" {have}"
    )


MOST_BYTES_PER_S, MOST_OPERATIONS_PER_S = 16e9, 5e6
"""Assumed maximum rates of a closed loop: bytes on storage, operations on any tier.

A plan for higher rates would waste memory.
"""
MEMORY_PART = 8
"""A plan of repeats takes this part of the memory that is available."""


def repeats_of(
    reader: Reader, window: TraceWindow, pacer: Pacer, tiers: Sequence[Tier | None], runtime_ns: int
) -> int:
    """Return how many repeats of `window` to plan so that they last for `runtime_ns`."""
    if pacer.speed is not None:
        full_repeats = int(runtime_ns * pacer.speed) // Repeated(reader, window.rows, 1).period_ns
        if full_repeats * window.rows > runtime_ns // 10:
            so_close = f"the trace's rows ({window.rows:,}) are so close that repeats of them"
            raise ConfigError(
                f"{named('duration')}: {so_close} ask for over 100,000,000 operations a second;"
                f" leave {named('speed')} out"
            )
        return full_repeats + 1
    facts = window.facts
    # By the models of tiers that take time, each direction one after the other.
    served_ns = max(
        (
            max(float(kind["bytes"]) * (NS_PER_S / rate), float(kind["rows"]) * service.least_ns)
            for of_tier, tier in zip(facts.kinds, tiers, strict=True)
            if tier is not None and (service := tier.service) is not None
            for op, rate in ((READ, service.read_bytes_per_s), (WRITE, service.write_bytes_per_s))
            for kind in [of_tier[op]]
        ),
        default=0.0,
    )
    is_stored = np.array(
        [isinstance(tier, ObjectTier) or bool(tier and tier.drives) for tier in tiers]
    )
    stored_bytes = int(facts.kinds["bytes"][is_stored][:, [READ, WRITE]].sum())
    once_s = max(
        stored_bytes / MOST_BYTES_PER_S, facts.rows / MOST_OPERATIONS_PER_S, served_ns / NS_PER_S
    )
    available = available_bytes()
    room = 1 << 24 if available is None else available // MEMORY_PART // ROW_BYTES
    return max(1, min(int(runtime_ns / NS_PER_S / once_s) + 1, room // window.rows))
