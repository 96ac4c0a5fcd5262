"""Compare traces, runs or probes.

Ratios to the first, with confidence intervals where there are trials; the document.

A comparison holds figures of several sides, one line each; the settings in which sides differ, what
changes a run most first; and a verdict, the sentence that says how each side does against the first
and what its trials cannot show.
"""

from __future__ import annotations

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
    """To the first side."""
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
        """What it is counted in, by its name."""
        return unit_of(self.name)


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Several sides compared: traces, runs or probes."""

    verdict: str
    """One sentence a side: how it does against the first, and how sure that is."""
    names: list[str]
    kind: str
    """What all sides are.

    Trace, run or probe; `run and trace` where runs are compared with what was simulated.
    """
    trials: list[int]
    settings: dict[str, list[object]]
    """Those that differ, one value a side, what changes a run most first.

    Null where a side does not have it.
    """
    warnings: list[str]
    lines: list[ComparedLine]
    together: int
    """So many figures make the verdict: their intervals hold together at 95 %."""
    definition: str = DEFINITION


KINDS = ("run", "probe", "trace")
"""What can be compared."""
_MIXED = {"run", "trace"}
"""Measured against simulated: only counts, bytes and sizes are compared."""
_TTFT = "first_token_"
_FAULTS = ("errors", "requeues", "splits")


def compare(sides: Sequence[ReportedTrials]) -> Comparison:
    """Compare `sides`, each with the first.

    ConfigError for fewer than two, of kinds that have nothing in common, or one of nothing that has
    figures.
    """
    if len(sides) < 2:  # noqa: PLR2004 - a comparison
        raise ConfigError("name two or more traces, runs or probes to compare")
    for side in sides:
        if not side.reports or side.reports[0].kind not in KINDS:
            raise ConfigError(
                f"{side.name} is no trace, run or probe to compare; kvdistill report shows what it"
                " holds"
            )
    kinds = [side.reports[0].kind for side in sides]
    is_mixed = set(kinds) == _MIXED
    if len(set(kinds)) > 1 and not is_mixed:
        said = ", ".join(
            f"{side.name} is a {kind}" for side, kind in zip(sides, kinds, strict=True)
        )
        raise ConfigError(
            f"only inputs of one kind can be compared: {said}; kvdistill report takes all"
        )
    is_of_models = all(_is_simulated(report) for side in sides for report in side.counted)
    trials = [
        [
            dict((r.of_model() if is_of_models and isinstance(r, RunReport) else r).compared())
            for r in side.counted
        ]
        for side in sides
    ]
    found = [
        {key: [t.get(key) for t in of] for key in dict.fromkeys(key for t in of for key in t)}
        for of in trials
    ]
    if is_mixed:
        # A trace says what its deletes free, a run what they moved: nothing.
        found = [
            {key: values for key, values in side.items() if key[1:] != ("delete", "bytes")}
            for side in found
        ]
    if unlike := list(_unlike_times(sides)):
        found = [
            {of: values for of, values in side.items() if not of[2].startswith(_TTFT)}
            for side in found
        ]
    names, settings = (
        [side.name for side in sides],
        differing([side.reports[0].settings() for side in sides]),
    )
    others = {
        name.removeprefix("tiers.") for name, values in settings.items() if None not in values
    }
    # The answer is of the last tier: of those that lie elsewhere, where some do.
    found = [
        dict(sorted(side.items(), key=lambda figure: figure[0][0] in others)) for side in found
    ]
    said, lines, together = judge(names, found)
    mixes = {
        r.run.summary.mix
        for side in sides
        for r in side.reports
        if isinstance(r, RunReport) and r.run
    } - {""}
    said = "; ".join([*_unlike_loads(sides), *_first_doubts(sides), said])
    return Comparison(
        # What all sides measured: figures of reads alone, or of writes alone, are no answer to the
        # other.
        verdict="; ".join([said, *mixes]) if len(mixes) == 1 else said,
        names=names,
        kind=" and ".join(sorted(set(kinds))),
        trials=[len(side.counted) for side in sides],
        settings=ordered_settings(settings),
        warnings=unlike
        + [said for side, own in zip(sides, found, strict=True) for said in _doubts(side, own)],
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
    names: Sequence[str], found: Sequence[dict[Key, list[float | None]]]
) -> tuple[str, list[ComparedLine], int]:
    """Compare the trials of each side, by figure, with the first's.

    Returns the verdict, a sentence for each other side; every figure as a line; and how many
    figures the verdict is made of: their intervals hold together, so that a drive compared with
    itself is called another in 5 % of cases.
    """
    others, lines = range(1, len(names)), _lines(found, 1)
    judged = [line for at in others for line in _judged_lines(lines, at)]
    lines = _lines(found, max(1, len(judged)))
    # Of several drives or jobs, the answer is of the last.
    drives = {
        line.tier
        for line in lines
        if line.name == "bandwidth_bytes_per_s" and not is_memory(line.tier)
    }
    told = (
        " and ".join(dict.fromkeys(line.tier for line in judged if line.tier))
        if len(drives) > 1
        else ""
    )
    said = "; ".join(verdict(names, lines, at) for at in others)
    return f"{told}: {said}" if told else said, lines, max(1, len(judged))


def _lines(found: Sequence[dict[Key, list[float | None]]], together: int) -> list[ComparedLine]:
    keys = dict.fromkeys(key for side in found for key in side)
    sides = {
        key: [compared_side(side.get(key), found[0].get(key), together) for side in found]
        for key in keys
    }
    return [
        ComparedLine(tier=tier, op=op, name=name, sides=of)
        for (tier, op, name), of in sides.items()
    ]


def compared_side(
    values: list[float | None] | None, first: list[float | None] | None, together: int
) -> ComparedSide:
    """Return the trials of one figure, `values`, beside those of the first side.

    Null where a side has none.
    """
    known = [value for value in values or [] if value is not None]
    compared = UNKNOWN if values is None or first is None else ratio(first, values, together)
    if not known or len(known) < len(values or []):
        return ComparedSide(median=None, low=None, high=None, ratio=compared, trials=values or [])
    return ComparedSide(
        median=median(known), low=min(known), high=max(known), ratio=compared, trials=values or []
    )


def _unlike_loads(sides: Sequence[ReportedTrials]) -> Iterator[str]:
    """Yield in what the sides' loads differ, where all say which requests came.

    Of runs also what part was replayed.
    """
    settings = [side.reports[0].settings() for side in sides]
    loads = [load for each in settings if isinstance(load := each.get("load"), dict) and load]
    unlike = differing(loads) if len(loads) == len(sides) else {}
    if all(side.reports[0].kind == "run" for side in sides):
        unlike |= differing([{name: each.get(name) for name in _REPLAYED} for each in settings])
    # The same requests may lie under another name, and others under the same.
    unlike.pop("file" if "sha256" not in unlike else "sha256" if "file" in unlike else "", None)
    if unlike:
        said = [
            f"{_LOAD.get(of, of.replace('_', ' '))}"
            f" {' / '.join(show(each, unit_of(of, Unit.TEXT)) for each in values)}"
            for of, values in unlike.items()
        ]
        yield f"LOADS DIFFER, so figures compare neither policies nor drives: {'; '.join(said)}"


def _first_doubts(sides: Sequence[ReportedTrials]) -> Iterator[str]:
    """Yield of which sides operations failed or trials were cut off, and which moved nothing.

    The answer begins so.
    """
    for side in sides:
        counts = [report.failed() for report in side.counted if isinstance(report, RunReport)]
        if failed := sum(count for count, _, _ in counts):
            yield (
                f"{failed:,} of {sum(of for _, of, _ in counts):,} {counts[0][2]} of {side.name}"
                " FAILED"
            )
        if left_out := len(side.reports) - len(side.counted):
            yield (
                f"PARTIAL: {left_out} of {len(side.reports)} trials of {side.name} cut off, and"
                " left out"
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
    """Return whether nothing moved.

    Only where that is so on all sides the figures of models are compared.
    """
    return isinstance(report, RunReport) and report.is_simulated


_REPLAYED = ("node", "window", "limit", "speed")
_LOAD = {
    "sha256": "content of the file",
    "max_requests": "requests at most",
    "duration_ns": "duration",
}


def _unlike_times(sides: Sequence[ReportedTrials]) -> Iterator[str]:
    """Yield why modelled times to the first token are not compared.

    Storage takes time in some simulations only.
    """
    firsts = [(side.name, side.reports[0]) for side in sides]
    traces = [(name, of) for name, of in firsts if isinstance(of, TraceReport) and of.first_token]
    instant = [name for name, of in traces if INSTANT_STORAGE in of.subject.notes]
    if instant and (
        len(instant) < len(traces) or any(isinstance(of, RunReport) for _, of in firsts)
    ):
        yield (
            "times to the first token are not compared: storage latency is zero in"
            f" {', '.join(instant)} but not in the rest; give its tiers bandwidths, too (--set"
            " tiers.nvme.read_bandwidth=7GB)"
        )


def _doubts(side: ReportedTrials, found: dict[Key, list[float | None]]) -> Iterator[str]:
    for number, report in enumerate(side.reports, 1):
        if isinstance(report, RunReport):
            which = side.name if len(side.reports) == 1 else f"{side.name}, trial {number}"
            yield from (f"{which}: {warning}" for warning in report.warnings())
            if report.run is not None and report.run.verification is not None:
                yield f"{which} was verified, which slows reads down"
    first = side.reports[0]
    held = first.run and first.run.requests if isinstance(first, RunReport) else first
    if getattr(held, "first_token", None) is not None:
        yield (
            f"{side.name}: its time to the first token includes compute time as modelled, not"
            " measured"
        )
    if isinstance(first, RunReport) and first.run is not None:
        simulated = {figures.tier for figures in first.run.summary.figures if figures.is_simulated}
        for tier in sorted(simulated - {tier for tier, _op, name in found if name == "operations"}):
            yield (
                f"{side.name}: tier {tier} is simulated: its figures are a model's and not compared"
            )
    judged = ((" ".join(of), spread(values)) for of, values in found.items() if of[2] in _JUDGED)
    for line in disagreements([(name, share) for name, share in judged if share is not None]):
        yield f"{side.name}: {line}"
    if not isinstance(first, TraceReport) and len(side.counted) < FEWEST_TRIALS:
        many = {
            1: "is one trial: its spread is unknown",
            2: "has two trials: its intervals say little",
        }
        yield f"{side.name} {many[len(side.counted)]}; run it with --trials {FEWEST_TRIALS} or more"


_FIRST_SETTINGS = (
    "load.", "tiers.", "trace", "preset", "model", "seed", "speed", "queue_depth", "io_bytes", "engine", "is_buffered",
    "window.", "limit",
)  # fmt: skip
_LAST_SETTINGS = ("version", "host.")

Settings = dict[str, list[object]]
"""One value a side, by name."""


def ordered_settings(settings: Settings) -> Settings:
    """Return `settings` by their effect on a run: targets and load first, the host last."""

    def rank(name: str) -> int:
        last = len(_FIRST_SETTINGS) + name.startswith(_LAST_SETTINGS)
        return next(
            (place for place, start in enumerate(_FIRST_SETTINGS) if name.startswith(start)), last
        )

    return {name: settings[name] for name in sorted(settings, key=rank)}


def split_settings(settings: Settings) -> tuple[Settings, Settings]:
    """Return those of `settings` to be read first, and those that only some sides have.

    One side may be of a version or a machine that says more than another: that is no difference
    between them. A target that only one has is one, and so is an option that is null on one: it was
    not given.
    """
    told = ("tiers.", "load.")
    one_sided = [
        of
        for of, values in settings.items()
        if None in values and "." in of and not of.startswith(told)
    ]
    return (
        {name: values for name, values in settings.items() if name not in one_sided},
        {name: settings[name] for name in one_sided},
    )


_JUDGED = ("bandwidth_bytes_per_s", "operations_per_s", "latency_mean_ns", "latency_p50_ns")
"""Figures that should repeat; tails are shown, not judged."""
_TAILS = tuple(
    f"{time}{part}_ns"
    for part in ("p99", "p95", "p50")
    for time in ("response_", "latency_", "first_token_", "")
)
"""What a verdict speaks of, the first that both sides know."""


def verdict(names: Sequence[str], lines: Sequence[ComparedLine], at: int) -> str:
    """Return how side `at` does against the first: what its trials show, else what they do not.

    Nothing is claimed of reads, or of writes, whose trials disagree on either side.
    """
    a, b = names[0], names[at]
    judged = _judged_lines(lines, at)
    if not any(line.op for line in judged):
        hits = next(
            (line.sides for line in lines if (line.tier, line.name) == ("", "hit_ratio")), None
        )
        if hits is not None and hits[0].median is not None and hits[at].median is not None:
            # Simulated, so exact: it needs no trials.
            return f"{b} hits {hits[at].median:.2%} of lookups, {a} {hits[0].median:.2%}"
    of = {(line.tier, line.op) for line in judged if line.op}
    doubts = [line for line in disagreeing(lines, at) if (line.tier, line.op) in of]
    of = {(line.tier, line.op) for line in doubts}
    doubted = [
        line
        for line in judged
        if (line.tier, line.op) in of and line.sides[at].ratio.differs is not None
    ]
    told = [line for line in judged if line not in doubted]
    shown = [line for line in told if line.sides[at].ratio.differs]
    unsure = [line for line in told if line.sides[at].ratio.differs is False]
    single = [line for line in told if line.sides[at].ratio.differs is None]
    parts = clauses(shown, a, b, at)
    if unsure:
        whose = "" if shown else f"of {b} from {a} "
        ranges = ", ".join(_range(line, at) for line in unsure)
        parts.append(f"no difference {whose}that these trials can show: {ranges}")
        needed = [line.sides[at].ratio.trials_needed for line in unsure]
        known = [many for many in needed if many is not None]
        if len(known) < len(needed):
            parts[-1] += f" (one of {SMALL:.0%}: more than 1,000 trials a side)"
        elif max(known) > min(
            len(side.trials) for side in (unsure[0].sides[0], unsure[0].sides[at])
        ):
            parts[-1] += f" (one of {SMALL:.0%}: {max(known)} trials a side)"
    if doubted:
        unsteady = [
            name
            for name, side in ((a, 0), (b, at))
            if any(_is_spread(line.sides[side]) for line in doubts)
        ]
        ranges = ", ".join(_range(line, at) for line in doubted)
        parts.append(
            f"TRIALS DISAGREE in {' and '.join(unsteady)}, so nothing is claimed of {ranges}"
        )
    if single:
        parts += [f"{'; '.join(clauses(single, a, b, at))}: by trials too few to show a difference"]
    return "; ".join(parts) or f"{b} against {a}: no figure that both measured says which is faster"


def _judged_lines(lines: Sequence[ComparedLine], at: int) -> list[ComparedLine]:
    """Return the lines that a verdict is made of.

    The drive's tail of reads and writes, and bandwidth.
    """
    known = [line for line in lines if line.sides[at].ratio.value is not None]
    drive, found = drive_of(lines), []
    for op in ("read", "write", ""):
        of_op = [
            line
            for line in known
            if line.op == op and line.name in _TAILS and (op or not line.tier)
        ]
        # A faster tier may know a higher percentile: it is no answer of the drive.
        of_drive = [line for line in of_op if line.tier == drive]
        for name in _TAILS:
            tails = [line for line in of_drive or of_op if line.name == name]
            if tails:
                found.append(tails[-1])
                break
    if any(line.name.startswith("response") for line in found):
        # An open loop moves what the trace asks for, on any drive that keeps pace.
        return found
    tiers = {line.tier for line in found} or {drive}
    return found + [
        line for line in known if line.name == "bandwidth_bytes_per_s" and line.tier in tiers
    ]


def clauses(lines: Sequence[ComparedLine], a: str, b: str, at: int) -> list[str]:
    """Return `b reads 18 % faster at p99 [12, 23] than a`.

    Its p99 is so much shorter; and how its bandwidths do.
    """
    told = [(line, _much(line, line.sides[at].ratio.value), _sure(line, at)) for line in lines]
    times = [
        f"{line.op + 's' if line.op else 'brings first tokens'} {much} at {_percentile(line)}{sure}"
        for line, much, sure in told
        if _is_time(line)
    ]
    rates = [f"{line.op} bandwidth {much}{sure}" for line, much, sure in told if not _is_time(line)]
    clauses = [f"{b} {' and '.join(times)} than {a}"] if times else []
    if rates:
        clauses.append(
            f"{'its' if times else f'{b} has a'}"
            f" {' and '.join(rates)}{'' if times else f' than {a}'}"
        )
    return clauses


def _much(line: ComparedLine, ratio_: float | None) -> str:
    """Return by how much a ratio is another than 1, the figure of `line` being shorter, longer,
    less or more.
    """
    value, words = (
        1.0 if ratio_ is None else ratio_,
        ("faster", "slower") if _is_time(line) else ("lower", "higher"),
    )
    share = abs(value - 1)
    is_near_end = 0 < share < 0.005 or 0.995 < share < 1  # noqa: PLR2004 - whole percents would say none, or all of it
    return f"{percent(share) if is_near_end else f'{share * 100:.0f} %'} {words[value >= 1]}"


def _sure(line: ComparedLine, at: int) -> str:
    """Return the confidence interval, in the same percent as `_much`."""
    found = line.sides[at].ratio
    if found.low is None or found.high is None:
        return ""
    ends = (found.high, found.low) if (found.value or 1) < 1 else (found.low, found.high)
    return f" [{', '.join(_much(line, end).partition(' %')[0] for end in ends)}]"


def _range(line: ComparedLine, at: int) -> str:
    low, high = _ends(line.sides[at].ratio)
    what = f"{line.op or 'first token'} {_percentile(line) if _is_time(line) else 'bandwidth'}"
    return f"{what} ({_TOO_WIDE if low is None else f'{_much(line, low)} to {_much(line, high)}'})"


_TELLS_NOTHING = 100
"""An interval whose ends are so many times apart is no answer.

