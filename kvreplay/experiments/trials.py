"""Several runs of one replay: median, spread, and whether they agree enough to be quoted.

`run_pair` alternates the runs of two sets of targets, so that a drift of the machine's speed
favours neither.
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
"""Figures that should repeat; tails are shown, but not judged."""


class Quantity(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of one tier and op over the trials."""

    tier: str
    op: str
    name: str
    values: list[float | None]
    """One value for each trial that counts; null if unknown."""
    median: float | None
    """Null unless all trials have the value."""
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
    """One sentence: the load, the result of the median trial, the bottleneck, the agreement."""
    verdicts: list[str]
    quantities: list[Quantity]
    simulated_tiers: list[str] = []
    """Their figures are a model's, and not among the quantities."""
    warnings: list[str]
    definition: str = (
        f"spread = (maximum - minimum) / median; trials disagree above {MAX_SPREAD * 100:.0f} %"
    )


def quantities(runs: Sequence[RunFile]) -> list[Quantity]:
    """Return every figure of `runs`; simulated tiers have none."""
    values_by_figure: dict[tuple[str, str, str], list[float | None]] = {}
    for index, run in enumerate(runs):
        for figures in (figures for figures in run.summary.figures if not figures.is_simulated):
            values = [(name, getattr(figures, name)) for name in RATES]
            values += [(name, getattr(figures.latency, name)) for name in TIMES]
            if figures.response is not None:
                values += [(f"response_{name}", getattr(figures.response, name)) for name in TIMES]
            for name, value in values:
                key = figures.tier, figures.op, name
                values_by_figure.setdefault(key, [None] * len(runs))[index] = value
    results = []
    for (tier, op, name), trial_values in values_by_figure.items():
        present = [] if None in trial_values else [v for v in trial_values if v is not None]
        low, middle, high = (
            (min(present), median(present), max(present)) if present else (None, None, None)
        )
        results.append(
            Quantity(
                tier=tier,
                op=op,
                name=name,
                values=trial_values,
                median=middle,
                low=low,
                high=high,
                spread=statistics.spread(trial_values),
            )
        )
    return results


def disagreements(figures: Iterable[Quantity]) -> list[str]:
    """Return a line on the figures that should repeat and do not, the worst first.

    The list is empty if all repeat.
    """
    judged = [
        (f"{q.tier} {q.op} {q.name}", q.spread)
        for q in figures
        if q.name in JUDGED and q.spread is not None
    ]
    return statistics.disagreements(judged)


