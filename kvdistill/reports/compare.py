"""Compare traces, runs or probes: ratios to the first side, with confidence intervals of trials.

A comparison holds the figures of all sides, one line each; the settings that differ, those with the
largest effect first; and a verdict: one sentence for each side against the first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

import msgspec

from kvdistill.reports.run import RunReport
from kvdistill.reports.tables import Key, Report, ReportedTrials, charts_compared, unit_of
from kvdistill.reports.trace import TraceReport
from kvtrace.core.document.document import (
    Cell,
    Chapter,
    Document,
    Highlight,
    ReportColumn,
    ReportTable,
    Sheet,
    Unit,
    show,
    table_of,
)
from kvtrace.core.errors import ConfigError
from kvtrace.core.metadata import INSTANT_STORAGE
from kvtrace.core.statistics import (
    DEFINITION,
    FEWEST_TRIALS,
    MAX_SPREAD,
    SMALL,
    UNKNOWN,
    Ratio,
    differing,
    disagreements,
    is_memory,
    ratio,
    spread,
)
from kvtrace.core.units import counted, percent


class ComparedSide(msgspec.Struct, frozen=True, kw_only=True):
    """One figure on one side; null unless all of its trials have it."""

    median: float | None
    low: float | None
    high: float | None
    ratio: Ratio
    """Ratio to the first side."""
    trials: list[float | None] = []
    """One value a trial."""


class ComparedLine(msgspec.Struct, frozen=True, kw_only=True):
    """One figure on all sides."""

    tier: str
    op: str
    name: str
    sides: list[ComparedSide]

    @property
    def unit(self) -> Unit:
        """The unit of the figure, derived from its name."""
        return unit_of(self.name)


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Several sides compared: traces, runs or probes."""

    verdict: str
    """One sentence for each other side: its result against the first, and how certain it is."""
    names: list[str]
    kind: str
    """The kind of all sides: trace, run or probe.

    `run and trace` if runs are compared with a simulation.
    """
    trials: list[int]
    settings: dict[str, list[object]]
    """Settings that differ, one value a side, those with the largest effect first.

    Null if a side does not have the setting.
    """
    warnings: list[str]
    lines: list[ComparedLine]
    together: int
    """Number of figures in the verdict; all their intervals together have 95 % confidence."""
    definition: str = DEFINITION


KINDS = ("run", "probe", "trace")
"""Kinds of reports that can be compared."""
_MIXED = {"run", "trace"}
"""Measured against simulated: only counts, bytes and sizes are compared."""
_TTFT = "first_token_"
_FAULTS = ("errors", "requeues", "splits")


