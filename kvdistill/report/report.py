"""The report of what a path holds: a trace, a run, a sweep, a probe or checked jobs."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import msgspec

from kvdistill.check.check import CLOSENESS, find_closeness
from kvdistill.formats.text import TRACE_FILE
from kvdistill.jobs.job import PROFILE
from kvdistill.queries.views import read_json
from kvdistill.report.jobs import JobsReport
from kvdistill.report.probe import ProbeReport, probe_report
from kvdistill.report.run import RunReport, run_report, summary_report
from kvdistill.report.trace import TraceReport, trace_report
from kvtrace.core import tables
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.run.run_file import OPS_FILE, PROBE_FILE, find_run, refuse_cut_off, runs_below
from kvtrace.core.run.sweep_file import LoadSweep, find_sweep
from kvtrace.core.schema import TRACE
from kvtrace.core.statistics import Endurance

BUCKETS = 48


class SweepReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a trace came to at rising loads: the content of sweep.json."""

    name: str
    """The folder's."""
    sweep: LoadSweep


Report: TypeAlias = TraceReport | RunReport | SweepReport | ProbeReport | JobsReport


def report(path: Path, buckets: int = BUCKETS, endurance: Endurance | None = None) -> Report:
    """Return the report of the trace, or the folder of a run, a probe, checked jobs or an import, at `path`.

    Time is in `buckets` equal stretches; `endurance` is what a drive may be written.

    Raises:
        ConfigError: the folder holds nothing to report.
        TraceError: the file is damaged or holds no trace or ops.

    """
    if path.is_dir():
        return _folder_report(path, buckets, endurance)
    try:
        reader = tables.open_table(path, TRACE)
    except TraceError as error:
        if "holds the table 'ops'" in str(error):
            return run_report(path, buckets, endurance)
        raise
    return trace_report(path, reader.meta, buckets, endurance)


def _folder_report(path: Path, buckets: int, endurance: Endurance | None) -> Report:
    refuse_cut_off(path)
    if (path / OPS_FILE).is_file():
        return run_report(path / OPS_FILE, buckets, endurance)
    run = find_run(path)
    if run is not None:
        return summary_report(run)
    sweep = find_sweep(path)
    if sweep is not None:
        return SweepReport(name=path.resolve().name, sweep=sweep)
    probe = probe_report(path, buckets)
    if probe is not None:
        return probe
    closeness = find_closeness(path / CLOSENESS)
    if closeness is not None:
        return JobsReport(name=path.resolve().name, closeness=closeness, profile=read_json(path / PROFILE))
    if (path / TRACE_FILE).is_file():
        return report(path / TRACE_FILE, buckets, endurance)
    raise ConfigError(
        f"{path}: no run of kvreplay in this folder ({OPS_FILE} is missing), no {PROBE_FILE}, {CLOSENESS} or "
        f"{TRACE_FILE}{runs_below(path)}"
    )
