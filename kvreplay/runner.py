"""One replay from its options to its run directory: compile, claim the tiers, populate, drive, write down."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kvreplay import pacing, results
from kvreplay.datagen import PIECE_BYTES, filler
from kvreplay.engines import Driven, IoEngine, Job, Record
from kvreplay.engines.threads import ThreadEngine
from kvreplay.host import device_bytes, host_facts
from kvreplay.limits import parse_limit
from kvreplay.plan import Plan, Window, compile_window, populate_plan, tier_indices
from kvreplay.summary import Summary, summarize
from kvreplay.tiers import Options, Tier
from kvreplay.tiers.files import FileTier
from kvreplay.tiers.null import NullTier
from kvreplay.tiers.ram import RamTier, available_bytes
from kvtrace import __version__
from kvtrace.core.app import INTERRUPTED
from kvtrace.core.config import sha256
from kvtrace.core.errors import ConfigError, DeviceError, KvError
from kvtrace.core.metadata import describe
from kvtrace.core.schema import OPS, TRACE
from kvtrace.core.traceio import Reader, open_table
from kvtrace.core.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SWITCH_INTERVAL_S = 5e-5
"""How long one Python thread may hold the others up; the default, 5 ms, is longer than an I/O takes."""
PAGE_BYTES = 4096
MAX_QUEUE_DEPTH = 1024
MAX_SEED = 2**64 - 1


class Interrupted(KvError):
    """The user asked to stop; what was measured is kept."""

    exit_code = INTERRUPTED


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What determines a replay, besides the trace."""

    tiers: dict[str, str]
    """Target by tier name: a directory, `ram` or `null`."""
    speed: float | None = None
    is_as_fast_as_possible: bool = False
    queue_depth: int = 8
    io_bytes: int = 1 << 20
    limit: str | None = None
    seed: int | None = None
    """For the data; null takes the trace's, or 0."""
    is_buffered: bool = False
    fsync: str = "never"
    is_kept: bool = False
    on_error: str = "stop"