def compare(sides: Sequence[ReportedTrials]) -> Comparison:
    """Compare `sides`, each with the first.

    ConfigError for fewer than two sides, kinds without common figures, or a side without figures.
    """
    if len(sides) < 2:  # noqa: PLR2004 - a comparison
        raise ConfigError("name two or more traces, runs or probes to compare")
    for side in sides:
        if not side.reports or side.reports[0].kind not in KINDS:
            raise ConfigError(
                f"{side.name} is no trace, run or probe, so it cannot be compared; use kvdistill report"
            )
    kinds = [side.reports[0].kind for side in sides]
    is_mixed = set(kinds) == _MIXED
    if len(set(kinds)) > 1 and not is_mixed:
        message = ", ".join(
            f"{side.name} is a {kind}" for side, kind in zip(sides, kinds, strict=True)
        )
        raise ConfigError(
            f"only inputs of one kind can be compared: {message}; kvdistill report accepts all kinds"
        )
    is_of_models = all(_is_simulated(report) for side in sides for report in side.counted)
    trials = [
        [
            dict((r.of_model() if is_of_models and isinstance(r, RunReport) else r).compared())
            for r in side.counted
        ]
        for side in sides
    ]
    figures = [
        {
            key: [trial_figures.get(key) for trial_figures in figures_of_trials]
            for key in dict.fromkeys(
                key for trial_figures in figures_of_trials for key in trial_figures
            )
        }
        for figures_of_trials in trials
    ]
    if is_mixed:
        # A trace counts the bytes that deletes free; a run counts 0, because nothing is transferred.
        figures = [
            {key: values for key, values in side.items() if key[1:] != ("delete", "bytes")}
            for side in figures
        ]
    if unlike := list(_ttft_warnings(sides)):
        figures = [
            {
                figures_of_trials: values
                for figures_of_trials, values in side.items()
                if not figures_of_trials[2].startswith(_TTFT)
            }
            for side in figures
        ]
    names, settings = (
        [side.name for side in sides],
        differing([side.reports[0].settings() for side in sides]),
    )
    differing_tiers = {
        name.removeprefix("tiers.") for name, values in settings.items() if None not in values
    }
    # The verdict is of the last tier: tiers with different targets come last.
    figures = [
        dict(sorted(side.items(), key=lambda figure: figure[0][0] in differing_tiers))
        for side in figures
    ]
    message, lines, together = judge(names, figures)
    mixes = {
        r.run.summary.mix
        for side in sides
        for r in side.reports
        if isinstance(r, RunReport) and r.run
    } - {""}
    message = "; ".join([*_load_differences(sides), *_opening_warnings(sides), message])
    return Comparison(
        # One mix of reads and writes on all sides is part of the verdict.
        verdict="; ".join([message, *mixes]) if len(mixes) == 1 else message,
        names=names,
        kind=" and ".join(sorted(set(kinds))),
        trials=[len(side.counted) for side in sides],
        settings=ordered_settings(settings),
        warnings=unlike
        + [
            message
            for side, side_figures in zip(sides, figures, strict=True)
            for message in _warnings(side, side_figures)
        ],
        lines=[
            line
            for line in lines
            if any(
                (side.median is not None and not (line.name in _FAULTS and side.median == 0))
                for side in line.sides
            )
        ],
        together=together,
    )


def judge(
    names: Sequence[str], figures: Sequence[dict[Key, list[float | None]]]
) -> tuple[str, list[ComparedLine], int]:
    """Compare the trials of each side with the first, figure by figure.

    Returns the verdict, one sentence for each other side; every figure as a line; and the number of
    figures in the verdict. Their intervals have a joint confidence of 95 % (Bonferroni), so a drive
    compared with itself is called different in at most 5 % of cases.
    """
    other_sides, lines = range(1, len(names)), _lines(figures, 1)
    judged = [line for side in other_sides for line in _judged_lines(lines, side)]
    lines = _lines(figures, max(1, len(judged)))
    # With several drives or jobs, the verdict is of the last one.
    drives = {
        line.tier
        for line in lines
        if line.name == "bandwidth_bytes_per_s" and not is_memory(line.tier)
    }
    tiers = (
        " and ".join(dict.fromkeys(line.tier for line in judged if line.tier))
        if len(drives) > 1
        else ""
    )
    verdicts = "; ".join(verdict(names, lines, side) for side in other_sides)
    return f"{tiers}: {verdicts}" if tiers else verdicts, lines, max(1, len(judged))


def _lines(figures: Sequence[dict[Key, list[float | None]]], together: int) -> list[ComparedLine]:
    keys = dict.fromkeys(key for side in figures for key in side)
    sides = {
        key: [compared_side(side.get(key), figures[0].get(key), together) for side in figures]
        for key in keys
    }
    return [
        ComparedLine(tier=tier, op=op, name=name, sides=compared_sides)
        for (tier, op, name), compared_sides in sides.items()
    ]


def compared_side(
    values: list[float | None] | None, first: list[float | None] | None, together: int
) -> ComparedSide:
    """Return the trials of one figure, `values`, against those of the first side.

    Null if either side lacks the figure.
    """
    measured = [value for value in values or [] if value is not None]
    compared = UNKNOWN if values is None or first is None else ratio(first, values, together)
    if not measured or len(measured) < len(values or []):
        return ComparedSide(median=None, low=None, high=None, ratio=compared, trials=values or [])
    return ComparedSide(
        median=median(measured),
        low=min(measured),
        high=max(measured),
        ratio=compared,
        trials=values or [],
    )


