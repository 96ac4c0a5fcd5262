"""`kvreplay recover`: make a run, marked partial, of the journal of a killed one."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from kvreplay.config.config import Config
from kvreplay.config.setting import Setting, settle
from kvreplay.engine.job import NOT_DONE
from kvreplay.result.journal import read_record, unrecovered
from kvreplay.result.manifest import Measured, window_note
from kvreplay.result.mlperf import request_figures
from kvreplay.result.requests import served_batch
from kvreplay.run.finished import FinishedRun, Interrupted, summary_of, write_down
from kvreplay.run.runtime import cut
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.run.run_file import PARTIAL_OPS_FILE, PARTIAL_RUN_FILE, DeviceIo, PartialRunFile


def recover(path: Path, trace: Path | None = None) -> FinishedRun:
    """Write the run in `path` that was cut off from its journal; `trace` is where its trace lies now, if it moved.

    Raises:
        ConfigError, TraceError: nothing to recover, or the trace is not the one that was replayed.
        DeviceError: the run is still going on, or cannot be read.

    """
    with unrecovered(path) as begun:
        setting = _setting(begun, path, trace)
        due_ns = setting.window.paced(setting.pacer)
        record = read_record(path, len(setting.window.plan), is_open_loop=due_ns is not None)
        setting, record, due_ns = cut(setting, record, due_ns)
        served = served_batch(setting, record, due_ns)
        last_ns = int(record.completed_ns.max()) if len(record.completed_ns) else NOT_DONE
        wall_ns = None if last_ns == NOT_DONE else last_ns
        error = Interrupted("killed while it ran; recovered from its journal, of which the last seconds may be missing")
        trouble = ["its length is the last completion that was kept; what making data cost died with the process"]
        if setting.config.is_verified:
            trouble.append("what --verify found died with the process; corrupt operations are in ops.parquet")
        measured = Measured(
            {name: DeviceIo(read_bytes=None, written_bytes=None) for name in begun.smart},
            summary_of(setting, record, due_ns, None, wall_ns),
            error,
            None,
            {},
            request_figures(setting, record, due_ns, served, setting.config.criteria.targets),
            None,
            trouble,
        )
        came_to = msgspec.structs.replace(begun, window=window_note(setting))
        outcome = write_down(setting, came_to, measured, record, due_ns, served, path)
        for name in (PARTIAL_RUN_FILE, PARTIAL_OPS_FILE):
            (path / name).unlink()
    return outcome


def _setting(begun: PartialRunFile, path: Path, trace: Path | None) -> Setting:
    """Return the run's setting, from run.partial.json and its trace."""
    try:
        config = msgspec.convert(begun.config, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: its configuration is of another version of kvreplay: {error}") from None
    where = trace or Path(begun.running.trace)
    if not where.is_file():
        raise ConfigError(f"{where}: no such file; name the trace that was replayed with --trace")
    setting = settle(config, where, path, begun.argv, repeats=begun.window.planned_repeats)
    with where.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if begun.trace.sha256 is not None and digest != begun.trace.sha256:
        raise TraceError(
            f"not the trace that was replayed; name that with --trace (SHA-256 {begun.trace.sha256}, not {digest})",
            path=where,
        )
    is_same = setting.reader.meta == begun.trace.metadata and len(setting.window.plan) == begun.window.planned_rows
    if not is_same:
        raise TraceError("not the trace that was replayed; name that with --trace", path=where)
    for tier in setting.tiers:
        if tier is not None:
            tier.engine = begun.tiers[tier.name]["engine"]
    return setting
