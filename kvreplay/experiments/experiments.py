"""Experiments as Python functions: `kvreplay.sweep`, `scorecard`, `plan_mlperf` and `run_mlperf`.

trace or drive + options -> several replays in a folder -> `Sweep`, `Scorecard`, `MlperfRun`
"""

from __future__ import annotations

import html
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from kvreplay.experiments import load_sweep
from kvreplay.experiments import scorecard as cards
from kvreplay.experiments.load_sweep import DEPTHS, progress_of
from kvreplay.experiments.mlperf_check import Checked, check_document, check_tree
from kvreplay.experiments.mlperf_result import MlperfResult, result_document
from kvreplay.experiments.mlperf_rules import (
    ALL,
    PAUSE_S,
    RUNTIME_S,
    SEED,
    SHORT,
    TRIALS,
    Attempt,
    Rule,
    place_of,
    plan_document,
    refuse_broken,
    resolve,
    rules_of,
    targets_of,
)
from kvreplay.experiments.mlperf_submit import TRACE as TRACE_FILE
from kvreplay.experiments.mlperf_submit import combine, submit, write_result
from kvreplay.plan.memory_check import check_memory
from kvreplay.plan.output_directory import check_output, make_directory
from kvreplay.plan.replay_config import Config
from kvreplay.plan.tier_targets import STORAGE
from kvreplay.run.replay import Replay, Replaying, Show, replay
from kvreplay.run.watch import Watching
from kvtrace.core import pl
from kvtrace.core.app import QUIET, progress
from kvtrace.core.document.document import Document
from kvtrace.core.document.sweep_document import sweep_document
from kvtrace.core.errors import ConfigError, KvError
from kvtrace.core.parameters import named, suggest_keywords
from kvtrace.core.run.drive_file import DriveFile
from kvtrace.core.run.run_file import MLPERF_FILE, generate
from kvtrace.core.run.sweep_file import Axis, Card, LoadSweep
from kvtrace.core.schema import TRACE
from kvtrace.core.statistics import parse_endurance
from kvtrace.core.tables import open_table
from kvtrace.core.temporary import TemporaryFolder, temporary_folder
from kvtrace.core.trace import Trace
from kvtrace.core.units import NS_PER_S, parse_bytes, parse_duration_ns

Tell = Callable[[str], None]
"""Takes a note, as text of one line."""
PRESETS: Final = ("lmcache-disk", "vllm-fs", "sglang-hicache", "mooncake-store")
"""The caching stacks of a scorecard."""
_TICK_S = 0.2


class Sweep:
    """A trace replayed at rising load, and the knee: the greatest load that was sustained."""

    def __init__(
        self,
        path: Path,
        file: LoadSweep,
        error: KvError | None,
        folder: TemporaryFolder | None,
    ) -> None:
        """Refer to the sweep in the folder `path`."""
        self.path = path
        """The folder of sweep.json and of each run."""
        self.file = file
        """The content of sweep.json as typed structs: points, knee, rule, limit."""
        self.error = error
        """Why the sweep was cut short; None if it is complete."""
        self._folder = folder

    @property
    def answer(self) -> str:
        """The load at the knee, its latency, and the limit above it, in one sentence."""
        return self.file.answer

    @property
    def knee(self) -> float | None:
        """The value at the knee: a queue depth, a speed, or users; None if no point qualifies."""
        return self.file.knee

    def to_polars(self) -> pl.DataFrame:
        """Return one row for each value, rising: throughput, latencies, and whether it was sustained.

        Rates are per second and times in ns, as names say; null if not measured.
        """
        rows = [
            {name: getattr(point, name) for name in _POINT_COLUMNS} for point in self.file.points
        ]
        return pl.DataFrame(rows, infer_schema_length=None)

    def document(self) -> Document:
        """Return the points and charts as a document for a terminal or a page."""
        return sweep_document(self.file)

    def __repr__(self) -> str:
        return f"<Sweep: {self.answer}>"

    def _repr_html_(self) -> str:
        """Return the answer and the points for a notebook."""
        return f"<b>{html.escape(self.answer)}</b>{self.to_polars()._repr_html_()}"