def _load_differences(sides: Sequence[ReportedTrials]) -> Iterator[str]:
    """Yield a warning if the loads of the sides differ; for runs, also the replayed window.

    Loads are compared only if all sides record them.
    """
    settings = [side.reports[0].settings() for side in sides]
    loads = [
        load
        for side_settings in settings
        if isinstance(load := side_settings.get("load"), dict) and load
    ]
    unlike = differing(loads) if len(loads) == len(sides) else {}
    if all(side.reports[0].kind == "run" for side in sides):
        unlike |= differing(
            [{name: side_settings.get(name) for name in _REPLAYED} for side_settings in settings]
        )
    # The file's content decides, not its name.
    unlike.pop(
        "file" if "sha256" not in unlike else "sha256" if "file" in unlike else "",
        None,
    )
    if unlike:
        differences = [
            f"{_LOAD.get(name, name.replace('_', ' '))}"
            f" {' / '.join(show(side_settings, unit_of(name, Unit.TEXT)) for side_settings in values)}"
            for name, values in unlike.items()
        ]
        yield f"LOADS DIFFER, so neither policies nor drives can be compared: {'; '.join(differences)}"


def _opening_warnings(sides: Sequence[ReportedTrials]) -> Iterator[str]:
    """Yield warnings that open the verdict: failed operations, cut-off trials, simulated sides."""
    for side in sides:
        counts = [report.failed() for report in side.counted if isinstance(report, RunReport)]
        if failed := sum(count for count, _, _ in counts):
            yield (
                f"{failed:,} of {sum(total for _, total, _ in counts):,} {counts[0][2]} of {side.name}"
                " FAILED"
            )
        if left_out := len(side.reports) - len(side.counted):
            yield (
                f"PARTIAL: {left_out} of {len(side.reports)} trials of {side.name} were cut off and are"
                " omitted"
            )
        elif getattr(side.reports[0], "is_partial", False):
            yield f"PARTIAL: {side.name} cut off"
    simulated = [side.name for side in sides if all(map(_is_simulated, side.counted))]
    if len(simulated) == len(sides):
        yield "SIMULATED"
    elif simulated:
        yield (
            f"SIMULATED: {' and '.join(simulated)}, whose times are not compared with measured ones"
        )


def _is_simulated(report: Report) -> bool:
    """Return whether all tiers of a run were simulated.

    Modelled figures are compared only if this holds on all sides.
    """
    return isinstance(report, RunReport) and report.is_simulated


_REPLAYED = ("node", "window", "limit", "speed")
_LOAD = {
    "sha256": "content of the file",
    "max_requests": "requests at most",
    "duration_ns": "duration",
}


def _ttft_warnings(sides: Sequence[ReportedTrials]) -> Iterator[str]:
    """Yield a warning if modelled TTFT is not comparable.

    Some simulations treat storage as infinitely fast.
    """
    firsts = [(side.name, side.reports[0]) for side in sides]
    traces = [
        (name, report)
        for name, report in firsts
        if isinstance(report, TraceReport) and report.first_token
    ]
    instant = [name for name, report in traces if INSTANT_STORAGE in report.subject.notes]
    if instant and (
        len(instant) < len(traces) or any(isinstance(report, RunReport) for _, report in firsts)
    ):
        yield (
            "TTFT is not compared: storage is treated as infinitely fast in"
            f" {', '.join(instant)} only; set bandwidths of its tiers (--set"
            " tiers.nvme.read_bandwidth=7GB)"
        )


def _warnings(side: ReportedTrials, figures: dict[Key, list[float | None]]) -> Iterator[str]:
    for number, report in enumerate(side.reports, 1):
        if isinstance(report, RunReport):
            trial_name = side.name if len(side.reports) == 1 else f"{side.name}, trial {number}"
            yield from (f"{trial_name}: {warning}" for warning in report.warnings())
            if report.run is not None and report.run.verification is not None:
                yield f"{trial_name} was verified, which slows down reads"
    first = side.reports[0]
    requests = first.run and first.run.requests if isinstance(first, RunReport) else first
    if getattr(requests, "first_token", None) is not None:
        yield (f"{side.name}: TTFT includes modelled, not measured, compute time")
    if isinstance(first, RunReport) and first.run is not None:
        simulated = {figures.tier for figures in first.run.summary.figures if figures.is_simulated}
        for tier in sorted(
            simulated - {tier for tier, _op, name in figures if name == "operations"}
        ):
            yield (
                f"{side.name}: tier {tier} is simulated, so its modelled figures are not compared"
            )
    spreads = (
        (" ".join(key), spread(values)) for key, values in figures.items() if key[2] in _REPEATABLE
    )
    for line in disagreements([(name, share) for name, share in spreads if share is not None]):
        yield f"{side.name}: {line}"
    if not isinstance(first, TraceReport) and len(side.counted) < FEWEST_TRIALS:
        advice = {
            1: "has one trial: its spread is unknown",
            2: "has two trials: its intervals are unreliable",
        }
        yield f"{side.name} {advice[len(side.counted)]}; run it with --trials {FEWEST_TRIALS} or more"


