"""Several runs of one replay.

Median, spread, and whether they agree enough to be quoted; or two sides in turn.

`run_pair` alternates the runs of two sets of targets, so that a machine whose speed drifts favours
neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import msgspec

from kvreplay.plan.output_directory import check_output, forgotten, make_directory, remove_stale
from kvreplay.plan.replay_config import Config
from kvreplay.result.summarize import status_of
from kvreplay.result.verdict import reached_of
from kvreplay.run.replay import FinishedRun, Replay, Replaying, replay
from kvreplay.tiers.make_tiers import check_targets, make_tiers
from kvtrace import __version__
from kvtrace.core import statistics
from kvtrace.core.document.document import (
    Cell,
    Chapter,
    Document,
    ReportColumn,
    Sheet,
    Unit,
    table_of,
)
from kvtrace.core.errors import ConfigError, KvError
from kvtrace.core.files import write_json
from kvtrace.core.run.run_file import TRIALS_FILE, RunFile
from kvtrace.core.schema import TRACE
from kvtrace.core.statistics import MAX_SPREAD
from kvtrace.core.tables import open_table
from kvtrace.core.units import counted, percent

MAX_TRIALS = 100
RATES = ("bandwidth_bytes_per_s", "operations_per_s")
TIMES = ("mean_ns", "p50_ns", "p95_ns", "p99_ns", "p99_9_ns", "p99_99_ns", "max_ns")
FIGURE_UNITS = {"bandwidth_bytes_per_s": Unit.BYTES_PER_S, "operations_per_s": Unit.PER_S}
"""Units of the figures that are rates; the others are times in ns."""
JUDGED = (*RATES, "mean_ns", "p50_ns")
"""Those that should repeat; tails are shown, not judged."""


class Quantity(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of one tier and op over the trials."""

    tier: str
    op: str
    name: str
    values: list[float | None]
    """One a trial that counts, null where it is not known."""
    median: float | None
    """Null unless all trials know it."""
    low: float | None
    high: float | None
    spread: float | None
    """(high - low) / median; null with one trial."""


class TrialSet(msgspec.Struct, frozen=True, kw_only=True):
    """The results of several trials."""

    asked: int
    runs: list[str]
    """Directories of the trials, in order."""
    status: str
    """complete, partial if a trial was cut short, failed operations if some failed."""
    verdict: str
    """One sentence.

    What was asked, what the median trial reached, what held them back, and whether they agree.
    """
    verdicts: list[str]
    quantities: list[Quantity]
    simulated_tiers: list[str] = []
    """Their figures are a model's, and not among the quantities."""
    warnings: list[str]
    definition: str = (
        f"spread = (greatest - least) / median; trials disagree above {MAX_SPREAD:.0%}"
    )


def quantities(runs: Sequence[RunFile]) -> list[Quantity]:
    """Return every figure of `runs`; tiers where nothing moved have none."""
    found: dict[tuple[str, str, str], list[float | None]] = {}
    for at, run in enumerate(runs):
        for figures in (figures for figures in run.summary.figures if not figures.is_simulated):
            known = [(name, getattr(figures, name)) for name in RATES]
            known += [(name, getattr(figures.latency, name)) for name in TIMES]
            if figures.response is not None:
                known += [(f"response_{name}", getattr(figures.response, name)) for name in TIMES]
            for name, value in known:
                found.setdefault((figures.tier, figures.op, name), [None] * len(runs))[at] = value
    done = []
    for (tier, op, name), values in found.items():
        all_of = [v for v in values if v is not None] if None not in values else []
        low, middle, high = (
            (min(all_of), median(all_of), max(all_of)) if all_of else (None, None, None)
        )
        drawn = {"median": middle, "low": low, "high": high, "spread": statistics.spread(values)}
        done.append(Quantity(tier=tier, op=op, name=name, values=values, **drawn))
    return done


def disagreements(found: Iterable[Quantity]) -> list[str]:
    """Return a line that names the figures that should repeat and do not, the worst first.

    None if all do.
    """
    judged = [
        (f"{q.tier} {q.op} {q.name}", q.spread)
        for q in found
        if q.name in JUDGED and q.spread is not None
    ]
    return statistics.disagreements(judged)