_POINT_COLUMNS = (
    "value",
    "run",
    "verdict",
    "throughput_bytes_per_s",
    "operations_per_s",
    "operations",
    "read_p50_ns",
    "read_p99_ns",
    "write_p50_ns",
    "write_p99_ns",
    "is_held",
    "trials",
)


@suggest_keywords
def sweep(
    trace: Trace | str | Path | None = None,
    *,
    tiers: Mapping[str, str | Path],
    queue_depths: Sequence[float] | None = None,
    speeds: Sequence[float] | None = None,
    users: Sequence[float] | None = None,
    gen: str | None = None,
    read_p99: str | None = None,
    queue_depth: int | None = None,
    options: Config | None = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    tell: Tell | None = None,
    argv: Sequence[str] = ("kvreplay.sweep",),
    show: Show | None = None,
    replaying: Replaying = replay,
) -> Sweep:
    """Replay a trace at rising queue depths, speeds or users until it saturates; name the knee.

    Args:
        trace: A `Trace`, or the path of one; None with `gen`.
        tiers: As in `replay`.
        queue_depths: A closed loop at these depths, ascending. Default: 1, 2, 4 up to 128.
        speeds: An open loop at these speeds instead, ascending; 1 is the trace's own.
        users: An open loop with these numbers of synthetic users, ascending, or a search from one
            number on: the command that made the trace makes the trace of each. The default with
            `gen` is a search from 1.
        gen: In place of a trace: the options of a `kvtrace gen` that makes it.
        read_p99: With `speeds` or `users`: the largest p99 read response time of the slowest tier,
            such as "50ms".
        queue_depth: With `speeds` or `users`: I/Os in flight at most.
        options: Further options of each replay. Default: the 60 s from when the slowest tier first
            evicts, if it does.
        output: The folder for sweep.json and the runs. Default: a temporary folder that lives as
            long as the returned object.
        overwrite: Replace a sweep in `output`.
        tell: Takes a line on each run as it ends.
        argv: The command that sweep.json records.
        show: Shows the progress of each replay.
        replaying: Performs each replay; ranks of MPI replay together.

    Returns:
        The sweep. One that was cut short is returned, too, with `error` set.

    Raises:
        ConfigError: for values that do not rise, or more than one kind of load.
        DeviceError: if a target cannot be used, or must not be.

    Examples:
        >>> import kvtrace as kt, kvreplay
        >>> trace = kt.simulate(
        ...     preset="lmcache-disk", users=2, duration="2s", model="tiny-1b",
        ...     tiers={"cpu": {"capacity": "32MiB"}, "nvme": {"capacity": "64MiB"}},
        ... )
        >>> swept = kvreplay.sweep(trace, tiers={"nvme": "ram"}, queue_depths=[1, 2])
        >>> swept.to_polars()["value"].to_list(), swept.error is None
        ([1.0, 2.0], True)

    """
    if (trace is None) == (gen is None):
        raise ConfigError(
            f"name one TRACE, or give {named('gen')} the options of the `kvtrace gen` that makes it"
        )
    check_memory()
    target_ns = None if read_p99 is None else parse_duration_ns(read_p99)
    config = replace(options or Config(), tiers=_targets(tiers), queue_depth=queue_depth)
    folder, path = _output_folder(output, "sweep")
    given_path = trace.path if isinstance(trace, Trace) else Path(trace or "")
    request = Replay(config.steady(), given_path, path, list(argv), overwrite)
    request = request if show is None else replace(request, show=show)
    with _notes_to(tell) as tell_note:
        # Before `gen` makes a trace, which may take minutes.
        request.check()
        with _trace_of(None if gen is not None else given_path, gen) as source:
            has_users = gen is not None and load_sweep.has_users(open_table(source, TRACE).meta)
            axis, values = _axis(queue_depths, speeds, users, has_users=has_users)
            steady = config.steady(is_lengthened=axis is Axis.QUEUE_DEPTH)
            file, error = load_sweep.sweep(
                replace(request, config=steady, trace=source),
                axis,
                values,
                is_made=gen is not None,
                read_p99_target_ns=target_ns,
                on_point=lambda point: tell_note(
                    f"{point.run}: {progress_of(axis, point, target_ns)}"
                ),
                replaying=replaying,
            )
    return Sweep(path, file, error, folder)