_FIRST_SETTINGS = (
    "load.", "tiers.", "trace", "preset", "model", "seed", "speed", "queue_depth", "io_bytes", "engine", "is_buffered",
    "window.", "limit",
)  # fmt: skip
_LAST_SETTINGS = ("version", "host.")

Settings = dict[str, list[object]]
"""Values by name of the setting, one a side."""


def ordered_settings(settings: Settings) -> Settings:
    """Sort `settings` by their effect on a run: targets and load first, the host last."""

    def rank(name: str) -> int:
        last_rank = len(_FIRST_SETTINGS) + name.startswith(_LAST_SETTINGS)
        return next(
            (place for place, start in enumerate(_FIRST_SETTINGS) if name.startswith(start)),
            last_rank,
        )

    return {name: settings[name] for name in sorted(settings, key=rank)}


def split_settings(settings: Settings) -> tuple[Settings, Settings]:
    """Split `settings` into differences, and settings that only some sides record.

    A version or machine may record more than another, which is no difference between the sides. A
    target that only one side has is a difference, and so is an option that is null on one side.
    """
    compared_prefixes = ("tiers.", "load.")
    one_sided = [
        name
        for name, values in settings.items()
        if None in values and "." in name and not name.startswith(compared_prefixes)
    ]
    return (
        {name: values for name, values in settings.items() if name not in one_sided},
        {name: settings[name] for name in one_sided},
    )


_REPEATABLE = ("bandwidth_bytes_per_s", "operations_per_s", "latency_mean_ns", "latency_p50_ns")
"""Figures that should repeat from run to run; tails are shown, but not judged."""
_LATENCIES = tuple(
    f"{time}{part}_ns"
    for part in ("p99", "p95", "p50")
    for time in ("response_", "latency_", "first_token_", "")
)
"""Candidates for the latency in a verdict: the first that both sides have is used."""


def verdict(names: Sequence[str], lines: Sequence[ComparedLine], side: int) -> str:
    """Return the verdict of one side against the first: differences, or their absence.

    The largest difference comes first. A figure with trials that vary too much is
    inconclusive; the others are not.
    """
    a, b = names[0], names[side]
    judged = _judged_lines(lines, side)
    if not any(line.op for line in judged):
        hit_sides = next(
            (line.sides for line in lines if (line.tier, line.name) == ("", "hit_ratio")), None
        )
        if (
            hit_sides is not None
            and hit_sides[0].median is not None
            and hit_sides[side].median is not None
        ):
            # A simulation is exact, so it needs no trials.
            return f"{b} hit rate {hit_sides[side].median:.2%}, {a} {hit_sides[0].median:.2%}"
    inconclusive = [line for line in judged if _is_inconclusive(line, side)]
    reliable = [line for line in judged if line not in inconclusive]
    different = [line for line in reliable if line.sides[side].ratio.differs]
    similar = [line for line in reliable if line.sides[side].ratio.differs is False]
    untested = [line for line in reliable if line.sides[side].ratio.differs is None]
    sentences = clauses(different, a, b, side)
    if similar:
        ranges = ", ".join(_range_text(line, side) for line in similar)
        sentences.append(
            f"no significant difference otherwise: {ranges}"
            if different
            else f"no difference between {b} and {a}{_largest_compatible(similar, side)}: {ranges}"
        )
        trials_needed = [line.sides[side].ratio.trials_needed for line in similar]
        finite_needed = [trials for trials in trials_needed if trials is not None]
        if len(finite_needed) < len(trials_needed):
            sentences[-1] += f" (to detect {SMALL:.0%}: more than 1,000 trials a side)"
        elif max(finite_needed) > min(
            len(side.trials) for side in (similar[0].sides[0], similar[0].sides[side])
        ):
            sentences[-1] += f" (to detect {SMALL:.0%}: {max(finite_needed)} trials a side)"
    if inconclusive:
        varying_names = [
            name
            for name, side in ((a, 0), (b, side))
            if any(_is_spread(line.sides[side]) for line in inconclusive)
        ]
        ranges = ", ".join(_range_text(line, side) for line in inconclusive)
        sentences.append(
            f"INCONCLUSIVE: results of {' and '.join(varying_names)} vary by more than"
            f" {MAX_SPREAD * 100:.0f} % from run to run: {ranges}"
        )
    if untested:
        sentences += [
            f"{'; '.join(clauses(untested, a, b, side))}, but too few trials to show a difference"
        ]
    return "; ".join(sentences) or f"{b} against {a}: no common figure shows which is faster"


