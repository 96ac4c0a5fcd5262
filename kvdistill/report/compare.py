"""Traces, runs and probes beside each other: ratios to the first, with confidence where there are trials."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from kvdistill.report.comparison.lines import ComparedLine, ComparedSide, Comparison, Key
from kvdistill.report.comparison.settings import in_order
from kvdistill.report.comparison.verdict import spoiled, spreads, verdict
from kvdistill.report.probe import TIMES, ProbeReport
from kvdistill.report.report import JobsReport, Report, RunReport, SweepReport, TraceReport
from kvdistill.report.request_tables import SERVING_FIGURES, SERVING_TIMES
from kvtrace.core.errors import ConfigError
from kvtrace.core.metadata import INSTANT_STORAGE
from kvtrace.core.run.figures import Serving, ServingTimes
from kvtrace.core.run.run_file import RunFile
from kvtrace.core.statistics import FEWEST_TRIALS, UNKNOWN, differing, disagreements, ratio

_RATES = ("bandwidth_bytes_per_s", "operations_per_s", "operations", "errors")
_PERCENTILES = ("mean_ns", "p50_ns", "p95_ns", "p99_ns", "p99_9_ns", "p99_99_ns", "max_ns")
_MIXED = {"run", "trace"}
"""What is measured stands beside what was simulated: counts, bytes and sizes are of both."""
_TTFT = "first_token_"
_FAULTS = ("errors", "requeues", "splits")


@dataclass(frozen=True, slots=True)
class ReportedTrials:
    """The reports of one side: of a trace, of a run, or of each trial of several."""

    name: str
    reports: Sequence[Report]


def compare(sides: Sequence[ReportedTrials]) -> Comparison:
    """Return `sides` beside each other.

    Raises:
        ConfigError: fewer than two, of kinds that have nothing in common, or one of nothing that has figures.

    """
    if len(sides) < 2:  # noqa: PLR2004 - a comparison
        raise ConfigError("name two or more traces, runs or probes to compare")
    for side in sides:
        if isinstance(side.reports[0], JobsReport):
            raise ConfigError(f"{side.name} holds jobs; they are compared with their source already: kvdistill report")
    kinds = [kind_of(side) for side in sides]
    is_mixed = set(kinds) == _MIXED
    if len(set(kinds)) > 1 and not is_mixed:
        said = ", ".join(f"{side.name} is a {kind}" for side, kind in zip(sides, kinds, strict=True))
        raise ConfigError(f"only like with like is compared: {said}; kvdistill report shows them after each other")
    found = [_by_figure(side) for side in sides]
    if is_mixed:
        # A trace says what its deletes free, a run what they moved: nothing.
        found = [{key: values for key, values in side.items() if key[1:] != ("delete", "bytes")} for side in found]
    if unlike := list(_unlike_times(sides)):
        found = [{of: values for of, values in side.items() if not of[2].startswith(_TTFT)} for side in found]
    keys = list(dict.fromkeys(key for side in found for key in side))
    lines = [
        ComparedLine(
            tier=key[0], op=key[1], name=key[2], sides=[_side(side.get(key), found[0].get(key)) for side in found]
        )
        for key in keys
    ]
    names = [side.name for side in sides]
    return Comparison(
        verdict="; ".join(verdict(names, lines, at) for at in range(1, len(names))) + spoiled(names, found),
        names=names,
        kind=" and ".join(sorted(set(kinds))),
        trials=[len(side.reports) for side in sides],
        settings=in_order(differing([_settings(side.reports[0]) for side in sides])),
        warnings=unlike + [said for side, own in zip(sides, found, strict=True) for said in _warnings(side, own)],
        lines=[line for line in lines if any(_says(line.name, side.median) for side in line.sides)],
    )


def _says(name: str, value: float | None) -> bool:
    """Return whether a figure is shown: it is known, and no count of faults that is 0."""
    return value is not None and not (name in _FAULTS and value == 0)


def _by_figure(side: ReportedTrials) -> dict[Key, list[float | None]]:
    trials = [dict(_figures(report)) for report in side.reports]
    keys = dict.fromkeys(key for trial in trials for key in trial)
    return {key: [trial.get(key) for trial in trials] for key in keys}


def _side(values: list[float | None] | None, first: list[float | None] | None) -> ComparedSide:
    known = [value for value in values or [] if value is not None]
    compared = UNKNOWN if values is None or first is None else ratio(first, values)
    if not known or len(known) < len(values or []):
        return ComparedSide(median=None, low=None, high=None, ratio=compared, trials=values or [])
    return ComparedSide(median=median(known), low=min(known), high=max(known), ratio=compared, trials=values or [])


def _figures(report: Report) -> Iterator[tuple[Key, float | None]]:
    if isinstance(report, TraceReport):
        yield from _of_trace(report)
    elif isinstance(report, RunReport):
        yield from _of_run(report)
    elif isinstance(report, ProbeReport):
        yield from _of_probe(report)


def _of_trace(report: TraceReport) -> Iterator[tuple[Key, float | None]]:
    yield ("", "", "span_ns"), report.span_ns
    yield ("", "", "requests"), report.requests
    yield ("", "", "hit_ratio"), report.hit_ratio
    for name, value in (report.first_token or {}).items():
        yield ("", "", f"first_token_{name}"), value
    for tier in report.tiers:
        for name in ("hit_ratio", "peak_live_bytes"):
            yield (tier["name"], "", name), tier[name]
    totals: dict[Key, float] = {}
    for row in report.operations:
        for column, name in (("ops", "operations"), ("bytes", "bytes")):
            key = (row["tier"], row["op"], name)
            totals[key] = totals.get(key, 0) + row[column]
    yield from totals.items()
    yield from _of_both(report)


def _of_run(report: RunReport) -> Iterator[tuple[Key, float | None]]:
    yield ("", "", "wall_ns"), None if report.run is None else report.run.summary.wall_ns
    for name, value in _of_requests(report.run):
        yield ("", "", name), value
    for row in report.figures:
        # What nothing moved for has no figures of its own.
        if row["engine"] not in ("none", "sim"):
            for name in (*_RATES, "bytes"):
                yield (row["tier"], row["op"], name), row[name]
    for prefix in ("latency", "response", "lateness"):
        for row in getattr(report, prefix):
            for name in _PERCENTILES:
                yield (row["tier"], row["op"], f"{prefix}_{name}"), row[name]
    yield from _of_both(report)
    if report.probe is not None:
        yield from _of_probe(report.probe)


def _of_requests(run: RunFile | None) -> Iterator[tuple[str, float | None]]:
    """Yield the figures of whole requests: as a serving benchmark measured them, else as a replay made them up."""
    if run is None:
        return
    if isinstance(run.serving, Serving):
        for name in SERVING_FIGURES:
            yield name, getattr(run.serving, name)
        for name in SERVING_TIMES:
            times = getattr(run.serving, name)
            for field in ServingTimes.__struct_fields__:
                if times is not None and field != "count":
                    yield f"{name}_{field}", getattr(times, field)
    elif run.requests is not None and run.requests.first_token is not None:
        yield "requests", run.requests.requests
        for field in _PERCENTILES:
            yield f"first_token_{field}", getattr(run.requests.first_token, field)


def _of_both(report: TraceReport | RunReport) -> Iterator[tuple[Key, float | None]]:
    for row in report.sizes:
        for name in ("p50_bytes", "mean_bytes", "max_bytes"):
            yield (row["tier"], row["op"], f"size_{name}"), row[name]
    for row in report.reuse:
        yield (row["tier"], "read", "reuse_p50_bytes"), row["p50_bytes"]
    for row in report.writes_per_day:
        yield (row["tier"], "write", "capacity_writes_per_day"), row["capacity_writes_per_day"]


def _of_probe(report: ProbeReport) -> Iterator[tuple[Key, float | None]]:
    for row in report.layers:
        for name in TIMES:
            yield (f"layer {row['layer']}", row["op"], name), row[name]
    for row in report.directions:
        for name in ("completed", "completed_bytes", "requeues", "splits", "errors"):
            yield ("block requests", row["op"], name), row[name]


def kind_of(side: ReportedTrials) -> str:
    """Return what `side` is: trace, run, sweep, probe or jobs."""
    kinds: dict[type, str] = {TraceReport: "trace", RunReport: "run", ProbeReport: "probe", JobsReport: "jobs"}
    return (kinds | {SweepReport: "sweep"})[type(side.reports[0])]


def comparable(sides: Sequence[ReportedTrials]) -> Sequence[ReportedTrials]:
    """Return those of `sides` that are to be compared; none unless there are two of a kind.

    Traces beside a run are its context, not sides: they are compared where there is no run.
    """
    for kind in ("run", "probe", "trace"):
        alike = [side for side in sides if kind_of(side) == kind]
        if alike:
            return alike if len(alike) > 1 else []
    return []


def _settings(report: Report) -> dict[str, Any]:
    if isinstance(report, SweepReport):
        return {}
    if isinstance(report, ProbeReport):
        return {"version": report.version, **report.filter}
    if isinstance(report, JobsReport):
        return {}
    subject = report.subject
    facts = {
        "preset": subject.preset,
        "model": subject.model,
        "seed": subject.seed,
        "version": subject.version,
        "config_sha256": subject.config_sha256,
    }
    run = report.run if isinstance(report, RunReport) else None
    if run is None:
        return facts
    return {
        **{name: value for name, value in facts.items() if name != "config_sha256"},
        "trace": run.trace.file,
        **run.config,
        "engine.name": run.engine.name,
        "host": run.host,
        "window.rows": run.window.rows,
    }


def _unlike_times(sides: Sequence[ReportedTrials]) -> Iterator[str]:
    """Yield why modelled times to the first token are not compared: storage takes time in some simulations only."""
    firsts = [(side.name, side.reports[0]) for side in sides]
    traces = [(name, of) for name, of in firsts if isinstance(of, TraceReport) and of.first_token]
    instant = [name for name, of in traces if INSTANT_STORAGE in of.subject.notes]
    if 0 < len(instant) < len(traces):
        yield (
            f"times to the first token are not compared: storage takes no time in {', '.join(instant)} and does in the "
            "rest; give its tiers times, too (--set tiers.nvme.read_bandwidth=7GB)"
        )


def _warnings(side: ReportedTrials, found: dict[Key, list[float | None]]) -> Iterator[str]:
    for number, report in enumerate(side.reports, 1):
        if isinstance(report, RunReport):
            yield from _run_warnings(report, side.name if len(side.reports) == 1 else f"{side.name}, trial {number}")
    first = side.reports[0]
    if is_modelled(first):
        yield f"{side.name}: its time to the first token holds computing as modelled, not measured"
    if isinstance(first, RunReport) and first.run is not None:
        for tier in sorted({figures.tier for figures in first.run.summary.figures if figures.is_simulated}):
            yield f"{side.name}: tier {tier} is simulated: its figures are a model's and not compared"
    for line in disagreements(spreads(found)):
        yield f"{side.name}: {line}"
    if not isinstance(first, TraceReport) and len(side.reports) < FEWEST_TRIALS:
        many = {1: "is one trial: its spread is unknown", 2: "has two trials: its intervals say little"}
        yield f"{side.name} {many[len(side.reports)]}; run it with --trials {FEWEST_TRIALS} or more"


def is_modelled(report: Report) -> bool:
    """Return whether a time to the first token in `report` comes of our model of computing."""
    if isinstance(report, TraceReport):
        return report.first_token is not None
    if not isinstance(report, RunReport) or report.run is None:
        return False
    return report.run.requests is not None and report.run.requests.first_token is not None


def _run_warnings(report: RunReport, which: str) -> Iterator[str]:
    run = report.run
    if run is not None and run.status == "partial":
        yield f"{which} is PARTIAL: {run.reason}"
    if run is not None and "FELL BEHIND" in run.summary.verdict:
        yield f"{which} fell behind the trace: its times are those of an overload"
    if failed := sum(row["errors"] or 0 for row in report.figures):
        yield f"{which} had {failed:,} failed operations"
    if run is not None and run.verification is not None:
        yield f"{which} was verified, which slows reads down"