def _axis(
    queue_depths: Sequence[float] | None,
    speeds: Sequence[float] | None,
    users: Sequence[float] | None,
    *,
    has_users: bool,
) -> tuple[Axis, list[float]]:
    """Return the axis of a sweep and its values; users from 1 if the trace `has_users`."""
    values_by_axis: dict[Axis, Sequence[float]] = {
        axis: values
        for axis, values in (
            (Axis.QUEUE_DEPTH, queue_depths),
            (Axis.SPEED, speeds),
            (Axis.USERS, users),
        )
        if values is not None
    }
    if len(values_by_axis) > 1:
        raise ConfigError(
            f"{' and '.join(named(axis.parameter) for axis in values_by_axis)} exclude each other; give one"
        )
    usual: tuple[Axis, Sequence[float]] = (
        (Axis.USERS, [1]) if has_users else (Axis.QUEUE_DEPTH, DEPTHS)
    )
    axis, values = next(iter(values_by_axis.items()), usual)
    if not all(map(math.isfinite, values)):
        text = ",".join(f"{value:g}" for value in values)
        raise ConfigError(f"{named(axis.parameter, text)}: give finite numbers, such as 1,2,4,8")
    return axis, [float(value) for value in values]


class Scorecard:
    """The users of each of several caching stacks that a drive sustains."""

    def __init__(
        self,
        path: Path,
        card: Card | None,
        drive: DriveFile,
        error: KvError | None,
        folder: TemporaryFolder | None,
    ) -> None:
        """Refer to the scorecard in the folder `path`."""
        self.path = path
        """The folder of scorecard.json, drive.json and the runs."""
        self.card = card
        """The content of scorecard.json as typed structs; None if no stack was measured."""
        self.drive = drive
        """The measurements of the drive itself, by which `sim:drive.json` predicts replays."""
        self.error = error
        """Why the scorecard is partial; None if it is complete."""
        self._folder = folder

    def to_polars(self) -> pl.DataFrame:
        """Return one row for each stack: its users, rates, latencies and wear.

        Rates are per second and times in ns, as names say; null if not measured.
        """
        names = (
            "preset",
            "users",
            "at_users",
            "read_bytes_per_s",
            "written_bytes_per_s",
            "read_p50_ns",
            "read_p99_ns",
            "drive_writes_per_day",
            "life_years",
            "answer",
        )
        scores = [] if self.card is None else self.card.scores
        rows = [{name: getattr(score, name) for name in names} for score in scores]
        return pl.DataFrame(rows, infer_schema_length=None)

    def document(self) -> Document:
        """Return the card, with the drive's own measurements, on one page.

        Raises:
            ConfigError: if no stack was measured.

        """
        if self.card is None:
            raise ConfigError(f"{self.path}: no stack was measured")
        return cards.card_document(self.card, self.drive)

    def __repr__(self) -> str:
        return f"<Scorecard of {len(self.to_polars())} stacks>"

    def _repr_html_(self) -> str:
        """Return the stacks for a notebook."""
        return self.to_polars()._repr_html_()