def _is_inconclusive(line: ComparedLine, side: int) -> bool:
    """Return whether trials of a figure vary so much that nothing is claimed of it.

    They vary by more than MAX_SPREAD on a side, and those of the two sides overlap or give an
    interval that holds equality. Other figures that vary do not matter.
    """
    first, other = line.sides[0], line.sides[side]
    if other.ratio.differs is None or not (_is_spread(first) or _is_spread(other)):
        return False
    ends = (first.low, first.high, other.low, other.high)
    if None in ends or not other.ratio.differs:
        return True
    first_low, first_high, other_low, other_high = (end for end in ends if end is not None)
    return first_low <= other_high and other_low <= first_high


def _largest_compatible(similar: Sequence[ComparedLine], side: int) -> str:
    """Return the largest difference that the intervals of `similar` figures allow, in words."""
    ends = [end for line in similar for end in _shown_ends(line.sides[side].ratio)]
    if None in ends:
        return ""
    largest = max(abs(end - 1) for end in ends if end is not None)
    return f" of more than {percent(largest)} is compatible with these trials"


def _judged_lines(lines: Sequence[ComparedLine], side: int) -> list[ComparedLine]:
    """Return the lines of the verdict: the drive's tail latency by direction, and bandwidth.

    In a closed loop also the duration of the whole run, which varies least from trial to trial.
    """
    comparable = [line for line in lines if line.sides[side].ratio.value is not None]
    drive, judged = drive_of(lines), []
    for op in ("read", "write", ""):
        op_lines = [
            line
            for line in comparable
            if line.op == op and line.name in _LATENCIES and (op or not line.tier)
        ]
        # A faster tier may have a higher percentile, but the verdict is of the drive.
        drive_lines = [line for line in op_lines if line.tier == drive]
        for name in _LATENCIES:
            tails = [line for line in drive_lines or op_lines if line.name == name]
            if tails:
                judged.append(tails[-1])
                break
    if any(line.name.startswith("response") for line in judged):
        # An open loop has the bandwidth of its trace, on any drive that is fast enough.
        return judged
    tiers = {line.tier for line in judged} or {drive}
    bandwidths = [
        line for line in comparable if line.name == "bandwidth_bytes_per_s" and line.tier in tiers
    ]
    # A run that a time limit ends has the same duration on any drive.
    is_same_load = all(
        line.sides[side].ratio.value == 1 for line in lines if line.name == "operations"
    )
    if is_memory(drive) or not bandwidths or not is_same_load:
        return judged + bandwidths
    return judged + bandwidths + [line for line in comparable if line.name == _DURATION]


_DURATION = "wall_ns"
"""Duration of the whole run: in a closed loop, the time that a drive needs for the load."""