def trials_verdict(runs: Sequence[RunFile], warnings: list[str]) -> str:
    """Return the one sentence of all trials.

    That of the median one, with the spread and how many share its cause.
    """
    judged = [run.summary.judgement for run in runs]
    rates = [
        next((r for r in v.tiers if r.tier == v.tier), None) if v is not None else None
        for v in judged
    ]
    reached = [
        None if r is None else r.reached_bytes_per_s or r.reached_operations_per_s for r in rates
    ]
    rated = sorted((rate, at) for at, rate in enumerate(reached) if rate is not None)
    if len(rated) < len(runs) or len(runs) == 1:
        return f"{counted(len(runs), 'trial')}: {runs[-1].summary.verdict}"
    at = rated[(len(rated) - 1) // 2][1]
    shown = runs[at].summary.verdict
    causes = [v.cause for v in judged if v is not None]
    same = f"{causes.count(causes[at])} of {len(runs)} say {causes[at] or 'the same'}"
    spread = " to ".join(
        reached_of(rate) for end in (0, -1) if (rate := rates[rated[end][1]]) is not None
    )
    middle = "median" if len(runs) % 2 else "lower median"
    return (
        f"{len(runs)} trials {'disagree' if warnings else 'agree'}, from {spread}, {same}; the"
        f" {middle}: {shown}"
    )


class Trials:
    """One replay, done several times into trial-1 and on of one folder."""

    def __init__(self, asked: Replay, count: int, *, replaying: Replaying = replay) -> None:
        """Plan `count` trials of what is `asked`, in its output.

        What a replay would refuse leaves no folder behind.

        ConfigError, TraceError, DeviceError if they cannot be done.
        """
        if not 1 <= count <= MAX_TRIALS:
            raise ConfigError(f"--trials {count}: give 1 to {MAX_TRIALS}")
        asked.check_options()
        self.asked, self.runs = count, list[RunFile]()
        self.error: KvError | None = None
        """Why a trial is partial, or that operations failed."""
        check_targets(asked.config)
        self._tiers = make_tiers(
            asked.config, open_table(asked.trace, TRACE).meta, asked.trace, asked.output
        )
        self._each, self._output, self._replay = asked, asked.output, replaying

    @property
    def is_stopped(self) -> bool:
        """Whether the last trial was cut short, or asked to stop as it ended.

        No other may follow it.
        """
        return status_of(self.error) == "partial"

    def go_on(self) -> tuple[Path, FinishedRun]:
        """Run the next trial; return its folder and its outcome."""
        if not self.runs:
            make_directory(self._output, TRIALS_FILE)
            remove_stale(self._output, {_folder(i) for i in range(self.asked)})
        folder = self._output / _folder(len(self.runs))
        with forgotten(self._output):
            outcome = self._replay(replace(self._each, output=folder))
        self.runs.append(outcome.run)
        self.error = (
            outcome.error if status_of(outcome.error) == "partial" else self.error or outcome.error
        )
        return folder, outcome

    def perform(
        self, done: Callable[[Path, FinishedRun], None] = lambda _folder, _outcome: None
    ) -> tuple[TrialSet, KvError | None]:
        """Run all trials, up to the first that is cut short; `done` gets each.

        Returns what they came to, which trials.json holds too, and why it is partial or None.
        """
        check_output(self._output, is_forced=self._each.is_forced)
        while len(self.runs) < self.asked and not self.is_stopped:
            done(*self.go_on())
        return self.write(), self.error

    def write(self) -> TrialSet:
        """Summarize the trials (at least one), and write trials.json.

        One cut short counts only if it is alone.
        """
        counted = [run for run in self.runs if run.status != "partial"] or self.runs
        found = quantities(counted)
        warnings = disagreements(found)
        said = trials_verdict(counted, warnings)
        if self.is_stopped:
            left_out = (
                f"{_folder(len(counted))} cut off, and left out; "
                if len(counted) < len(self.runs)
                else ""
            )
            said = f"PARTIAL: {left_out}{said}"
        mixes = {run.summary.mix for run in counted} - {""}
        trials = TrialSet(
            asked=self.asked,
            runs=[_folder(i) for i in range(len(self.runs))],
            quantities=found,
            status=status_of(self.error),
            verdict="; ".join([said, *mixes]) if len(mixes) == 1 else said,
            verdicts=[r.summary.verdict for r in self.runs],
            warnings=warnings,
            simulated_tiers=[t.name for t in self._tiers if t is not None and t.is_simulated],
        )
        content = {
            "program": "kvreplay",
            "version": __version__,
            "argv": self._each.argv,
        } | msgspec.to_builtins(trials)
        write_json(self._output / TRIALS_FILE, content)
        return trials


def _folder(index: int) -> str:
    return f"trial-{index + 1}"


SIDES = ("a", "b")
"""The folders of the two sides."""


def run_pair(
    asked: Replay, against: Config, count: int, *, done: Callable[[Path, FinishedRun], None]
) -> KvError | None:
    """Do `count` trials of what is `asked`, and as many with the configuration `against`, below its
    output/a and b.

    The sides take turns, and who is first in a round alternates: a b, b a, a b. Both stop at the
    first trial that is cut short.

    Returns why a trial is partial or failed, or None.
    """
    output = asked.output
    check_output(output, is_forced=asked.is_forced)
    sides = [
        Trials(replace(asked, config=config, output=output / side), count)
        for config, side in zip((asked.config, against), SIDES, strict=True)
    ]
    make_directory(output, TRIALS_FILE)
    for side in [
        side for number in range(count) for side in (reversed(sides) if number % 2 else sides)
    ]:
        with forgotten(output):
            folder, outcome = side.go_on()
        done(folder, outcome)
        if side.is_stopped:
            break
    for side in sides:
        if side.runs:
            side.write()
    return next(
        (side.error for side in sides if side.is_stopped),
        next(filter(None, (s.error for s in sides)), None),
    )


def trials_document(found: TrialSet) -> Document:
    """Make the document of several trials: median and spread of every figure."""
    counted_trials = max((len(q.values) for q in found.quantities), default=len(found.runs))
    columns = [
        ReportColumn("tier"),
        ReportColumn("op"),
        ReportColumn("name", "figure"),
        ReportColumn("median"),
        ReportColumn("low", "least"),
        ReportColumn("high", "greatest"),
        ReportColumn("spread", unit=Unit.SHARE),
    ]
    rows = [
        [
            q.tier,
            q.op,
            q.name,
            *(Cell(v, FIGURE_UNITS.get(q.name, Unit.NS)) for v in (q.median, q.low, q.high)),
            q.spread,
        ]
        for q in found.quantities
        if q.median is not None
    ]
    spreads = [q.spread for q in found.quantities if q.name in JUDGED and q.spread is not None]
    notes = [f"tier {tier} is SIMULATED: no figure counts it" for tier in found.simulated_tiers]
    if spreads:
        notes.append(
            f"repeatability: figures that should repeat spread by at most {percent(max(spreads))}"
        )
    table = table_of(
        f"{counted_trials} of {found.asked} trials", Sheet.PERFORMANCE, columns, rows, keys=3
    )
    return Document(
        name="",
        headline=found.verdict,
        chapters=[Chapter("", [table])],
        notes=notes,
        warnings=found.warnings,
    )