@suggest_keywords
def scorecard(
    target: str | Path,
    *,
    size: str = "16GiB",
    window: str = "20s",
    presets: Sequence[str] = PRESETS,
    endurance: str | None = None,
    probes: bool = False,
    output: str | Path | None = None,
    overwrite: bool = False,
    tell: Tell | None = None,
    argv: Sequence[str] = ("kvreplay.scorecard",),
    show: Show | None = None,
) -> Scorecard:
    """Test a drive: the users of four caching stacks that it sustains, and how fast it then is.

    First the drive itself is measured for a minute: sizes, depths and mixes. Then each stack's
    trace of synthetic users is replayed at its own pace in its steady window, at more and more
    users; the load that decides is run three times. A stack takes about eight runs. `size` is
    written before the first, and the others reuse its files.

    Args:
        target: A folder on the drive to test.
        size: Capacity that each stack uses on the drive.
        window: How long each run measures.
        presets: The caching stacks.
        endurance: The drive's rated endurance, such as "1DWPD,5y": also say how long it lasts.
        probes: Measure block requests by eBPF; needs root and libbpf.
        output: The folder for the scorecard and its runs, on any drive. Default: a temporary folder
            that lives as long as the returned object.
        overwrite: Replace a scorecard in `output`.
        tell: Takes a line on each run as it ends.
        argv: The command that scorecard.json records.
        show: Shows the progress of each replay.

    Returns:
        The scorecard. One that was cut short is returned, too, with `error` set.

    Raises:
        ConfigError: for an unknown preset, or a size or duration without a meaning.
        DeviceError: if the target is missing, too small, or must not be used.

    Examples:
        >>> import kvreplay
        >>> kvreplay.scorecard("/no/such/drive", size="64MiB")
        Traceback (most recent call last):
        kvtrace.core.errors.DeviceError: ...

    """
    check_memory()
    rating = parse_endurance(endurance)
    # Before the drive is measured, which takes a minute.
    parse_duration_ns(window)
    config = Config(
        tiers={cards.TIER: str(target)},
        is_kept=True,
        is_taking_over=True,
        window=f"steady:{window}",
        is_probed=probes,
        is_histograms_only=probes,
    )
    folder, path = _output_folder(output, "scorecard")
    request = Replay(config, Path(), path, list(argv), overwrite)
    request = request if show is None else replace(request, show=show)
    request.check()
    with _notes_to(tell) as tell_note, ExitStack() as stack:
        # All before the first run: a stack that gen refuses must not end what takes an hour.
        traces = {
            preset: stack.enter_context(_trace_of(None, cards.gen_options(preset, size)))
            for preset in presets
        }
        card, drive, error = cards.run_scorecard(request, Path(target), traces, tell_note, rating)
    return Scorecard(path, card, drive, error, folder)


@dataclass(frozen=True, slots=True)
class MlperfPlan:
    """Locked options of the MLPerf Storage KV-cache benchmark, about to be run."""

    attempts: list[Attempt]
    """One for each option: its workload, target, space and trials."""
    rules: list[list[Rule]]
    """The rules of a submission that each attempt keeps or breaks."""
    output: Path
    """The folder for results; one below it for each of several options."""
    _folder: TemporaryFolder | None = field(default=None, repr=False)

    def to_dict(self) -> list[dict[str, object]]:
        """Return the plan as `kvreplay mlperf --dry-run --json` prints it."""
        return [
            {"option": attempt.option.name, "space": attempt.space, "rules": rules}
            for attempt, rules in zip(self.attempts, self.rules, strict=True)
        ]

    def documents(self) -> list[Document]:
        """Return a document for each option: its replays, their targets, and the rules."""
        return [
            plan_document(attempt, rules)
            for attempt, rules in zip(self.attempts, self.rules, strict=True)
        ]