def clauses(lines: Sequence[ComparedLine], a: str, b: str, side: int) -> list[str]:
    """Return clauses such as `b reads 18 % faster at p99 [12, 23] than a`, the largest first.

    Latencies are one clause, bandwidths another, and the duration of the run a third.
    """
    by_size = sorted(lines, key=lambda line: _difference(line, side), reverse=True)
    phrases: dict[str, list[str]] = {}
    for line in by_size:
        change = _change_text(line, line.sides[side].ratio.value)
        interval = _interval_text(line, side)
        if line.name == _DURATION:
            phrases.setdefault("takes", []).append(f"{change}{interval}")
        elif _is_time(line):
            verb = f"{line.op}s" if line.op else "brings first tokens"
            text = f"{verb} {change} at {_percentile(line)}{interval}"
            phrases.setdefault("", []).append(text)
        else:
            phrases.setdefault("has a", []).append(f"{line.op} bandwidth {change}{interval}")
    texts = [f"{verb} {' and '.join(parts)}".strip() for verb, parts in phrases.items()]
    return [
        f"{b} {text} than {a}" if index == 0 else f"it {text}" for index, text in enumerate(texts)
    ]


def _difference(line: ComparedLine, side: int) -> float:
    """Return how far a ratio is from 1, the same for a half and a double."""
    value = line.sides[side].ratio.value
    return abs(math.log(value)) if value else math.inf


def _change_text(line: ComparedLine, ratio_: float | None) -> str:
    """Return the deviation of a ratio from 1 in percent, with faster, slower, lower or higher."""
    value, words = 1.0 if ratio_ is None else ratio_, ("lower", "higher")
    if _is_time(line):
        words = ("shorter", "longer") if line.name == _DURATION else ("faster", "slower")
    share = abs(value - 1)
    is_near_end = 0 < share < 0.005 or 0.995 < share < 1  # noqa: PLR2004 - would round to 0 or 100 %
    return f"{percent(share) if is_near_end else f'{share * 100:.0f} %'} {words[value >= 1]}"


def _interval_text(line: ComparedLine, side: int) -> str:
    """Return the confidence interval in percent, as `_change_text` has it."""
    ratio_ = line.sides[side].ratio
    if ratio_.low is None or ratio_.high is None:
        return ""
    ends = (ratio_.high, ratio_.low) if (ratio_.value or 1) < 1 else (ratio_.low, ratio_.high)
    return f" [{', '.join(_change_text(line, end).partition(' %')[0] for end in ends)}]"


def _range_text(line: ComparedLine, side: int) -> str:
    low, high = _shown_ends(line.sides[side].ratio)
    if line.name == _DURATION:
        label = "duration"
    else:
        figure = _percentile(line) if _is_time(line) else "bandwidth"
        label = f"{line.op or 'first token'} {figure}"
    return f"{label} ({_TOO_WIDE if low is None else f'{_change_text(line, low)} to {_change_text(line, high)}'})"


_TELLS_NOTHING = 100
"""An interval with a larger ratio of its ends is not printed; two trials may give 10^12 %."""
_TOO_WIDE = "trials vary too much for an interval"


def _shown_ends(ratio_: Ratio) -> tuple[float | None, float | None]:
    """Return the ends of an interval as printed; null if it is too wide."""
    is_wide = (
        ratio_.low is not None
        and ratio_.high is not None
        and ratio_.high > _TELLS_NOTHING * ratio_.low
    )
    return (None, None) if is_wide and not ratio_.differs else (ratio_.low, ratio_.high)


def _is_time(line: ComparedLine) -> bool:
    return line.name.endswith("_ns")


def _percentile(line: ComparedLine) -> str:
    return next(part for part in line.name.split("_") if part[0] == "p" and part[1:].isdigit())


def varying_lines(lines: Sequence[ComparedLine], side: int | None = None) -> list[ComparedLine]:
    """Return the lines that should repeat over trials but vary too much.

    All sides are checked, or only the first and `side` if that is given.
    """
    return [
        line
        for line in lines
        if line.name in _REPEATABLE
        and any(
            _is_spread(side)
            for side in (line.sides if side is None else (line.sides[0], line.sides[side]))
        )
    ]


def _is_spread(side: ComparedSide) -> bool:
    return (spread(side.trials) or 0) > MAX_SPREAD


_MARKS = {True: "yes", False: "no", None: "-"}
_HIGHLIGHTED = (
    "bandwidth_bytes_per_s",
    "latency_p50_ns",
    "latency_p99_ns",
    "response_p99_ns",
    "bytes",
    "hit_ratio",
    "capacity_writes_per_day",
)
_MOST_HIGHLIGHTS = 6