@dataclass(frozen=True, slots=True)
class Populated:
    """What was written before the run because the window reads it."""

    objects: int
    bytes: int
    wall_ns: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished run, whole or partial."""

    manifest: dict[str, Any]
    summary: Summary
    error: KvError | None
    """Why it is partial; null if it is whole."""


def check(config: Config) -> pacing.Pacer:
    """Return the pacer of `config`; ConfigError, naming the option, for a value that cannot be used."""
    if not 1 <= config.queue_depth <= MAX_QUEUE_DEPTH:
        raise ConfigError(f"--queue-depth {config.queue_depth}: give 1 to {MAX_QUEUE_DEPTH}")
    unit = PIECE_BYTES if config.io_bytes > PIECE_BYTES else PAGE_BYTES
    if config.io_bytes < PAGE_BYTES or config.io_bytes % unit:
        raise ConfigError(
            f"--io-bytes {config.io_bytes}: give a multiple of 4096, above 1 MiB a multiple of 1 MiB"
        )
    need, available = (3 * config.queue_depth + 1) * config.io_bytes, available_bytes()
    if available is not None and need > available // 2:
        raise ConfigError(
            f"--queue-depth {config.queue_depth} of --io-bytes {config.io_bytes} takes {format_bytes(need)} of buffers, "
            f"more than half of the {format_bytes(available)} available; lower one of them"
        )
    if config.fsync not in ("never", "close"):
        raise ConfigError(f"--fsync {config.fsync}: choose never or close")
    if config.on_error not in ("stop", "continue"):
        raise ConfigError(f"--on-error {config.on_error}: choose stop or continue")
    if config.seed is not None and not 0 <= config.seed <= MAX_SEED:
        raise ConfigError(f"--seed {config.seed}: give 0 to {MAX_SEED}")
    return pacing.choose(speed=config.speed, as_fast_as_possible=config.is_as_fast_as_possible)


def make_tiers(config: Config, names: list[str], trace: Path, output: Path) -> list[Tier | None]:
    """Return the tiers of the trace in order, None for those without a target."""
    tiers: list[Tier | None] = [None] * len(names)
    directories: dict[Path, str] = {}
    for index, target in tier_indices(names, config.tiers, trace):
        name = names[index]
        if target == "ram":
            tiers[index] = RamTier(name, config.io_bytes)
        elif target == "null":
            tiers[index] = NullTier(name)
        else:
            directory = Path(target).resolve()
            if directory in directories:
                raise ConfigError(
                    f"--tier {name}={target}: tier {directories[directory]} has this directory; name another"
                )
            if directory == output.resolve() or directory in output.resolve().parents:
                raise ConfigError(f"-o {output} lies in the target of tier {name}; write the run elsewhere")
            directories[directory] = name
            options = Options(is_direct=not config.is_buffered, fsync=config.fsync, is_kept=config.is_kept)
            tiers[index] = FileTier(name, Path(target), options)
    return tiers


def replay(
    config: Config, trace: Path, output: Path, argv: list[str], *, is_forced: bool = False,
    show: Callable[[str, int], Any] | None = None, tiers: list[Tier | None] | None = None,
) -> Outcome:  # fmt: skip
    """Replay `trace` as `config` says and write the run to `output`.

    `show(label, rows)` gives a context manager that yields a function taking the rows done; `tiers` replaces
    the configured ones in tests.

    Raises:
        ConfigError, TraceError, DeviceError: before anything was measured. Later faults are in the outcome.
    """
    pacer = check(config)
    reader = open_table(trace, TRACE)
    results.check_output(output, is_forced=is_forced)
    if tiers is None:
        tiers = make_tiers(config, [t.name for t in reader.meta.tiers], trace, output)
    alignments = {i: t.alignment for i, t in enumerate(tiers) if t is not None}
    window = compile_window(reader, trace, alignments, parse_limit(config.limit))
    if window.rows == 0:
        raise ConfigError(f"--limit {config.limit} admits no row of {trace}; allow more" if config.limit else
                          f"{trace} has no rows to replay")  # fmt: skip
    run = _Run(config, pacer, reader, window, tiers, trace, argv, show or _no_show)
    return run.perform(output)


@contextmanager
def _no_show(_label: str, _rows: int) -> Iterator[Callable[[float], None]]:
    yield lambda _done: None


@contextmanager
def _stop_signals() -> Iterator[Callable[[], str | None]]:
    """Yield a function that names the signal that asked to stop; SIGINT and SIGTERM no longer kill meanwhile."""
    caught: list[str] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    def note(number: int, _frame: object) -> None:
        caught.append(signal.Signals(number).name)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: caught[0] if caught else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _quiet_interpreter() -> Iterator[None]:
    """Keep the garbage collector away and let threads change quickly."""
    interval = sys.getswitchinterval()
    gc.collect()
    gc.freeze()
    gc.disable()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        gc.enable()
        gc.unfreeze()


@dataclass(slots=True)
class _Run:
    """One replay under way."""

    config: Config
    pacer: pacing.Pacer
    reader: Reader
    window: Window
    tiers: list[Tier | None]
    trace: Path
    argv: list[str]
    show: Callable[[str, int], Any]

    @property
    def seed(self) -> int:
        if self.config.seed is not None:
            return self.config.seed
        return (self.reader.meta.seed or 0) & MAX_SEED

    def perform(self, output: Path) -> Outcome:
        config, plan = self.config, self.window.plan
        due_ns = self.pacer.due_ns(plan.ts_ns)
        record = Record.empty(len(plan), is_open_loop=due_ns is not None)
        with ExitStack() as stack:
            interrupted = stack.enter_context(_stop_signals())
            self._open_tiers(stack)
            engine = ThreadEngine(config.queue_depth, config.io_bytes)
            populated, stopped = self._populate(engine, interrupted)
            before = self._device_bytes()
            started = datetime.now(UTC)
            if stopped is None:
                stops = config.on_error == "stop"
                job = Job(plan, due_ns, self.tiers, record, filler(self.seed), stops)
                driven = self._drive(engine, job, interrupted, "replaying")
            else:
                driven = stopped
            after = self._device_bytes()
            error = self._error(driven, is_populating=stopped is not None, output=output)
            names = [t.name for t in self.reader.meta.tiers]
            summary = summarize(
                plan, record, due_ns, self.tiers, driven, queue_depth=config.queue_depth,
                skipped_rows={names[i]: n for i, n in sorted(self.window.skipped_rows.items())},
                absent_deletes=self.window.absent_deletes,
            )  # fmt: skip
            manifest = self._manifest(summary, populated, engine, started, error)
            manifest["device_io"] = _device_io(before, after)
            batches = results.ops_batches(self.reader, self.window.rows, plan, record, due_ns, self.tiers)
            results.write_run(output, batches, self._meta(manifest), manifest)
        return Outcome(manifest, summary, error)

    def _open_tiers(self, stack: ExitStack) -> None:
        peaks = self.window.residency.peak_bytes
        spaces = [_space(t) for t in self.tiers]
        for index, tier in enumerate(self.tiers):
            if tier is not None:
                # Tiers that share a filesystem, or memory, must fit together.
                together = sum(p for p, space in zip(peaks, spaces, strict=True) if space == spaces[index])
                stack.callback(tier.close)
                tier.open(together)

    def _drive(self, engine: IoEngine, job: Job, interrupted: Callable[[], str | None], label: str) -> Driven:
        with self.show(label, len(job.plan)) as progress, _quiet_interpreter():
            return engine.drive(job, interrupted, progress)

    def _populate(
        self, engine: IoEngine, interrupted: Callable[[], str | None]
    ) -> tuple[Populated, Driven | None]:
        """Write what the window reads but never wrote; the second item is how that failed, else None."""
        residency = self.window.residency
        alignments = {i: t.alignment for i, t in enumerate(self.tiers) if t is not None}
        moves = [t is not None and not t.is_simulated for t in self.tiers]
        if not any(moves[t] for t in set(residency.populate_tier.tolist())):
            return Populated(0, 0, 0), None
        plan: Plan = populate_plan(residency, alignments, self.trace)
        record = Record.empty(len(plan), is_open_loop=False)
        job = Job(plan, None, self.tiers, record, filler(self.seed))
        driven = self._drive(engine, job, interrupted, "populating")
        written = [i for i, t in enumerate(plan.tier.tolist()) if moves[t] and record.completed_ns[i] >= 0]
        populated = Populated(len(written), int(plan.length[written].sum()), driven.wall_ns)
        return populated, driven if driven.failure or driven.interrupted_by else None

    def _error(self, driven: Driven, *, is_populating: bool, output: Path) -> KvError | None:
        kept = f"what was measured is kept in {output} (partial)"
        if driven.failure is not None and (is_populating or self.config.on_error == "stop"):
            place = (
                "while populating"
                if is_populating
                else f"row {int(self.window.plan.row[driven.failure.row])}"
            )
            return DeviceError(f"{place}: {driven.failure.message}; {kept}")
        if driven.interrupted_by is not None and (is_populating or driven.completed < len(self.window.plan)):
            return Interrupted(f"interrupted by {driven.interrupted_by}; {kept}")
        return None

    def _device_bytes(self) -> dict[str, tuple[int, int] | None]:
        return {t.name: device_bytes(Path(t.target)) for t in self.tiers if isinstance(t, FileTier)}

    def _meta(self, manifest: dict[str, Any]) -> Any:
        meta = self.reader.meta
        return describe(
            OPS, "kvreplay", self.argv, manifest["config"], tiers=meta.tiers, seed=self.seed, preset=meta.preset,
            model=meta.model, source=manifest["trace"], notes=manifest["notes"],
            is_simulated=all(t is None or t.is_simulated for t in self.tiers),
        )  # fmt: skip

    def _manifest(
        self,
        summary: Summary,
        populated: Populated,
        engine: IoEngine,
        started: datetime,
        error: KvError | None,
    ) -> dict[str, Any]:
        config = msgspec.to_builtins(self.config) | {"seed": self.seed}
        window, meta = self.window, self.reader.meta
        return {
            "program": "kvreplay", "version": __version__, "argv": self.argv, "config": config,
            "config_sha256": sha256(config), "started_utc": started.isoformat(),
            "status": "complete" if error is None else "partial",
            "reason": None if error is None else str(error),
            "host": host_facts(),
            "trace": {"file": self.trace.name, "metadata": msgspec.to_builtins(meta)},
            "tiers": {t.name: {"target": t.target, "engine": t.engine, **t.facts()} for t in self.tiers if t},
            "pacing": {"loop": self.pacer.name, "speed": self.pacer.speed},
            "engine": {"name": engine.name, "queue_depth": self.config.queue_depth, "io_bytes": self.config.io_bytes,
                       "buffer_bytes": engine.buffer_bytes, "plan_bytes": window.plan.nbytes},
            "window": {"rows": window.rows, "is_whole_trace": window.is_whole, "span_ns": window.span_ns,
                       "planned_rows": len(window.plan), "limit": self.config.limit,
                       "peak_bytes": dict(zip([t.name for t in meta.tiers], window.residency.peak_bytes, strict=True))},
            "populated": msgspec.to_builtins(populated),
            "data": {"generator": "dgen-py", "seed": self.seed, "piece_bytes": min(self.config.io_bytes, PIECE_BYTES),
                     "note": "incompressible; every 512-byte block differs"},
            "notes": self._notes(summary),
            "summary": msgspec.to_builtins(summary),
        }  # fmt: skip

    def _notes(self, summary: Summary) -> list[str]:
        notes = [f"tier {t.name} is null: nothing moved there" for t in self.tiers if t and t.is_simulated]
        if summary.skipped_rows:
            skipped = ", ".join(f"{name} ({count:,} rows)" for name, count in summary.skipped_rows.items())
            notes.append(f"skipped, because no --tier names them: {skipped}")
        if summary.absent_deletes:
            notes.append(f"skipped {summary.absent_deletes:,} deletes of objects that this window never had")
        if self.config.is_buffered:
            notes.append("buffered: the page cache took part, so times are not the device's")
        return notes


def _space(tier: Tier | None) -> object:
    if isinstance(tier, FileTier):
        path = Path(tier.target)
        return path.stat().st_dev if path.exists() else tier.target
    return None if tier is None else tier.target


def _device_io(
    before: dict[str, tuple[int, int] | None], after: dict[str, tuple[int, int] | None]
) -> dict[str, dict[str, int | None]]:
    """Return what the device beneath each directory moved during the run, all programs together; null if unseen."""
    result: dict[str, dict[str, int | None]] = {}
    for name, start in before.items():
        end = after[name]
        seen = start is not None and end is not None
        result[name] = {
            "read_bytes": end[0] - start[0] if seen else None,  # type: ignore[index]
            "written_bytes": end[1] - start[1] if seen else None,  # type: ignore[index]
        }
    return result