class MlperfRun:
    """The results of locked options."""

    def __init__(
        self,
        path: Path,
        results: list[MlperfResult],
        error: KvError | None = None,
        plan: MlperfPlan | None = None,
    ) -> None:
        """Refer to the results in the folder `path`, which may be the temporary one of `plan`."""
        self.path = path
        """The folder of mlperf.json, mlperf.csv and mlperf.xlsx; one below it for each option."""
        self.results = results
        """The content of mlperf.json as typed structs, one for each option."""
        self.error = error
        """Why the run was cut short; None if it is complete."""
        self._plan = plan

    def to_polars(self) -> pl.DataFrame:
        """Return one row for each option: the benchmark's aggregated figures, by their names."""
        rows = [
            {"option": result.option, "mark": result.mark} | msgspec.to_builtins(result.aggregated)
            for result in self.results
        ]
        return pl.DataFrame(rows, infer_schema_length=None)

    def documents(self) -> list[Document]:
        """Return a document for each option."""
        return [result_document(result) for result in self.results]

    def __repr__(self) -> str:
        return f"<MlperfRun: {'; '.join(result.answer for result in self.results)}>"


@suggest_keywords
def plan_mlperf(
    options: str | Sequence[str],
    *,
    tiers: Mapping[str, str | Path],
    output: str | Path | None = None,
    duration: str = f"{RUNTIME_S}s",
    trials: int = TRIALS,
    seed: int = SEED,
    pause: str = f"{PAUSE_S}s",
    capacity: str | None = None,
    rank: int = 0,
    clients: int = 1,
    queue_depth: int | None = None,
    replay_options: Config | None = None,
    tell: Tell | None = None,
    argv: Sequence[str] = ("kvreplay.plan_mlperf",),
) -> MlperfPlan:
    """Plan a run of locked options, and judge the rules that it keeps and breaks.

    The defaults are the benchmark's. With another value the run is possible, and marked.

    Args:
        options: A name, or several: "v3-8b-stress", "v3-8b-throughput", "v3-70b", or "v3" for all.
        tiers: The storage under test, such as `{"nvme": "/mnt/drive"}`: a directory, a file *.dat
            or a device.
        output: The folder for results, on another filesystem. Default: a temporary folder that
            lives as long as the plan.
        duration: Wall-clock time of each trial.
        trials: Number of trials of each option.
        seed: Base seed of the requests and the data; the rank is added.
        pause: Pause between two options.
        capacity: Capacity of the storage tier, such as "500GiB". Default: 95 % of the free space.
        rank: Rank of this client if several run.
        clients: Clients that share the filesystem.
        queue_depth: I/Os of 1 MiB in flight at most. Default: the option's number of users.
        replay_options: Further options of each replay.
        tell: Takes notes.
        argv: The command that results record.

    Raises:
        ConfigError: for an unknown option, a target that is no storage, or too little space.

    Examples:
        >>> import tempfile, kvreplay
        >>> with tempfile.TemporaryDirectory() as drive:
        ...     plan = kvreplay.plan_mlperf(
        ...         "v3-8b", tiers={"nvme": drive}, capacity="64MiB", trials=1
        ...     )
        >>> plan.attempts[0].option.name, plan.attempts[0].trials
        ('v3-8b-stress', 1)

    """
    check_memory()
    names = [options] if isinstance(options, str) else list(options)
    resolved = resolve(names)
    folder, path = _output_folder(output, "mlperf")
    with _notes_to(tell) as tell_note:
        for name in names:
            if name in SHORT:
                described = resolve([name])[0].said
                tell_note(f"{name} is {SHORT[name]} ({described}); {ALL} names all options")
    config = replace(replay_options or Config(), tiers=_targets(tiers))
    attempts = []
    for option in resolved:
        option_config = replace(
            config,
            tiers=targets_of(config.tiers, option),
            queue_depth=queue_depth or option.users,
            runtime=duration,
            fsync="close",
        )
        Replay(option_config, path / TRACE_FILE, path, list(argv)).check_options()
        place = place_of(config.tiers[STORAGE], path)
        place = replace(place, free_bytes=place.free_bytes // clients)
        attempt = Attempt(
            option=option,
            config=option_config,
            place=place,
            trials=trials,
            runtime_ns=option_config.runtime_ns or 0,
            pause_ns=parse_duration_ns(pause),
            seed_base=seed,
            rank=rank,
            options=len(resolved),
            asked_bytes=None if capacity is None else parse_bytes(capacity),
        )
        if not 0 < attempt.capacity_bytes <= place.room_bytes:
            raise ConfigError(
                f"{attempt.space}: name a larger target, or a smaller {named('capacity')}"
            )
        attempts.append(attempt)
    return MlperfPlan(attempts, [rules_of(attempt) for attempt in attempts], path, folder)


@suggest_keywords
def run_mlperf(
    plan: MlperfPlan,
    *,
    break_rules: bool = False,
    overwrite: bool = False,
    tell: Tell | None = None,
    argv: Sequence[str] = ("kvreplay.run_mlperf",),
    show: Show | None = None,
    watching: Watching | None = None,
    replaying: Replaying = replay,
) -> MlperfRun:
    """Run the locked options of a plan: make each option's trace, replay it in trials, judge it.

    Leaves mlperf.json, mlperf.csv and mlperf.xlsx with the benchmark's metric names, the rules that
    were kept, and claims that a replay does not support.

    Args:
        plan: The result of `plan_mlperf`.
        break_rules: Run although results lie on the filesystem under test, and mark them.
        overwrite: Replace results in the plan's folder.
        tell: Takes a line on each step.
        argv: The command that results record.
        show: Shows the progress of each replay.
        watching: Shows the measured part of each replay while it goes on.
        replaying: Performs each replay; ranks of MPI replay together.

    Returns:
        The results. A run that was cut short is returned, too, with `error` set.

    Raises:
        ConfigError: if a rule is broken that no option of the plan broke, without `break_rules`.
        DeviceError: if the target cannot be used, or must not be.

    Examples:
        >>> import tempfile, kvreplay
        >>> with tempfile.TemporaryDirectory() as drive:
        ...     plan = kvreplay.plan_mlperf(
        ...         "v3-8b", tiers={"nvme": drive}, capacity="2GiB", trials=1, duration="1s",
        ...         replay_options=kvreplay.Config(is_buffered=True),
        ...     )
        ...     run = kvreplay.run_mlperf(plan, break_rules=True)
        >>> run.results[0].option, run.results[0].status
        ('v3-8b-stress', 'complete')

    """
    check_output(plan.output, is_forced=overwrite)
    for attempt, rules in zip(plan.attempts, plan.rules, strict=True):
        Replay(attempt.config, plan.output / TRACE_FILE, plan.output, list(argv)).check_targets()
        refuse_broken(rules, is_allowed=break_rules)
    results: list[MlperfResult] = []
    error: KvError | None = None
    is_one = len(plan.attempts) == 1
    with _notes_to(tell) as tell_note:
        if not is_one:
            make_directory(plan.output, MLPERF_FILE)
        for attempt, rules in zip(plan.attempts, plan.rules, strict=True):
            if results:
                _pause(attempt.pause_ns / NS_PER_S, tell_note)
            option = attempt.option
            tell_note(f"{option.name}: {option.said}; space: {attempt.space}")
            for rule in rules:
                tell_note(f"{rule.rule} ({rule.reference}): {rule.kept}: {rule.detail}")
            folder = plan.output if is_one else plan.output / option.name
            request = Replay(attempt.config, folder / TRACE_FILE, folder, list(argv))
            request = replace(request, watching=watching)
            request = request if show is None else replace(request, show=show)
            result, error = submit(attempt, rules, request, replaying=replaying)
            results.append(result)
            if error is not None:
                break
    return MlperfRun(plan.output, results, error, plan)


@suggest_keywords
def combine_mlperf(
    folders: Sequence[str | Path],
    output: str | Path,
    *,
    overwrite: bool = False,
    argv: Sequence[str] = ("kvreplay.combine_mlperf",),
) -> MlperfRun:
    """Combine the results of several clients of one storage, and write them to `output`.

    Args:
        folders: The folder of each client's results.
        output: The folder for the combined results.
        overwrite: Replace results in `output`.
        argv: The command that results record.

    Raises:
        ConfigError: for fewer than two clients, or results of different options or settings.
        TraceError: if a folder holds no result.

    Examples:
        >>> import kvreplay
        >>> kvreplay.combine_mlperf(["rank-0"], "together")
        Traceback (most recent call last):
        kvtrace.core.errors.ConfigError: ...

    """
    target = Path(output)
    results = combine([Path(folder) for folder in folders], list(argv))
    check_output(target, is_forced=overwrite)
    make_directory(target, MLPERF_FILE)
    for result in results:
        folder = target / result.option if len(results) > 1 else target
        make_directory(folder, MLPERF_FILE)
        write_result(result, [], folder)
    return MlperfRun(target, results)


class MlperfCheck:
    """The faults of a result tree of mlpstorage."""

    def __init__(self, checked: Checked) -> None:
        """Hold the findings of a check."""
        self.checked = checked
        """The findings as typed structs, and the runs that were read."""

    @property
    def answer(self) -> str:
        """The result in one sentence."""
        return self.checked.answer

    @property
    def is_valid(self) -> bool:
        """True if no fault was found."""
        return not self.checked.findings

    def document(self) -> Document:
        """Return the findings as a document for a terminal."""
        return check_document(self.checked)

    def __repr__(self) -> str:
        return f"<MlperfCheck: {self.answer}>"


@suggest_keywords
def check_mlperf(
    tree: str | Path, *, argv: Sequence[str] = ("kvreplay.check_mlperf",)
) -> MlperfCheck:
    """Check a result tree of mlpstorage by the rules of a submission.

    Args:
        tree: The --results-dir of mlpstorage.
        argv: The command that the result records.

    Raises:
        TraceError: if the tree holds no result of the KV-cache benchmark.

    Examples:
        >>> import tempfile, kvreplay
        >>> with tempfile.TemporaryDirectory() as tree:
        ...     kvreplay.check_mlperf(tree)
        Traceback (most recent call last):
        kvtrace.core.errors.TraceError: ...

    """
    return MlperfCheck(check_tree(Path(tree), list(argv)))


def _pause(seconds: float, announce: Tell) -> None:
    """Wait between two options, with progress."""
    announce(f"pausing {seconds:g} s before the next option")
    end = time.monotonic() + seconds
    with progress("resting", seconds) as tick:
        while (remaining_s := end - time.monotonic()) > 0:
            time.sleep(min(_TICK_S, remaining_s))
            tick(seconds - remaining_s)


@contextmanager
def _trace_of(trace: Path | None, gen: str | None) -> Iterator[Path]:
    """Yield `trace`, or a temporary one that `kvtrace gen` makes with the options `gen`."""
    if trace is not None:
        yield trace
        return
    with temporary_folder("kvreplay-") as folder:
        path = folder / "trace.parquet"
        generate(gen or "", path)
        yield path


def _targets(tiers: Mapping[str, str | Path]) -> dict[str, str]:
    return {name: str(target) for name, target in tiers.items()}


def _output_folder(output: str | Path | None, name: str) -> tuple[TemporaryFolder | None, Path]:
    """Return the folder for results, and the object that deletes it if it is temporary."""
    if output is not None:
        return None, Path(output)
    folder = TemporaryFolder("kvreplay-")
    return folder, folder.path / name


@contextmanager
def _notes_to(tell: Tell | None) -> Iterator[Tell]:
    """Yield a function that takes notes; without `tell` the library prints none."""
    quiet = QUIET.set(QUIET.get() or tell is None)
    try:
        yield tell or (lambda _note: None)
    finally:
        QUIET.reset(quiet)
