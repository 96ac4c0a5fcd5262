"""Traces, runs and probes beside each other: ratios to the first, with confidence where there are trials."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import msgspec

from kvdistill.report.probe import TIMES, ProbeReport
from kvdistill.report.report import JobsReport, Report, RunReport, SweepReport, TraceReport
from kvtrace.core.errors import ConfigError
from kvtrace.core.statistics import (
    DEFINITION,
    FEWEST_TRIALS,
    MAX_SPREAD,
    UNKNOWN,
    Ratio,
    differing,
    disagreements,
    ratio,
    spread,
)

_RATES = ("bandwidth_bytes_per_s", "operations_per_s", "operations", "errors")
_PERCENTILES = ("mean_ns", "p50_ns", "p95_ns", "p99_ns", "p99_9_ns", "p99_99_ns", "max_ns")
_JUDGED = ("bandwidth_bytes_per_s", "operations_per_s", "latency_mean_ns", "latency_p50_ns")
"""Figures that should repeat; tails are shown, not judged."""
_TAILS = tuple(f"{time}{part}_ns" for part in ("p99", "p95", "p50") for time in ("response_", "latency_", ""))
"""What a verdict speaks of, the first that both sides know."""
_MIXED = {"run", "trace"}
"""What is measured stands beside what was simulated: counts, bytes and sizes are of both."""
_FAULTS = ("errors", "requeues", "splits")
Key = tuple[str, str, str]
"""Tier or layer, operation, figure."""


class ComparedSide(msgspec.Struct, frozen=True, kw_only=True):
    """One figure on one side; null where not all of its trials know it."""

    median: float | None
    low: float | None
    high: float | None
    ratio: Ratio
    """To the first side."""
    trials: list[float | None] = []
    """One value a trial."""


class ComparedLine(msgspec.Struct, frozen=True, kw_only=True):
    """One figure on all sides."""

    tier: str
    op: str
    name: str
    sides: list[ComparedSide]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Traces, runs or probes beside each other."""

    verdict: str
    """One sentence a side: how it does beside the first, and how sure that is."""
    names: list[str]
    kind: str
    """What all sides are: trace, run or probe; `run and trace` where runs stand beside what was simulated."""
    trials: list[int]
    settings: dict[str, list[Any]]
    """Those that differ, one value a side."""
    warnings: list[str]
    lines: list[ComparedLine]
    definition: str = DEFINITION


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
    keys = list(dict.fromkeys(key for side in found for key in side))
    lines = [
        ComparedLine(
            tier=key[0], op=key[1], name=key[2], sides=[_side(side.get(key), found[0].get(key)) for side in found]
        )
        for key in keys
    ]
    names = [side.name for side in sides]
    return Comparison(
        verdict="; ".join(_verdict(names, lines, at) for at in range(1, len(names))) + _spoiled(sides, found),
        names=names,
        kind=" and ".join(sorted(set(kinds))),
        trials=[len(side.reports) for side in sides],
        settings=differing([_settings(side.reports[0]) for side in sides]),
        warnings=[warning for side, own in zip(sides, found, strict=True) for warning in _warnings(side, own)],
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


def _verdict(names: Sequence[str], lines: Sequence[ComparedLine], at: int) -> str:
    """Return how side `at` does beside the first: what its trials show, else what they do not."""
    a, b = names[0], names[at]
    told = _told(lines, at)
    shown = [line for line in told if line.sides[at].ratio.differs]
    unsure = [_range(line, at) for line in told if line.sides[at].ratio.differs is False]
    single = [line for line in told if line.sides[at].ratio.differs is None]
    parts = _clauses(shown, a, b, at)
    if unsure:
        whose = "" if shown else f"of {b} from {a} "
        parts.append(f"no difference {whose}that these trials can show: {', '.join(unsure)}")
    if single:
        parts += [f"{'; '.join(_clauses(single, a, b, at))}: by trials too few to show a difference"]
    if parts:
        return "; ".join(parts)
    hits = next((line for line in lines if (line.tier, line.name) == ("", "hit_ratio")), None)
    shares = (None, None) if hits is None else (hits.sides[0].median, hits.sides[at].median)
    if shares[0] is None or shares[1] is None:
        return f"{b} against {a}: nothing that both measured says which is faster"
    if shares[0] == shares[1]:
        return f"{b} and {a} hit alike: {shares[0]:.2%} of lookups"
    return f"{b} hits {shares[1]:.2%} of lookups, {a} {shares[0]:.2%}"


def _told(lines: Sequence[ComparedLine], at: int) -> list[ComparedLine]:
    """Return the lines that a verdict is made of: the slowest tier's tail of reads and writes, and bandwidth."""
    known = [line for line in lines if line.sides[at].ratio.value is not None]
    found = []
    for op in ("read", "write"):
        for name in _TAILS:
            tails = [line for line in known if (line.op, line.name) == (op, name)]
            if tails:
                found.append(tails[-1])
                break
    if any(line.name.startswith("response") for line in found):
        # An open loop moves what the trace asks for, on any drive that keeps pace.
        return found
    tiers = {line.tier for line in found}
    return found + [line for line in known if line.name == "bandwidth_bytes_per_s" and line.tier in tiers]


def _clauses(lines: Sequence[ComparedLine], a: str, b: str, at: int) -> list[str]:
    """Return `b reads 18 % faster at p99 [12, 23] than a`: its p99 is so much shorter; and how its bandwidths do."""
    times = [
        f"{line.op}s {_much(line, at)} at {_percentile(line)}{_sure(line, at)}" for line in lines if _is_time(line)
    ]
    rates = [f"{line.op} bandwidth {_much(line, at)}{_sure(line, at)}" for line in lines if not _is_time(line)]
    clauses = [f"{b} {' and '.join(times)} than {a}"] if times else []
    if rates:
        clauses.append(f"{'its' if times else f'{b} has a'} {' and '.join(rates)}{'' if times else f' than {a}'}")
    return clauses


def _much(line: ComparedLine, at: int) -> str:
    value = line.sides[at].ratio.value or 1.0
    words = ("faster", "slower") if _is_time(line) else ("lower", "higher")
    return f"{abs(value - 1) * 100:.0f} % {words[value >= 1]}"


def _sure(line: ComparedLine, at: int) -> str:
    """Return the interval, counted as `_much` counts."""
    found = line.sides[at].ratio
    if found.low is None or found.high is None:
        return ""
    ends = [1 - found.high, 1 - found.low] if (found.value or 1) < 1 else [found.low - 1, found.high - 1]
    return f" [{ends[0] * 100:.0f}, {ends[1] * 100:.0f}]"


def _range(line: ComparedLine, at: int) -> str:
    found, words = line.sides[at].ratio, ("faster", "slower") if _is_time(line) else ("lower", "higher")
    low, high = (1.0 if value is None else value for value in (found.low, found.high))
    what = _percentile(line) if _is_time(line) else "bandwidth"
    return f"{line.op} {what} ({(1 - low) * 100:.0f} % {words[0]} to {(high - 1) * 100:.0f} % {words[1]})"


def _is_time(line: ComparedLine) -> bool:
    return line.name.endswith("_ns")


def _percentile(line: ComparedLine) -> str:
    return next(part for part in line.name.split("_") if part[0] == "p" and part[1:].isdigit())


def _spoiled(sides: Sequence[ReportedTrials], found: Sequence[dict[Key, list[float | None]]]) -> str:
    """Return which sides are to be doubted, for the end of the verdict."""
    names = [side.name for side, own in zip(sides, found, strict=True) if disagreements(_spreads(own))]
    return f"; TRIALS DISAGREE in {' and '.join(names)}" if names else ""


def _spreads(found: dict[Key, list[float | None]]) -> list[tuple[str, float]]:
    judged = ((f"{tier} {op} {name}", spread(values)) for (tier, op, name), values in found.items() if name in _JUDGED)
    return [(name, share) for name, share in judged if share is not None]


def disagreeing(compared: Comparison) -> list[ComparedLine]:
    """Return the lines of figures that should repeat, and do not on one side or more."""
    return [
        line
        for line in compared.lines
        if line.name in _JUDGED and any((spread(side.trials) or 0) > MAX_SPREAD for side in line.sides)
    ]


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


def _warnings(side: ReportedTrials, found: dict[Key, list[float | None]]) -> Iterator[str]:
    for number, report in enumerate(side.reports, 1):
        if isinstance(report, RunReport):
            yield from _run_warnings(report, side.name if len(side.reports) == 1 else f"{side.name}, trial {number}")
    first = side.reports[0]
    if isinstance(first, RunReport) and first.run is not None:
        for tier in sorted({figures.tier for figures in first.run.summary.figures if figures.is_simulated}):
            yield f"{side.name}: tier {tier} is simulated: its figures are a model's and not compared"
    for line in disagreements(_spreads(found)):
        yield f"{side.name}: {line}"
    if not isinstance(first, TraceReport) and len(side.reports) < FEWEST_TRIALS:
        many = {1: "is one trial: its spread is unknown", 2: "has two trials: its intervals say little"}
        yield f"{side.name} {many[len(side.reports)]}; run it with --trials {FEWEST_TRIALS} or more"


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