Of two trials it may end at 10^12 %.
"""
_TOO_WIDE = "trials vary too much for an interval"


def _ends(found: Ratio) -> tuple[float | None, float | None]:
    """Return the ends of an interval as they are shown; null where they tell nothing."""
    is_wide = (
        found.low is not None and found.high is not None and found.high > _TELLS_NOTHING * found.low
    )
    return (None, None) if is_wide and not found.differs else (found.low, found.high)


def _is_time(line: ComparedLine) -> bool:
    return line.name.endswith("_ns")


def _percentile(line: ComparedLine) -> str:
    return next(part for part in line.name.split("_") if part[0] == "p" and part[1:].isdigit())


def disagreeing(lines: Sequence[ComparedLine], at: int | None = None) -> list[ComparedLine]:
    """Return those of `lines` that should repeat over trials but do not.

    On any side, or on the first and side `at`.
    """
    return [
        line
        for line in lines
        if line.name in _JUDGED
        and any(
            _is_spread(side)
            for side in (line.sides if at is None else (line.sides[0], line.sides[at]))
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
    """Return the slowest tier that moved bytes, on the first side, which is the drive.

    Else the last place there is.
    """
    for name in ("bandwidth_bytes_per_s", "bytes", ""):
        known = [line for line in lines if line.tier and line.sides[0].median is not None]
        # Tiers that only other sides have come behind those of the first, however fast they are.
        if tiers := [line.tier for line in known if line.name.startswith(name)]:
            return tiers[-1]
    return ""


def comparison_of(sides: Sequence[ReportedTrials]) -> tuple[Comparison, Document]:
    """Return the comparison of `sides`, as of `compare`, and its document."""
    compared = compare(sides)
    numbers = [f"[{number}]" for number in range(len(compared.names))]
    rows = list(zip(numbers, compared.names, compared.trials, strict=True))
    tables = [
        table_of(
            "What is compared",
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
        Chapter("Trials that disagree", _disagreeing(compared)),
        Chapter("Sides", tables),
        Chapter("Figures", figure_tables(compared, numbers)),
        *([_one_sided(one_sided, numbers)] if one_sided else []),
    ]
    charts = [
        chart for chapter in chapters[:2] for table in chapter.tables for chart in table.charts
    ]
    document = Document(
        name="Comparison",
        headline=compared.verdict,
        subject=[f"{number} {_side(side)}" for number, side in zip(numbers, sides, strict=True)],
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


def _one_sided(settings: Settings, numbers: list[str]) -> Chapter:
    """Return what only some sides have.

    A page shows it when asked for, a terminal says how many they are.
    """
    title, rest = "Settings that only some sides have", [settings_table("", settings, numbers)]
    kinds, are = ("setting", "is") if len(settings) == 1 else ("settings", "are")
    many = f"{len(settings)} {kinds} that only some sides have {are} in a page, and in --json"
    return Chapter(title, rest, is_folded=True, in_short=many)


def _highlights(compared: Comparison) -> list[Highlight]:
    """Return the ratios of the drive's figures, if there are two sides."""
    if len(compared.names) != 2:  # noqa: PLR2004 - the first, and what is compared with it
        return []
    known = [
        line
        for line in compared.lines
        if line.op != "delete" and line.sides[1].ratio.value is not None
    ]
    # What a run moves is what its trace asks for.
    found = [
        line
        for line in known
        if line.name in _HIGHLIGHTED and (line.name != "bytes" or compared.kind == "trace")
    ]
    last = [line for line in found if line.tier == drive_of(compared.lines)]
    highlights = []
    for line in last[:_MOST_HIGHLIGHTS]:
        ratio_, name = (
            line.sides[1].ratio,
            line.name.removesuffix("_ns").removesuffix("_bytes_per_s").replace("_", " "),
        )
        low, high = _ends(ratio_)
        none = _TOO_WIDE if ratio_.differs is False else "one trial, no interval"
        detail = none if low is None or high is None else f"{low:.3f} to {high:.3f}"
        label = f"{line.op} {name}, {line.tier}".strip()
        highlights.append(Highlight(label, ratio_.value, Unit.RATIO, f"[1]/[0]; {detail}"))
    return highlights


