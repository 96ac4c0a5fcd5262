"""`kvreplay recover`: make a run, marked partial, of the journal of a killed one."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from pathlib import Path

import msgspec

from kvreplay.config.config import Config
from kvreplay.config.setting import Setting, settle
from kvreplay.result.journal import JournaledRecord, unrecovered
from kvreplay.result.summarize import Measured, RunResults, window_note
from kvreplay.run.run import Feed, FinishedRun, Interrupted, rows_to_report, with_repeats, write_down
from kvreplay.tiers.sharded import BY_KEY, SeveralDrives
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.run.run_file import (
    OPS_FILE,
    PARTIAL_OPS_FILE,
    PARTIAL_RUN_FILE,
    SERIES_FILE,
    SERVED_FILE,
    DeviceIo,
    PartialRunFile,
)
from kvtrace.core.tables import objects_path


def recover(path: Path, trace: Path | None = None) -> FinishedRun:
    """Write the run in `path` that was cut off from its journal; `trace` is where its trace lies now, if it moved.

    Raises:
        ConfigError, TraceError: nothing to recover, or the trace is not the one that was replayed.
        DeviceError: the run is still going on, or cannot be read.

    """
    with unrecovered(path) as begun, ExitStack() as stack:
        setting = _setting(begun, path, trace)
        window, is_open_loop = setting.window, setting.pacer.speed is not None
        kept = JournaledRecord(path, window.planned_rows)
        found = stack.enter_context(RunResults(setting, path))
        window.loader.begin(setting.pacer)
        feed = Feed(window.loader, found.take, is_open_loop=is_open_loop, laid=kept.begin)
        feed.finish(rows_to_report(setting, kept.reached + 1))
        found.end()
        error = Interrupted("killed while it ran; recovered from its journal, of which the last seconds may be missing")
        trouble = [
            "its length is the last completion that was kept; the cost of data generation was lost with the process"
        ]
        if setting.config.is_verified:
            trouble.append("what --verify found died with the process; corrupt operations are in ops.parquet")
        measured = Measured(
            {name: DeviceIo(read_bytes=None, written_bytes=None) for name in begun.smart},
            with_repeats(found.summary(None, found.last_completed_ns), found),
            error,
            None,
            {},
            found.requests,
            None,
            trouble,
        )
        came_to = msgspec.structs.replace(begun, window=window_note(found.setting))
        outcome = write_down(found, came_to, measured, path)
        for name in (PARTIAL_RUN_FILE, PARTIAL_OPS_FILE):
            (path / name).unlink()
        # What the killed run had begun to write aside.
        for name in (OPS_FILE, SERVED_FILE, SERIES_FILE):
            for left in path.glob(f".{name}.*.tmp"):
                left.unlink()
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
    is_same = setting.reader.meta == begun.trace.metadata and setting.window.planned_rows == begun.window.planned_rows
    if not is_same:
        raise TraceError("not the trace that was replayed; name that with --trace", path=where)
    for tier in setting.tiers:
        if tier is not None:
            known = begun.tiers[tier.name]
            tier.engine = known["engine"]
            if isinstance(tier, SeveralDrives) and tier.rule != known["placement"]:
                raise ConfigError(
                    f"{objects_path(where)}: {'missing' if known['placement'] == BY_KEY else 'not there when it ran'}; "
                    "it says on which drive objects lay: have it beside the trace as it was then"
                )
    return setting