def trials_verdict(runs: Sequence[RunFile], warnings: list[str]) -> str:
    """Return the verdict of all trials in one sentence.

    It is that of the median trial, with the range and the number of trials with its bottleneck.
    """
    verdicts = [run.summary.judgement for run in runs]
    tier_rates = [
        next((rate for rate in verdict.tiers if rate.tier == verdict.tier), None)
        if verdict is not None
        else None
        for verdict in verdicts
    ]
    reached = [
        None if rate is None else rate.reached_bytes_per_s or rate.reached_operations_per_s
        for rate in tier_rates
    ]
    ranked = sorted((rate, index) for index, rate in enumerate(reached) if rate is not None)
    if len(ranked) < len(runs) or len(runs) == 1:
        return f"{counted(len(runs), 'trial')}: {runs[-1].summary.verdict}"
    median_index = ranked[(len(ranked) - 1) // 2][1]
    median_verdict = runs[median_index].summary.verdict
    causes = [verdict.cause for verdict in verdicts if verdict is not None]
    cause = causes[median_index]
    agreement = f"{causes.count(cause)} of {len(runs)} say {cause or 'the same'}"
    spread = " to ".join(
        reached_of(rate) for end in (0, -1) if (rate := tier_rates[ranked[end][1]]) is not None
    )
    middle = "median" if len(runs) % 2 else "lower median"
    return (
        f"{len(runs)} trials {'disagree' if warnings else 'agree'}, from {spread}, {agreement};"
        f" the {middle}: {median_verdict}"
    )


class Trials:
    """Several runs of one replay, in the folders trial-1, trial-2, … of its output."""

    def __init__(self, request: Replay, count: int, *, replaying: Replaying = replay) -> None:
        """Plan `count` trials of the `request`, in its output.

        ConfigError, TraceError or DeviceError if a replay would refuse the options; then no folder
        is created.
        """
        if not 1 <= count <= MAX_TRIALS:
            raise ConfigError(f"--trials {count}: give 1 to {MAX_TRIALS}")
        request.check_options()
        self.count, self.runs = count, list[RunFile]()
        self.error: KvError | None = None
        """The error of a partial trial, or of failed operations."""
        check_targets(request.config)
        self._tiers = make_tiers(
            request.config, open_table(request.trace, TRACE).meta, request.trace, request.output
        )
        self._request, self._output, self._replay = request, request.output, replaying

    @property
    def is_stopped(self) -> bool:
        """True if the last trial was cut short or ended with a signal; then no other may follow."""
        return status_of(self.error) == "partial"

    def run_next(self) -> tuple[Path, FinishedRun]:
        """Run the next trial; return its folder and its outcome."""
        if not self.runs:
            make_directory(self._output, TRIALS_FILE)
            remove_stale(self._output, {_folder(i) for i in range(self.count)})
        folder = self._output / _folder(len(self.runs))
        with forgotten(self._output):
            outcome = self._replay(replace(self._request, output=folder))
        self.runs.append(outcome.run)
        self.error = (
            outcome.error if status_of(outcome.error) == "partial" else self.error or outcome.error
        )
        return folder, outcome

    def perform(
        self, on_trial: Callable[[Path, FinishedRun], None] = lambda _folder, _outcome: None
    ) -> tuple[TrialSet, KvError | None]:
        """Run all trials, up to the first that is cut short; call `on_trial` after each.

        Returns the results, which are also written to trials.json, and the error if there is one.
        """
        check_output(self._output, is_forced=self._request.is_forced)
        while len(self.runs) < self.count and not self.is_stopped:
            on_trial(*self.run_next())
        return self.write(), self.error

    def write(self) -> TrialSet:
        """Summarize the trials (at least one), and write trials.json.

        A trial that was cut short counts only if it is the only one.
        """
        counted = [run for run in self.runs if run.status != "partial"] or self.runs
        figures = quantities(counted)
        warnings = disagreements(figures)
        verdict = trials_verdict(counted, warnings)
        if self.is_stopped:
            left_out = (
                f"{_folder(len(counted))} cut off, and left out; "
                if len(counted) < len(self.runs)
                else ""
            )
            verdict = f"PARTIAL: {left_out}{verdict}"
        mixes = {run.summary.mix for run in counted} - {""}
        trials = TrialSet(
            asked=self.count,
            runs=[_folder(i) for i in range(len(self.runs))],
            quantities=figures,
            status=status_of(self.error),
            verdict="; ".join([verdict, *mixes]) if len(mixes) == 1 else verdict,
            verdicts=[r.summary.verdict for r in self.runs],
            warnings=warnings,
            simulated_tiers=[t.name for t in self._tiers if t is not None and t.is_simulated],
        )
        content = {
            "program": "kvreplay",
            "version": __version__,
            "argv": self._request.argv,
        } | msgspec.to_builtins(trials)
        write_json(self._output / TRIALS_FILE, content)
        return trials


def _folder(index: int) -> str:
    return f"trial-{index + 1}"


SIDES = ("a", "b")
"""The folders of the two sides."""


def run_pair(
    request: Replay, against: Config, count: int, *, on_trial: Callable[[Path, FinishedRun], None]
) -> KvError | None:
    """Run `count` trials of the `request`, and as many with the configuration `against`.

    Their folders are output/a and output/b. The sides alternate, and so does the first side of a
    round: a b, b a, a b. Both stop at the first trial that is cut short.

    Returns the error of a partial or failed trial, or None.
    """
    output = request.output
    check_output(output, is_forced=request.is_forced)
    sides = [
        Trials(replace(request, config=config, output=output / side), count)
        for config, side in zip((request.config, against), SIDES, strict=True)
    ]
    make_directory(output, TRIALS_FILE)
    for side in [
        side for number in range(count) for side in (reversed(sides) if number % 2 else sides)
    ]:
        with forgotten(output):
            folder, outcome = side.run_next()
        on_trial(folder, outcome)
        if side.is_stopped:
            break
    for side in sides:
        if side.runs:
            side.write()
    return next(
        (side.error for side in sides if side.is_stopped),
        next(filter(None, (s.error for s in sides)), None),
    )


def trials_document(trials: TrialSet) -> Document:
    """Make the document of several trials: median and spread of every figure."""
    counted_trials = max((len(q.values) for q in trials.quantities), default=len(trials.runs))
    columns = [
        ReportColumn("tier"),
        ReportColumn("op"),
        ReportColumn("name", "figure"),
        ReportColumn("median"),
        ReportColumn("low", "minimum"),
        ReportColumn("high", "maximum"),
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
        for q in trials.quantities
        if q.median is not None
    ]
    spreads = [q.spread for q in trials.quantities if q.name in JUDGED and q.spread is not None]
    notes = [f"tier {tier} is SIMULATED: no figure counts it" for tier in trials.simulated_tiers]
    if spreads:
        notes.append(
            f"repeatability: figures that should repeat spread by at most {percent(max(spreads))}"
        )
    table = table_of(
        f"{counted_trials} of {trials.asked} trials", Sheet.PERFORMANCE, columns, rows, keys=3
    )
    return Document(
        name="",
        headline=trials.verdict,
        chapters=[Chapter("", [table])],
        notes=notes,
        warnings=trials.warnings,
    )