def figure_tables(compared: Comparison, numbers: list[str]) -> list[ReportTable]:
    """Return every figure that was compared, a table a tier.

    The sides, and each one's ratio to the first.
    """
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
            found = side.ratio
            cells += [
                found.value,
                *([*_ends(found), _MARKS[found.differs]] if has_intervals else []),
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
            "" if at else note,
            keys=2,
        )
        for at, tier in enumerate(order)
    ]


def _side(side: ReportedTrials) -> str:
    """Return what a side is, in a line: its name, its trials, and the drives of a run."""
    first = side.reports[0]
    drives = (
        [] if not isinstance(first, RunReport) or first.run is None else list(first.run.drives())
    )
    targets = [f"{name} on {facts['target']}" for name, facts in drives if facts.get("target")]
    return ", ".join([side.name, counted(len(side.counted), "trial"), *targets])


def _disagreeing(compared: Comparison) -> list[ReportTable]:
    """Return each trial's value of the figures that should repeat and do not."""
    lines = disagreeing(compared.lines)
    if not lines:
        return []
    most = max(compared.trials)
    columns = [
        ReportColumn("tier"),
        ReportColumn("op"),
        ReportColumn("figure"),
        ReportColumn("side"),
        *(
            ReportColumn(f"trial{number}", f"trial {number}", Unit.NUMBER)
            for number in range(1, most + 1)
        ),
    ]
    rows = []
    for line in lines:
        for name, side in zip(compared.names, line.sides, strict=True):
            values = [Cell(value, line.unit) for value in side.trials]
            rows.append(
                [line.tier, line.op, line.name, name, *values, *[None] * (most - len(values))]
            )
    return [table_of("Each trial", Sheet.PERFORMANCE, columns, rows, keys=4)]
