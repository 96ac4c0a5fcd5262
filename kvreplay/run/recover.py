"""Make a run, marked partial, of the journal that a killed run left."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import msgspec

from kvreplay.engine.setting import Setting, settle
from kvreplay.plan.replay_config import Config
from kvreplay.result import run_tables as tables
from kvreplay.result.run_tables import JournaledRecord, PartialRunFile, unrecovered
from kvreplay.result.summarize import (
    Measured,
    RunResults,
    window_note,
)
from kvreplay.run.feed import Feed
from kvreplay.run.replay import FinishedRun, Interrupted, rows_to_report, write_down
from kvreplay.tiers.tier import BY_KEY, SeveralDrives
from kvtrace.core.errors import (
    ConfigError,
    TraceError,
    need_file,
)
from kvtrace.core.parameters import named
from kvtrace.core.run.run_file import (
    OPS_FILE,
    SERIES_FILE,
    SERVED_FILE,
    DeviceIo,
    RunFile,
)
from kvtrace.core.tables import is_dataset, objects_path, trace_sha256


def recover(path: Path, trace: Path | None = None) -> FinishedRun:
    """Write the run in `path`, which was cut off, from its journal.

    `trace` is the present path of its trace, if that moved.

    ConfigError, TraceError if there is nothing to recover, or the trace is not the one that was
    replayed. DeviceError if the run is still going on, or cannot be read.
    """
    with unrecovered(path) as begun, ExitStack() as stack:
        setting = _setting(begun, path, trace)
        window = setting.window
        record = JournaledRecord(path, window.planned_rows)
        results = stack.enter_context(RunResults(setting, path))
        window.loader.begin(setting.pacer)
        results.note_end(record.ended_ns)
        feed = Feed(window.loader, results.take, record.begin)
        feed.finish(rows_to_report(setting, record.reached + 1))
        results.end()
        error = Interrupted(
            "killed while it ran; recovered from its journal, of which the last seconds may be"
            " missing"
        )
        trouble = [
            (
                "its duration ends at the last completion that was kept; the cost of data generation"
                " was lost in the kill"
            )
        ]
        if setting.config.is_verified:
            trouble.append(
                "details of --verify were lost with the process; corrupt operations are in"
                " ops.parquet"
            )
        measured = Measured(
            {name: DeviceIo(read_bytes=None, written_bytes=None) for name in begun.smart},
            results.summary(None, results.last_completed_ns),
            error,
            trouble,
        )
        came_to = msgspec.structs.replace(begun, window=window_note(results.setting))
        outcome = write_down(results, came_to, measured, path)
        tables.remove_journal(path)
        # Temporary files that the killed run had begun to write.
        for name in (OPS_FILE, SERVED_FILE, SERIES_FILE):
            for unfinished_file in path.glob(f".{name}.*.tmp"):
                unfinished_file.unlink()
    return outcome


def recovered(path: Path, run: RunFile) -> str:
    """Return a sentence that says how much of `run`, one of several beside `path`, was recovered."""
    trial_count = next((after for word, after in pairwise(run.argv) if word == "--trials"), None)
    name = path.name.replace("trial-", "trial ") + (f" of {trial_count}" if trial_count else "")
    planned = run.window.planned_rows or 0
    return (
        f"{name} was cut off; recovered {planned - (run.summary.not_reached or 0):,} of {planned:,}"
        " rows"
    )


def _setting(begun: PartialRunFile, path: Path, trace: Path | None) -> Setting:
    """Return the run's setting, from run.partial.json and its trace."""
    try:
        config = msgspec.convert(begun.config, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{path}: its configuration is of another version of kvreplay: {error}"
        ) from None
    where = trace or Path(begun.running.trace)
    if not is_dataset(where):
        need_file(where, "; name the replayed trace with --trace")
    setting = settle(config, where, path, begun.argv, repeats=begun.window.planned_repeats)
    digest = trace_sha256(where)
    if begun.trace.sha256 is not None and digest != begun.trace.sha256:
        raise TraceError(
            f"not the trace that was replayed; name that one with {named('trace')} (SHA-256"
            f" {begun.trace.sha256}, not {digest})",
            path=where,
        )
    is_same = (
        setting.reader.meta == begun.trace.metadata
        and setting.window.planned_rows == begun.window.planned_rows
    )
    if not is_same:
        raise TraceError(
            f"not the trace that was replayed; name that one with {named('trace')}", path=where
        )
    for tier in setting.tiers:
        if tier is not None:
            tier_facts = begun.tiers[tier.name]
            tier.engine = tier_facts["engine"]
            if isinstance(tier, SeveralDrives) and tier.rule != tier_facts["placement"]:
                raise ConfigError(
                    f"{objects_path(where)}:"
                    f" {'missing' if tier_facts['placement'] == BY_KEY else 'not there when it ran'}; it"
                    " says on which drive each object is: restore it beside the trace, as it was"
                    " for the run"
                )
    return setting