def drive_of(lines: Sequence[ComparedLine]) -> str:
    """Return the drive: the last (slowest) tier of the first side that transferred bytes.

    Without bytes, it is the last tier.
    """
    for name in ("bandwidth_bytes_per_s", "bytes", ""):
        measured = [line for line in lines if line.tier and line.sides[0].median is not None]
        # Tiers that only other sides have come after those of the first, so they are left out.
        if tiers := [line.tier for line in measured if line.name.startswith(name)]:
            return tiers[-1]
    return ""


def comparison_of(sides: Sequence[ReportedTrials]) -> tuple[Comparison, Document]:
    """Return the comparison of `sides` (see `compare`), and its document."""
    compared = compare(sides)
    numbers = [f"[{number}]" for number in range(len(compared.names))]
    rows = list(zip(numbers, compared.names, compared.trials, strict=True))
    tables = [
        table_of(
            "Inputs",
            Sheet.SUMMARY,
            [
                ReportColumn("side"),
                ReportColumn("name"),
                ReportColumn("trials", unit=Unit.COUNT),
            ],
            rows,
        )
    ]
    differing, one_sided = split_settings(compared.settings)
    if differing:
        tables.append(settings_table("Settings that differ", differing, numbers))
    drive = drive_of(compared.lines)
    chapters = [
        *charts_compared(sides, drive),
        Chapter("Trials that vary", _varying_tables(compared)),
        Chapter("Sides", tables),
        Chapter("Figures", figure_tables(compared, numbers)),
        *([_one_sided_chapter(one_sided, numbers)] if one_sided else []),
    ]
    charts = [
        chart for chapter in chapters[:2] for table in chapter.tables for chart in table.charts
    ]
    document = Document(
        name="Comparison",
        headline=compared.verdict,
        subject=[
            f"{number} {_side_text(side)}" for number, side in zip(numbers, sides, strict=True)
        ],
        warnings=compared.warnings,
        highlights=_highlights(compared),
        chapters=chapters,
        about=f"{' and '.join(compared.names[1:])} against {compared.names[0]}"
        + (f": {drive}" if drive else ""),
        pictures=tuple(chart for chart in charts if drive in chart.title)[:2],
    )
    return compared, document


def settings_table(title: str, settings: Settings, numbers: list[str]) -> ReportTable:
    """Return `settings` as a table, a column a side."""
    columns = [
        ReportColumn("setting"),
        *(ReportColumn(f"side{i}", number) for i, number in enumerate(numbers)),
    ]
    rows = [
        [name, *(None if v is None else str(v) for v in values)]
        for name, values in settings.items()
    ]
    return table_of(title, Sheet.PARAMETERS, columns, rows)


def _one_sided_chapter(settings: Settings, numbers: list[str]) -> Chapter:
    """Return the settings that only some sides have: folded in a page, counted in a terminal."""
    title, tables = "Settings that only some sides have", [settings_table("", settings, numbers)]
    kinds, verb = ("setting", "is") if len(settings) == 1 else ("settings", "are")
    summary = f"{len(settings)} {kinds} of only some sides {verb} in a page and in --json"
    return Chapter(title, tables, is_folded=True, in_short=summary)


def _highlights(compared: Comparison) -> list[Highlight]:
    """Return the ratios of the drive's figures, if there are two sides."""
    if len(compared.names) != 2:  # noqa: PLR2004 - the first and one other
        return []
    comparable = [
        line
        for line in compared.lines
        if line.op != "delete" and line.sides[1].ratio.value is not None
    ]
    # The bytes of a run are those of its trace, so they are no result.
    candidates = [
        line
        for line in comparable
        if line.name in _HIGHLIGHTED and (line.name != "bytes" or compared.kind == "trace")
    ]
    drive_lines = [line for line in candidates if line.tier == drive_of(compared.lines)]
    highlights = []
    for line in drive_lines[:_MOST_HIGHLIGHTS]:
        ratio_, name = (
            line.sides[1].ratio,
            line.name.removesuffix("_ns").removesuffix("_bytes_per_s").replace("_", " "),
        )
        name = "DWPD" if line.name == "capacity_writes_per_day" else f"{line.op} {name}".strip()
        low, high = _shown_ends(ratio_)
        missing_interval = _TOO_WIDE if ratio_.differs is False else "one trial, no interval"
        detail = (
            missing_interval
            if low is None or high is None
            else f"95 % interval {_signed_percent(low)} to {_signed_percent(high)}"
        )
        label = f"{name}, {line.tier}: {compared.names[1]} relative to {compared.names[0]}"
        highlights.append(Highlight(label, _signed_percent(ratio_.value), Unit.TEXT, detail))
    return highlights


