"""`kvreplay engine`: let a real engine serve a trace's requests on the user's storage.

The result is a run like that of a replay.
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
from kvtrace.core.memory import available_bytes
from kvtrace.core.metadata import TierFacts, describe
from kvtrace.core.parameters import named
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


# Long: all steps of a run in order.
def run_engine(
    options: EngineOptions,
    output: Path,
    argv: list[str],
    *,
    is_forced: bool = False,
    show: Callable[[str, int], AbstractContextManager[Callable[[float], None]]],
    announce: Callable[[str], None],
) -> FinishedRun:
    """Let the engine serve the requests and write the run to `output`.

    `show(label, requests)` returns a context manager that yields a function of the number of
    requests served. `announce` takes a line on the next step.

    ConfigError, TraceError or DeviceError before the measurement. A later fault ends the run, which
    is kept unless nothing was recorded.
    """
    check_output(output, is_forced=is_forced)
    prompts = read_prompts(options.trace, options.requests)
    check_interpreter(options.kind, options.interpreter)
    if options.engine.is_straced and shutil.which(STRACE[0]) is None:
        raise ConfigError(
            f"{options.kind}: native code writes its files, which only strace can record: install"
            " strace"
        )
    make_directory(output, RUN_FILE)
    with ExitStack() as stack:
        interrupted = stack.enter_context(noted_signals())
        directory = stack.enter_context(
            engine_directory(options.directory, is_kept=options.is_kept)
        )
        staging = stack.enter_context(temporary_folder(".engine-", output))
        settings = _settings(options, prompts, directory, staging)
        announce(
            f"{options.engine.title} serves {counted(len(prompts.rows), 'request')} of"
            f" {prompts.tokens:,} tokens, up to"
            f" {format_bytes(prompts.tokens * settings.token_bytes)} of KV, on {options.directory}"
        )
        config = Config(
            tiers={TIER: str(options.directory)},
            is_buffered=not options.is_direct,
            is_probed=options.is_probed,
        )
        tiers = [FileTier(TIER, directory, StorageOptions())]
        probes = probing(
            tiers, output, is_wanted=options.is_probed, is_of_all=not options.is_direct
        )
        end_probes = stack.enter_context(probes)
        before, health, started = device_counters(directory), smart(directory), datetime.now(UTC)
        with show(f"{options.engine.title} serving", len(prompts.rows)) as tick:
            service = serve(
                options.kind, options.interpreter, settings, output / LOG_FILE, interrupted, tick
            )
        if not service.operations and service.failure is not None:
            raise DeviceError(
                f"{options.engine.title}: {service.failure}; its output is in {output / LOG_FILE}"
            )
        # Wait until the engine's dirty pages are written back.
        write_back_ns, start = None, time.monotonic_ns()
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(["sync", "-f", str(directory)], check=True, timeout=_WRITES_BACK_S)  # noqa: S603, S607 - coreutils
            write_back_ns = time.monotonic_ns() - start
        device_io = {TIER: moved_between(before, device_counters(directory))}
        metadata = describe(
            TRACE,
            "kvreplay",
            argv,
            {
                "engine": str(options.kind),
                "engine_version": service.facts.get("version"),
                **{
                    name: getattr(options, name)
                    for name in ("requests", "layers", "kv_heads", "head_dim")
                },
                "cpu_bytes": settings.cpu_bytes or None,
                "disk_bytes": settings.disk_bytes or None,
                "is_direct": options.is_direct,
                "tiers": {TIER: str(options.directory)},
            },
            model={"name": None, "bytes_per_token": float(settings.token_bytes)},
            source={"kind": f"engine {options.kind}", "file": options.trace.name},
            notes=[f"operations of {options.engine.title}: {options.engine.note}"],
            tiers=[TierFacts(TIER, settings.disk_bytes or None)],
        )
        recorded = recording(output, service, metadata, options.engine.object_kind, config, argv)
        probed = end_probes(recorded.started_ns)
        header = _run_header(options, recorded, service, started, health)
        results = stack.enter_context(RunResults(recorded.setting, output))
        results.take(RunPart(0, recorded.rows.all))
        results.end()
        measured = Measured(
            device_io,
            results.summary(None, recorded.wall_ns),
            _error(options, service, output),
            _notes(options, service, write_back_ns),
            smart={TIER: smart(options.directory)},
            probes=None if probed is None else probed.facts(),
        )
        headline = (
            f"{header.host['engine']} served {counted(len(service.requests), 'request')}, one at a"
            " time"
        )
        finished = write_down(results, header, measured, output, probed=probed, headline=headline)
        if measured.error is None:
            # The engine's own log is kept only if it failed.
            (output / LOG_FILE).unlink(missing_ok=True)
        return finished


def _settings(options: EngineOptions, prompts: Prompts, directory: Path, staging: Path) -> Settings:
    """Return the settings of the driver; its requests are written to a file for it."""
    cpu_bytes = _size(named("cpu"), options.cpu_bytes, options.engine.cpu_bytes, options.engine)
    disk_bytes = _size(named("disk"), options.disk_bytes, options.engine.disk_bytes, options.engine)
    if options.is_direct and not options.engine.has_direct:
        raise ConfigError(
            f"{named('direct')}: {options.engine.title} has no O_DIRECT to its files; leave it out"
        )
    memory = available_bytes()
    if memory is not None and cpu_bytes > memory:
        raise ConfigError(
            f"{named('cpu')}: only {format_bytes(memory)} of memory is available; ask for less"
        )
    free_bytes = shutil.disk_usage(directory).free
    token_bytes = 4 * options.layers * options.kv_heads * options.head_dim
    need = min(disk_bytes or prompts.tokens * token_bytes, prompts.tokens * token_bytes)
    if need > free_bytes:
        raise DeviceError(
            f"{options.directory}: the engine may need {format_bytes(need)} there, but only "
            f"{format_bytes(free_bytes)} is free; ask for fewer {named('requests')} or a smaller"
            f" {named('disk')}"
        )
    listed = staging / "requests.jsonl"
    listed.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in prompts.rows))
    return Settings(
        requests=str(listed.resolve()),
        events=str((staging / "events.jsonl").resolve()),
        directory=str(directory.resolve()),
        block_tokens=prompts.block_tokens,
        layers=options.layers,
        kv_heads=options.kv_heads,
        head_dim=options.head_dim,
        cpu_bytes=cpu_bytes,
        disk_bytes=disk_bytes,
        is_direct=options.is_direct,
    )


def _size(option: str, requested: int | None, default: int | None, engine: RealEngine) -> int:
    if requested is not None and default is None:
        raise ConfigError(
            f"{option}: {engine.title} has no effect here ({engine.note}); leave it out"
        )
    return requested if requested is not None else default or 0


def _run_header(
    options: EngineOptions,
    recorded: Recording,
    service: EngineRecord,
    started: datetime,
    health: Smart,
) -> RunBegun:
    meta = recorded.setting.reader.meta
    version = service.facts.get("version")
    facts = {
        "target": str(options.directory),
        "engine": "other",
        "is_simulated": False,
        "is_direct": options.is_direct,
        **filesystem_facts(options.directory),
    }
    window = recorded.setting.window
    engine_facts = EngineFacts(
        tiers={TIER: facts},
        engine=EngineNote(
            name="other", because=f"{options.engine.title} itself", queue_depth=None, io_bytes=None
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
        recorded.setting,
        meta.config,
        TraceNote(file=options.trace.name, metadata=meta),
        engine_facts,
        started_utc=started.isoformat(),
        host=host_facts() | {"engine": f"{options.engine.title} {version or '(version unknown)'}"},
        smart={TIER: SmartReadings(before=health, after=None)},
    )


def _error(options: EngineOptions, service: EngineRecord, output: Path) -> KvError | None:
    saved = f"the partial run is in {output}"
    served = len(service.requests)
    if service.interrupted_by is not None:
        return Interrupted(
            f"interrupted by {service.interrupted_by} after {counted(served, 'request')}; {saved}"
        )
    if service.failure is not None:
        log = output / LOG_FILE
        after = f"{options.engine.title} failed after {counted(served, 'request')}"
        return DeviceError(f"{after}: {service.failure}; its output is in {log}; {saved}")
    return None


def _notes(options: EngineOptions, service: EngineRecord, write_back_ns: int | None) -> list[str]:
    """Return the notes for a reader of the figures."""
    notes = [
        f"{options.engine.title} itself, {options.engine.note}",
        (
            "one request at a time, each until its writes are done; gaps between operations contain"
            " the engine's own work"
        ),
        f"prefix cache: {counted(service.hit_tokens, 'prompt token')} hit",
    ]
    if options.engine.is_straced:
        notes.append(
            "times are those of read and write calls, without open and close; strace adds some µs"
            " to each"
        )
    if not options.is_direct and write_back_ns is not None:
        notes.append(
            f"page cache write-back afterwards took {format_duration(write_back_ns)}, in no figure"
        )
    if untimed := service.untimed:
        untimed_counts = ", ".join(f"{count:,} {op}s" for op, count in untimed.items())
        notes.append(
            f"unrecorded calls of the engine opened or removed files: {untimed_counts}; no figure counts them"
        )
    if refused := service.facts.get("refused_puts"):
        notes.append(f"{refused:,} puts were refused: the engine's memory was full")
    if options.is_kept:
        notes.append(f"the engine's files are left below {options.directory}")
    return notes
