"""What a user may ask of a replay, checked before anything is touched: options, targets, warm-up, criteria.

The criteria are the thresholds by which a run is judged: MLPerf's health criteria and the targets of the classes of
service. The warm-up is the start of a run that its figures leave out: the first rows, or the first seconds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kvreplay.engine.engine import EngineName, check_name
from kvreplay.engine.share import check_submitters
from kvreplay.native.rows import NONE, NOT_DONE
from kvreplay.plan import pacing
from kvreplay.plan.buffers import PAGE_BYTES, buffer_bytes
from kvreplay.plan.contents import check_ratios
from kvreplay.plan.pacing import Pacer
from kvreplay.plan.window import Facts
from kvreplay.tiers.objects import Balance, is_object_store
from kvreplay.tiers.ram import available_bytes
from kvreplay.tiers.tier import FileLayout
from kvtrace.core.config import load_toml, to_struct
from kvtrace.core.errors import ConfigError
from kvtrace.core.schema import Qos
from kvtrace.core.units import format_bytes, format_io_size, parse_bytes, parse_duration_ns


class Targets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Latency targets of one class of service."""

    p95: str
    p99: str
    p99_9: str
    p99_99: str


class Criteria(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Thresholds of the health criteria; the defaults are the benchmark's."""

    storage_read_p95: str = "200ms"
    storage_write_p95: str = "500ms"
    cpu_p95: str = "150ms"
    hit_rate: float = 0.3
    storage_bandwidth: str = "0"
    """Bytes a second, read and written together, that must be exceeded."""
    qos_interactive: Targets = Targets("50ms", "100ms", "150ms", "200ms")
    """What the percentiles of a class's requests must not exceed."""
    qos_responsive: Targets = Targets("100ms", "200ms", "350ms", "500ms")
    qos_batch: Targets = Targets("1s", "5s", "7500ms", "10s")

    @property
    def targets(self) -> dict[str, Targets]:
        """The targets by class of service."""
        return {qos.value: getattr(self, f"qos_{qos.value}") for qos in Qos}


def read_criteria(path: Path | None) -> Criteria:
    """Read the thresholds from the TOML file `path`, the benchmark's without one; ConfigError for a bad value."""
    if path is None:
        return Criteria()
    criteria = to_struct(load_toml(path), Criteria, str(path))
    try:
        of_classes = [text for targets in criteria.targets.values() for text in msgspec.structs.astuple(targets)]
        for text in (criteria.storage_read_p95, criteria.storage_write_p95, criteria.cpu_p95, *of_classes):
            parse_duration_ns(text)
        parse_bytes(criteria.storage_bandwidth)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return criteria


MAX_QUEUE_DEPTH = 1024
CLOSED_LOOP_DEPTH = 8
POOL_BYTES = 128_000_000
"""Of buffers, in an open loop that saves or restores checkpoints."""
CHECKPOINT_DEPTH = 4
MAX_SEED = 2**64 - 1
MAX_RETRIES = 20
NAMED = ("ram", "gpu", "sim", "null")
"""Targets that are no path; a directory of such a name is written ./ram."""


class Precondition(StrEnum):
    """What `--precondition` takes."""

    TWICE = "twice"
    STEADY = "steady"


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What determines a replay, besides the trace."""

    tiers: dict[str, str]
    """Target by tier name: paths with commas between them, or one of NAMED with options after a colon."""
    speed: float | None = None
    is_as_fast_as_possible: bool = False
    queue_depth: int | None = None
    """Null until the tiers are known: see `limits.with_depth`."""
    io_bytes: int = 1 << 20
    is_ignoring_streams: bool = False
    """Whether writes go without the streams that the trace gives them."""
    limit: str | None = None
    node: int | None = None
    """Of a fleet's trace: replay this node's rows alone."""
    runtime: str | None = None
    """How long to run by the clock: the window is repeated, or cut."""
    seed: int | None = None
    """For the data; null takes the trace's, or 0."""
    is_buffered: bool = False
    fsync: str = "never"
    advice: str = "none"
    """What buffered files are advised of their pages: `none`, `sequential` or `dontneed`."""
    pool: int | None = None
    """What all buffers may take, bytes; null: as queue depth and I/O size need, or POOL_BYTES for checkpoints."""
    checkpoint_depth: int | None = None
    """I/Os of one save or restore in flight; null: the queue depth in a closed loop, else CHECKPOINT_DEPTH."""
    is_kept: bool = False
    endpoints: tuple[str, ...] = ()
    """URLs that serve the object store; none: where the environment says."""
    balance: str = Balance.ROUND_ROBIN.value
    """How requests are spread over them."""
    retries: int = 2
    """How often a request is repeated that an object store refuses or fails."""
    on_error: str = "stop"
    engine: str = EngineName.AUTO.value
    submitters: str = "1"
    """How many rings, each with a thread of its own that enters the kernel, if they are more than one; or `auto`."""
    is_verified: bool = False
    """Stamp what is written and check what is read."""
    warmup: str | None = None
    """The start that figures leave out: rows or time."""
    precondition: str | None = None
    """Write drives full before anything is measured: `twice`, or until `steady`."""
    is_gds: bool = False
    """Move files' data straight to and from GPU memory."""
    layout: str = FileLayout.HASHED.value
    """How files are named."""
    is_destroying: bool = False
    """Whether block devices may be overwritten."""
    overwritten: str | None = None
    """Signatures on block devices that may be lost, with commas between them."""
    is_discarding: bool = False
    """Whether deletes discard on block devices."""
    criteria: Criteria = Criteria()
    """Thresholds of the health criteria and of the classes of service."""
    requests: str | None = None
    """The trace's requests table, for classes of service and the time to the first token."""
    stall: str = "10s"
    """For how long nothing may complete though something is in flight or due; 0: for ever."""
    dedup_ratio: float = 1.0
    """Blocks of 4 KiB written for each distinct one."""
    compress_ratio: float = 1.0
    """By which zstd shrinks each 4 KiB block."""
    is_probed: bool = False
    """Probe the calls and block requests of the measured part."""
    is_histograms_only: bool = False
    """Keep no event of each block request."""

    @property
    def depth(self) -> int:
        """I/Os in flight at most; the closed loop's default if not given."""
        return CLOSED_LOOP_DEPTH if self.queue_depth is None else self.queue_depth

    @property
    def bulk_depth(self) -> int | None:
        """How many I/Os of one save or restore may be in flight; None: as many as of all."""
        return self.checkpoint_depth or (None if self.speed is None else CHECKPOINT_DEPTH)

    @property
    def runtime_ns(self) -> int | None:
        """How long to run by the clock; null: once through the window. ConfigError if it is not a duration."""
        if self.runtime is None:
            return None
        found = parse_duration_ns(self.runtime)
        if found <= 0:
            raise ConfigError(f"--duration {self.runtime}: write more than 0, such as 300s or 10min")
        return found

    @property
    def stall_ns(self) -> int | None:
        """For how long nothing may complete; None: for ever. ConfigError if it is not a duration."""
        try:
            return parse_duration_ns(self.stall) or None
        except ConfigError as error:
            raise ConfigError(f"--stall-timeout {self.stall}: {error}") from None


def check(config: Config) -> pacing.Pacer:
    """Return the pacer of `config`; ConfigError, naming the option, for a value that cannot be used."""
    if not 1 <= config.depth <= MAX_QUEUE_DEPTH:
        raise ConfigError(f"--queue-depth {config.depth}: give 1 to {MAX_QUEUE_DEPTH}")
    if config.io_bytes < PAGE_BYTES or config.io_bytes % PAGE_BYTES:
        raise ConfigError(f"--io-bytes {config.io_bytes}: give a multiple of 4096")
    need, available = buffer_bytes(config.depth, config.io_bytes), available_bytes()
    if config.pool is not None:
        check_pool(config)
    if available is not None and need > available // 2:
        raise ConfigError(
            f"--queue-depth {config.depth} of --io-bytes {config.io_bytes} takes {format_bytes(need)} "
            f"of buffers, more than half of the {format_bytes(available)} available; lower one of them"
        )
    check_name(config.engine)
    check_submitters(config.submitters)
    for option, value, allowed in (
        ("--fsync", config.fsync, ("never", "close")),
        ("--fadvise", config.advice, ("none", "sequential", "dontneed")),
        ("--on-error", config.on_error, ("stop", "continue")),
        ("--layout", config.layout, tuple(FileLayout)),
        ("--balance", config.balance, tuple(Balance)),
    ):
        if value not in allowed:
            raise ConfigError(f"{option} {value}: choose {' or '.join(allowed)}")
    if config.seed is not None and not 0 <= config.seed <= MAX_SEED:
        raise ConfigError(f"--seed {config.seed}: give 0 to {MAX_SEED}")
    parse_warmup(config.warmup)
    config.runtime_ns, config.stall_ns  # noqa: B018 - refuses what is no time
    if config.is_histograms_only and not config.is_probed:
        raise ConfigError("--histograms-only says how to probe; add --probes")
    if config.precondition not in (None, *Precondition):
        raise ConfigError(f"--precondition {config.precondition}: choose {' or '.join(Precondition)}")
    _check_storage(config)
    check_ratios(config.dedup_ratio, config.compress_ratio, is_verified=config.is_verified)
    return pacing.choose(speed=config.speed, as_fast_as_possible=config.is_as_fast_as_possible)


def check_pool(config: Config) -> None:
    """Raise ConfigError if the buffers of `config` do not fit its pool: at the asked depth, or at any."""
    depth = config.queue_depth or 1
    need = buffer_bytes(depth, config.io_bytes)
    if config.pool is not None and need > config.pool:
        raise ConfigError(
            f"--pool {format_bytes(config.pool)}: {depth} I/Os of {format_io_size(config.io_bytes)} in flight, and the "
            f"data of the next, need {format_bytes(need)}; raise it, or lower --io-bytes or --queue-depth"
        )


def _check_storage(config: Config) -> None:
    if config.advice != "none" and not config.is_buffered:
        raise ConfigError(f"--fadvise {config.advice} is of the page cache, which O_DIRECT passes by; add --buffered")
    if config.advice == "dontneed" and config.fsync != "close":
        raise ConfigError("--fadvise dontneed drops written pages only once they are on the drive; add --fsync close")
    if config.checkpoint_depth is not None and not 1 <= config.checkpoint_depth <= MAX_QUEUE_DEPTH:
        raise ConfigError(f"--checkpoint-depth {config.checkpoint_depth}: give 1 to {MAX_QUEUE_DEPTH}")
    has_storage = not all(named(target) or is_object_store(target) for target in config.tiers.values())
    if config.endpoints and not any(map(is_object_store, config.tiers.values())):
        raise ConfigError("--endpoint is for object stores, and no --tier names one (s3://BUCKET/PREFIX); leave it out")
    if not 0 <= config.retries <= MAX_RETRIES:
        raise ConfigError(f"--retries {config.retries}: give 0 to {MAX_RETRIES}")
    wanted = {"--precondition writes drives full": config.precondition, "--gds moves files": config.is_gds}
    for said, is_asked in wanted.items():
        if is_asked and not has_storage:
            raise ConfigError(f"{said}, but no --tier names storage; leave it out")


def named(target: str) -> tuple[str, dict[str, str]] | None:
    """Split a target that is one of NAMED from its options (`sim:latency=10us,bandwidth=7GB`); None for a path."""
    name, _, rest = target.partition(":")
    if name not in NAMED:
        return None
    options = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not (key and equals and value):
            raise ConfigError(f"{target}: write its options like this: sim:bandwidth=7GB,latency=80us")
        options[key] = value
    if options and name in ("ram", "null"):
        raise ConfigError(f"{target}: {name} takes no options")
    return name, options


_ROWS = re.compile(r"\s*([0-9]+)\s*(?:rows?)?\s*")


@dataclass(frozen=True, slots=True)
class Warmup:
    """The start of a run that its figures leave out; exactly one of the two is set."""

    rows: int | None = None
    time_ns: int | None = None

    def is_measured(self, rows: Any) -> Any:
        """Return bool for each of `rows` (ROW): whether it counts. By due time in an open loop, else by submission."""
        due_ns = rows["due_ns"]
        return self.counts(rows["trace_row"], np.where(due_ns == NONE, rows["submitted_ns"], due_ns))

    def counts(self, row: Any, begun_ns: Any) -> Any:
        """Return the same of rows of the trace, by when each was due, in a closed loop submitted, or -1."""
        return row >= self.rows if self.rows is not None else (begun_ns >= self.time_ns) | (begun_ns == NOT_DONE)


def parse_warmup(text: str | None) -> Warmup | None:
    """Return the warm-up that `text` names, `1000`, `1000rows` or `30s`; None for no text."""
    if text is None:
        return None
    match = _ROWS.fullmatch(text)
    try:
        warmup = Warmup(rows=int(match.group(1))) if match else Warmup(time_ns=parse_duration_ns(text))
    except ConfigError:
        raise ConfigError(f"--warmup {text!r}: write rows (1000) or time (30s)") from None
    if 0 in (warmup.rows, warmup.time_ns):
        raise ConfigError(f"--warmup {text!r} leaves nothing out; write more than 0, or no --warmup")
    return warmup


def check_warmup(warmup: Warmup | None, text: str | None, rows: int, facts: Facts, pacer: Pacer) -> None:
    """Raise ConfigError if the warm-up is known beforehand to leave nothing to measure of the `rows` of the trace."""
    if warmup is None or not facts.rows:
        return
    if warmup.rows is not None:
        is_all = facts.last_row < warmup.rows
    else:
        last = pacer.due_ns(np.array([facts.last_ns]))
        is_all = last is not None and int(last[0]) < (warmup.time_ns or 0)
    if is_all:
        raise ConfigError(f"--warmup {text} leaves nothing to measure of the {rows:,} rows replayed; make it shorter")