def _signed_percent(ratio_: float | None) -> str | None:
    return None if ratio_ is None else f"{ratio_ - 1:+.1%}".replace("%", " %")


def figure_tables(compared: Comparison, numbers: list[str]) -> list[ReportTable]:
    """Return every compared figure, one table a tier: the sides, and their ratios to the first."""
    has_intervals = any(
        side.ratio.low is not None for line in compared.lines for side in line.sides[1:]
    )
    columns = [
        ReportColumn("op"),
        ReportColumn("figure"),
        *(ReportColumn(f"side{i}", number, Unit.NUMBER) for i, number in enumerate(numbers)),
    ]
    for i, number in list(enumerate(numbers))[1:]:
        columns.append(ReportColumn(f"ratio{i}", f"{number}/[0]", Unit.RATIO))
        if has_intervals:
            columns += [
                ReportColumn(f"low{i}", "from", Unit.RATIO),
                ReportColumn(f"high{i}", "to", Unit.RATIO),
                ReportColumn(f"differs{i}", "differs"),
            ]
    text = (
        compared.definition
        if has_intervals
        else "ratio: of the medians; without trials there are no intervals"
    )
    text += (
        f"; an interval of ends more than {_TELLS_NOTHING} times apart is left out"
        if has_intervals
        else ""
    )
    note = f"{text[:1].upper()}{text[1:]}. Values are medians of trials."
    groups: dict[str, list[list[object]]] = {}
    for line in sorted(compared.lines, key=lambda line: line.op):
        cells: list[object] = [
            line.op,
            line.name,
            *(Cell(side.median, line.unit) for side in line.sides),
        ]
        for side in line.sides[1:]:
            ratio_ = side.ratio
            cells += [
                ratio_.value,
                *([*_shown_ends(ratio_), _MARKS[ratio_.differs]] if has_intervals else []),
            ]
        groups.setdefault(line.tier, []).append(cells)
    drive = "" if compared.kind == "scorecard" else drive_of(compared.lines)
    order = sorted(
        dict.fromkeys(line.tier for line in compared.lines), key=lambda tier: tier != drive
    )
    return [
        table_of(
            f"Figures: {tier or 'as a whole'}",
            Sheet.PERFORMANCE,
            columns,
            groups[tier],
            "" if index else note,
            keys=2,
        )
        for index, tier in enumerate(order)
    ]


def _side_text(side: ReportedTrials) -> str:
    """Return a side in one line: its name, its trials, and the drives of a run."""
    first = side.reports[0]
    drives = (
        [] if not isinstance(first, RunReport) or first.run is None else list(first.run.drives())
    )
    targets = [f"{name} on {facts['target']}" for name, facts in drives if facts.get("target")]
    return ", ".join([side.name, counted(len(side.counted), "trial"), *targets])


def _varying_tables(compared: Comparison) -> list[ReportTable]:
    """Return each trial's value of the figures that should repeat but vary."""
    lines = varying_lines(compared.lines)
    if not lines:
        return []
    max_trials = max(compared.trials)
    columns = [
        ReportColumn("tier"),
        ReportColumn("op"),
        ReportColumn("figure"),
        ReportColumn("side"),
        *(
            ReportColumn(f"trial{trial}", f"trial {trial}", Unit.NUMBER)
            for trial in range(1, max_trials + 1)
        ),
    ]
    rows = []
    for line in lines:
        for name, side in zip(compared.names, line.sides, strict=True):
            values = [Cell(value, line.unit) for value in side.trials]
            rows.append(
                [line.tier, line.op, line.name, name, *values, *[None] * (max_trials - len(values))]
            )
    return [table_of("Each trial", Sheet.PERFORMANCE, columns, rows, keys=4)]
