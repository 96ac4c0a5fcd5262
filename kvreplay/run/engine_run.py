"""`kvreplay engine`.

Let a real engine serve a trace's requests on the user's storage, and leave a run of it.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from engine_drivers.recorder import Settings
from kvreplay.plan.output_directory import check_output, make_directory
from kvreplay.plan.replay_config import Config
from kvreplay.probes.probe_session import probing
from kvreplay.result.recording import RunPart
from kvreplay.result.summarize import EngineFacts, Measured, RunResults, build_run_header
from kvreplay.run.engine_process import engine_directory, serve
from kvreplay.run.engine_record import STRACE, TIER, EngineRecord, Recording, recording
from kvreplay.run.real_engines import (
    EngineOptions,
    Prompts,
    RealEngine,
    check_interpreter,
    read_prompts,
)
from kvreplay.run.replay import FinishedRun, Interrupted, moved_between, write_down
from kvreplay.tiers.claims import smart
from kvreplay.tiers.files import FileTier
from kvreplay.tiers.host import device_counters, filesystem_facts, host_facts
from kvreplay.tiers.tier import StorageOptions
from kvtrace.core.app import noted_signals
from kvtrace.core.errors import ConfigError, DeviceError, KvError
from kvtrace.core.files import available_bytes
from kvtrace.core.metadata import TierFacts, describe
from kvtrace.core.run.run_file import (
    RUN_FILE,
    EngineNote,
    RunBegun,
    Smart,
    SmartReadings,
    TraceNote,
    WindowNote,
)
from kvtrace.core.schema import TRACE
from kvtrace.core.temporary import temporary_folder
from kvtrace.core.units import counted, format_bytes, format_duration

LOG_FILE = "engine.log"
_WRITES_BACK_S = 600


# Long: the steps of a run in their order.
def run_engine(
    wanted: EngineOptions,
    output: Path,
    argv: list[str],
    *,
    is_forced: bool = False,
    show: Callable[[str, int], AbstractContextManager[Callable[[float], None]]],
    tell: Callable[[str], None],
) -> FinishedRun:
    """Let the engine serve the requests and write the run to `output`.

    `show(label, requests)` gives a context manager that yields a function taking the requests
    served; `tell` takes a line on the next step.

    ConfigError, TraceError, DeviceError before anything was measured. Later faults are in the
    service, unless nothing was recorded before them.
    """
    check_output(output, is_forced=is_forced)
    prompts = read_prompts(wanted.trace, wanted.requests)
    check_interpreter(wanted.kind, wanted.interpreter)
    if wanted.engine.is_straced and shutil.which(STRACE[0]) is None:
        why = "native code writes its files, which only strace can record: install strace"
        raise ConfigError(f"{wanted.kind}: {why}")
    make_directory(output, RUN_FILE)
    with ExitStack() as stack:
        interrupted = stack.enter_context(noted_signals())
        directory = stack.enter_context(engine_directory(wanted.directory, is_kept=wanted.is_kept))
        staging = stack.enter_context(temporary_folder(".engine-", output))
        settings = _settings(wanted, prompts, directory, staging)
        tell(
            f"{wanted.engine.title} serves {counted(len(prompts.rows), 'request')} of"
            f" {prompts.tokens:,} tokens, up to"
            f" {format_bytes(prompts.tokens * settings.token_bytes)} of KV, on {wanted.directory}"
        )
        config = Config(
            tiers={TIER: str(wanted.directory)},
            is_buffered=not wanted.is_direct,
            is_probed=wanted.is_probed,
        )
        tiers = [FileTier(TIER, directory, StorageOptions())]
        probes = probing(tiers, output, is_wanted=wanted.is_probed, is_of_all=not wanted.is_direct)
        end_probes = stack.enter_context(probes)
        before, health, started = device_counters(directory), smart(directory), datetime.now(UTC)
        with show(f"{wanted.engine.title} serving", len(prompts.rows)) as tick:
            service = serve(
                wanted.kind, wanted.interpreter, settings, output / LOG_FILE, interrupted, tick
            )
        if not service.operations and service.failure is not None:
            raise DeviceError(
                f"{wanted.engine.title}: {service.failure}; its output is in {output / LOG_FILE}"
            )
        # The engine's dirty pages are written back.
        write_back_ns, start = None, time.monotonic_ns()
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(["sync", "-f", str(directory)], check=True, timeout=_WRITES_BACK_S)  # noqa: S603, S607 - coreutils
            write_back_ns = time.monotonic_ns() - start
        moved = {TIER: moved_between(before, device_counters(directory))}
        metadata = describe(
            TRACE,
            "kvreplay",
            argv,
            {
                "engine": str(wanted.kind),
                "engine_version": service.facts.get("version"),
                **{
                    name: getattr(wanted, name)
                    for name in ("requests", "layers", "kv_heads", "head_dim")
                },
                "cpu_bytes": settings.cpu_bytes or None,
                "disk_bytes": settings.disk_bytes or None,
                "is_direct": wanted.is_direct,
                "tiers": {TIER: str(wanted.directory)},
            },
            model={"name": None, "bytes_per_token": float(settings.token_bytes)},
            source={"kind": f"engine {wanted.kind}", "file": wanted.trace.name},
            notes=[f"what {wanted.engine.title} did: {wanted.engine.note}"],
            tiers=[TierFacts(TIER, settings.disk_bytes or None)],
        )
        made = recording(output, service, metadata, wanted.engine.object_kind, config, argv)
        probed = end_probes(made.started_ns)
        begun = _begun(wanted, made, service, started, health)
        found = stack.enter_context(RunResults(made.setting, output))
        found.take(RunPart(0, made.rows.all))
        found.end()
        measured = Measured(
            moved,
            found.summary(None, made.wall_ns),
            _error(wanted, service, output),
            _notes(wanted, service, write_back_ns),
            smart={TIER: smart(wanted.directory)},
            probes=None if probed is None else probed.facts(),
        )
        said = (
            f"{begun.host['engine']} served {counted(len(service.requests), 'request')}, one at a"
            " time"
        )
        finished = write_down(found, begun, measured, output, probed=probed, headline=said)
        if measured.error is None:
            # The engine's own log is kept only if it failed.
            (output / LOG_FILE).unlink(missing_ok=True)
        return finished


def _settings(wanted: EngineOptions, prompts: Prompts, directory: Path, staging: Path) -> Settings:
    """Return the settings of the driver; its requests are written to a file for it."""
    cpu_bytes = _size("--cpu", wanted.cpu_bytes, wanted.engine.cpu_bytes, wanted.engine)
    disk_bytes = _size("--disk", wanted.disk_bytes, wanted.engine.disk_bytes, wanted.engine)
    if wanted.is_direct and not wanted.engine.has_direct:
        raise ConfigError(
            f"--direct: {wanted.engine.title} has no O_DIRECT to its files; leave it out"
        )
    memory = available_bytes()
    if memory is not None and cpu_bytes > memory:
        raise ConfigError(
            f"--cpu: only {format_bytes(memory)} of memory is available; ask for less"
        )
    free_bytes = shutil.disk_usage(directory).free
    token_bytes = 4 * wanted.layers * wanted.kv_heads * wanted.head_dim
    need = min(disk_bytes or prompts.tokens * token_bytes, prompts.tokens * token_bytes)
    if need > free_bytes:
        raise DeviceError(
            f"{wanted.directory}: the engine may hold {format_bytes(need)} there, but only "
            f"{format_bytes(free_bytes)} is free; ask for fewer --requests or a smaller --disk"
        )
    listed = staging / "requests.jsonl"
    listed.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in prompts.rows))
    return Settings(
        requests=str(listed.resolve()),
        events=str((staging / "events.jsonl").resolve()),
        directory=str(directory.resolve()),
        block_tokens=prompts.block_tokens,
        layers=wanted.layers,
        kv_heads=wanted.kv_heads,
        head_dim=wanted.head_dim,
        cpu_bytes=cpu_bytes,
        disk_bytes=disk_bytes,
        is_direct=wanted.is_direct,
    )


def _size(option: str, asked: int | None, default: int | None, engine: RealEngine) -> int:
    if asked is not None and default is None:
        raise ConfigError(
            f"{option}: {engine.title} has no effect here ({engine.note}); leave it out"
        )
    return asked if asked is not None else default or 0


def _begun(
    wanted: EngineOptions, made: Recording, service: EngineRecord, started: datetime, health: Smart
) -> RunBegun:
    meta = made.setting.reader.meta
    version = service.facts.get("version")
    facts = {
        "target": str(wanted.directory),
        "engine": "other",
        "is_simulated": False,
        "is_direct": wanted.is_direct,
        **filesystem_facts(wanted.directory),
    }
    window = made.setting.window
    engine_facts = EngineFacts(
        tiers={TIER: facts},
        engine=EngineNote(
            name="other", because=f"{wanted.engine.title} itself", queue_depth=None, io_bytes=None
        ),
        window=WindowNote(
            rows=window.rows,
            is_whole_trace=service.failure is None and service.interrupted_by is None,
            span_ns=window.span_ns,
            planned_rows=window.rows,
            limit=counted(len(service.requests), "request"),
            peak_bytes={TIER: window.residency.peak_bytes[0]},
        ),
    )
    return build_run_header(
        made.setting,
        meta.config,
        TraceNote(file=wanted.trace.name, metadata=meta),
        engine_facts,
        started_utc=started.isoformat(),
        host=host_facts() | {"engine": f"{wanted.engine.title} {version or '(version unknown)'}"},
        smart={TIER: SmartReadings(before=health, after=None)},
    )


def _error(wanted: EngineOptions, service: EngineRecord, output: Path) -> KvError | None:
    kept = f"what was recorded is kept in {output} (partial)"
    served = len(service.requests)
    if service.interrupted_by is not None:
        return Interrupted(
            f"interrupted by {service.interrupted_by} after {counted(served, 'request')}; {kept}"
        )
    if service.failure is not None:
        log = output / LOG_FILE
        after = f"{wanted.engine.title} failed after {counted(served, 'request')}"
        return DeviceError(f"{after}: {service.failure}; its output is in {log}; {kept}")
    return None


def _notes(wanted: EngineOptions, service: EngineRecord, write_back_ns: int | None) -> list[str]:
    """Return the notes that a reader of the figures needs and that no figure shows."""
    notes = [
        f"{wanted.engine.title} itself, {wanted.engine.note}",
        (
            "one request at a time, each until its writes are done; gaps between operations contain"
            " the engine's own work"
        ),
        f"prefix cache: {counted(service.hit_tokens, 'prompt token')} hit",
    ]
    if wanted.engine.is_straced:
        notes.append(
            "times are those of read and write calls, without open and close; strace adds some µs"
            " to each"
        )
    if not wanted.is_direct and write_back_ns is not None:
        notes.append(
            f"page cache write-back afterwards took {format_duration(write_back_ns)}, in no figure"
        )
    if untimed := service.untimed:
        said = ", ".join(f"{count:,} {op}s" for op, count in untimed.items())
        notes.append(
            f"unrecorded calls of the engine opened or removed files: {said}; no figure counts them"
        )
    if refused := service.facts.get("refused_puts"):
        notes.append(f"{refused:,} puts were refused: the engine's memory was full")
    if wanted.is_kept:
        notes.append(f"the engine's files are left below {wanted.directory}")
    return notes
