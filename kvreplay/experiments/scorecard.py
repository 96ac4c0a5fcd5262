"""A drive's scorecard: the users of each of several caching stacks that the drive sustains."""

from __future__ import annotations

import math
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

from kvreplay.experiments.load_sweep import (
    PRECISION,
    TRIALS,
    count_reads,
    progress_of,
    sweep,
    tiers_rate,
)
from kvreplay.plan.output_directory import make_directory
from kvreplay.result.figures import worst_percentile
from kvreplay.run.discover import drive_table, error_line, measure_drive
from kvreplay.run.replay import FinishedRun, Replay, replay
from kvreplay.tiers.claims import claim, release
from kvreplay.tiers.modelled import DRIVE_FILE, DriveModel
from kvtrace.core import statistics
from kvtrace.core.document import sweep_document
from kvtrace.core.document.document import Document
from kvtrace.core.errors import ConfigError, KvError
from kvtrace.core.files import write_json
from kvtrace.core.parameters import named
from kvtrace.core.run.drive_file import DriveFile
from kvtrace.core.run.probe_file import find_probe
from kvtrace.core.run.run_file import SERVED_FILE, RunFile, find_run
from kvtrace.core.run.sweep_file import (
    CARD_FILE,
    Axis,
    Card,
    CardTrial,
    LoadSweep,
    Score,
    SweepPoint,
    TriedUsers,
)
from kvtrace.core.schema import SERVED, TRACE
from kvtrace.core.statistics import SECONDS_PER_DAY, Endurance
from kvtrace.core.tables import open_table
from kvtrace.core.units import NS_PER_S, parse_duration_ns, per_second

MODEL, FASTER = "qwen2.5-7b", {"gpu": "512MiB", "cpu": "2GiB"}
"""The model that the stacks serve, and the capacities of the tiers above the drive.

These are small, so that most of the load reaches the drive.
"""


WINDOW_DOUBLINGS = 4
"""A window in which nothing is read is doubled at most this often."""
LOAD = ("--duration", "20min", "--set", "workload.think_time=10s")
"""The steady window begins when the drive's tier first evicts, which takes long with few users."""


USER_BYTES_PER_S = 90e6
"""Approximate load of one of these users on the drive (77 to 105 MB/s were measured).

The search for the number of users begins with it.
"""


TIER = "nvme"


def gen_options(preset: str, size: str) -> str:
    """Return the options of `kvtrace gen` for a stack's trace with a drive tier of `size`."""
    capacities = FASTER | {TIER: size}
    settings = [
        argument
        for tier, capacity in capacities.items()
        for argument in ("--set", f"tiers.{tier}.capacity={capacity}")
    ]
    return shlex.join(["--preset", preset, "--model", MODEL, *LOAD, *settings])


def first_users(drive: DriveFile, sustained_users: float | None) -> list[float]:
    """Return the numbers of users with which a search begins.

    They are a step below and above the `sustained_users` of the stack before. For the first stack,
    it is a power of two, with a load of about half of the bandwidth of `drive`.
    """
    if sustained_users is not None:
        return [
            max(1.0, float(int(sustained_users / PRECISION))),
            float(math.ceil(sustained_users * PRECISION)),
        ]
    rate, _ = DriveModel(drive.cells).at(1 << 20, 16, 0.5)
    return [max(1.0, 2.0 ** round(math.log2(rate / 2 / USER_BYTES_PER_S)))]


class ReadingWindow:
    """Replays a window in which storage is read, as long as that takes.

    A drive's tier that has just begun to evict may not have been read yet, and writes alone say
    nothing about what a stack's users wait for. So a window without a read is doubled, for all
    later runs too. If even the longest window has no read, its run stands as it is: with that many
    users on so small a tier, blocks may be evicted before anybody comes back to them. Later runs
    are then not lengthened in vain.
    """

    def __init__(self) -> None:
        """Begin with the window of the first request."""
        self._window: str | None = None
        self._can_grow = True
        self.has_read = False
        """Whether any run read from storage."""
        self.longest: str | None = None
        """The window, as doubled most often, that had no read; None if each run had reads."""

    def __call__(self, request: Replay) -> FinishedRun:
        """Replay `request`, in a longer window if necessary, and return the last run."""
        window = self._window
        for doublings in range(WINDOW_DOUBLINGS + 1):
            if window is not None:
                request = replace(request, config=replace(request.config, window=window))
            finished = replay(request)
            if finished.error is not None:
                return finished
            if count_reads(finished.run.summary):
                self.has_read = True
                self._window = window
                return finished
            longer = longer_window(finished.run.window.window)
            if longer is None or not self._can_grow:
                return finished
            if doublings < WINDOW_DOUBLINGS:
                window = longer
                shutil.rmtree(request.output)
        self._can_grow = False
        self.longest = window
        return finished


def longer_window(window: str | None) -> str | None:
    """Return a window of the same kind and twice the length; None if `window` has no length.

    >>> longer_window("steady:30s")
    'steady:60s'
    """
    kind, _, place = (window or "").partition(":")
    begin, plus, span = place.rpartition("+")
    if not span:
        return None
    doubled_s = 2 * parse_duration_ns(span) / NS_PER_S
    return f"{kind}:{begin}{plus}{doubled_s:g}s"


def measure_stack(
    request: Replay,
    preset: str,
    users: list[float],
    announce: Callable[[str], None],
    endurance: Endurance | None,
) -> tuple[Score, RunFile, KvError | None]:
    """Sweep the users of one stack, beginning with `users`, and announce each run.

    Return the score, the run, and the error if the sweep is partial.

    Raises:
        ConfigError: no number of users that was tried reads from storage.
        KvError: nothing was measured.

    """
    replaying = ReadingWindow()
    gen = shlex.join(open_table(request.trace, TRACE).meta.argv[2:])
    result, error = sweep(
        request,
        Axis.USERS,
        users,
        is_made=True,
        replaying=replaying,
        needs_reads=True,
        on_point=lambda point: announce(
            f"{preset} {point.run}: {progress_of(Axis.USERS, point, None)}"
        ),
    )
    if not result.points:
        raise error or KvError(f"{preset}: nothing was measured")
    if not replaying.has_read:
        raise ConfigError(
            f"{preset}: nothing is read from storage in {replaying.longest or 'the trace'}, with"
            f" any number of users that was tried; give a longer {named('window')}, or a smaller"
            f" {named('size')}, which evicts earlier"
        )
    point = next((p for p in result.points if p.value == result.knee), result.points[0])
    first = point.run.partition("-trial-")[0]
    names = [first, *(f"{first}-trial-{n}" for n in range(2, TRIALS + 1))]
    runs = {name: run for name in names if (run := find_run(request.output / name)) is not None}
    run, folder = runs[point.run], request.output / point.run
    return (
        _score(preset, result, point, list(runs.values()), run, folder, gen, endurance),
        run,
        error,
    )


def _score(
    preset: str, sweep_: LoadSweep, point: SweepPoint, trials: list[RunFile], run: RunFile, folder: Path,
    gen: str, endurance: Endurance | None,
) -> Score:  # fmt: skip
    size, offered = run.tiers[TIER].get("device_bytes"), point.asked_bytes_per_s
    card_trials = [_trial(trial_run) for trial_run in trials]
    columns = {
        name: [getattr(trial, name) for trial in card_trials]
        for name in CardTrial.__struct_fields__
    }
    medians = {
        name: None if None in values else round(median(values)) for name, values in columns.items()
    }
    written = medians["written_bytes_per_s"]
    daily_bytes = None if written is None else written * SECONDS_PER_DAY
    probe = find_probe(folder)
    directions = list(probe.block.directions.values()) if probe else []
    issued = sum(direction.issued or 0 for direction in directions)
    issued_bytes = sum(direction.issued_bytes or 0 for direction in directions)
    depths = [
        (depth.in_flight, depth.count)
        for direction in directions
        for depth in direction.in_flight_at_dispatch
    ]
    rates = [
        (trial.read_bytes_per_s or 0) + (trial.written_bytes_per_s or 0) for trial in card_trials
    ]
    return Score(
        **medians,
        preset=preset,
        gen=gen,
        users=sweep_.knee,
        tried=[TriedUsers(p.value, p.trials, p.held_trials or 0) for p in sweep_.points],
        at_users=point.value,
        answer=sweep_.answer,
        limit=sweep_.limit,
        request_bytes=issued_bytes / issued if issued else None,
        in_flight=(
            sum(depth * count for depth, count in depths) / sum(count for _, count in depths)
            if depths
            else None
        ),
        drive_writes_per_day=daily_bytes / size if daily_bytes is not None and size else None,
        life_years=endurance.life_years(size, daily_bytes) if endurance and daily_bytes else None,
        delivered_share=(
            (tiers_rate(run.summary, "reached_bytes_per_s") or 0.0) / offered if offered else None
        ),
        spread=statistics.spread(rates) if len(rates) > 1 else None,
        trials=len(card_trials),
        each=card_trials,
        requests=sum(
            batch.num_rows for batch in open_table(folder / SERVED_FILE, SERVED).batches()
        ),
        trace_sha256=run.trace.sha256,
    )


def _trial(run: RunFile) -> CardTrial:
    times = {
        f"read_{name}": worst_percentile(run.summary.figures, "read", name)
        for name in ("p50_ns", "p99_ns", "p99_9_ns")
    }
    return CardTrial(
        read_bytes_per_s=_rate(run, "read"), written_bytes_per_s=_rate(run, "write"), **times
    )


def _rate(run: RunFile, op: str) -> float | None:
    """Return the bytes per second that `run` transferred by `op`, on real tiers."""
    sizes = [f.bytes or 0 for f in run.summary.figures if f.op == op and not f.is_simulated]
    return per_second(sum(sizes) if sizes else None, run.summary.measured_ns)


def card_of(
    request: Replay, scores: list[Score], run: RunFile | None, error: KvError | None
) -> Card:
    """Return the card, and write it to scorecard.json in the output."""
    tier = {} if run is None else run.tiers[TIER]
    card = Card(
        argv=request.argv,
        status="complete" if error is None else str(error),
        window=request.config.window,
        device=tier.get("device"),
        model=tier.get("device_model"),
        device_bytes=tier.get("device_bytes"),
        filesystem=tier.get("filesystem"),
        scores=scores,
    )
    write_json(request.output / CARD_FILE, card)
    return card


def card_document(card: Card, drive: DriveFile) -> Document:
    """Return the document of the card, with the drive's own measurements, on one page."""
    page = sweep_document.card_document(card)
    notes, unknown = page.chapters[0].notes, [cell for cell in drive.cells if cell.reason]
    if unknown:
        notes.append(
            f"{len(unknown)} measurements of the drive are missing, the first because"
            f" {unknown[0].reason}"
        )
    if drive.held_out is not None:
        notes.append(error_line(drive.held_out))
    page.chapters[0].tables.append(drive_table(drive))
    return page


def run_scorecard(
    request: Replay,
    target: Path,
    traces: dict[str, Path],
    announce: Callable[[str], None],
    endurance: Endurance | None,
) -> tuple[Card | None, DriveFile, KvError | None]:
    """Measure the drive at `target`, then each stack on it; `traces` has a trace for each preset.

    Returns the card, which is None if no stack was measured, the drive's own figures, and the error
    if the card is partial. Our files on the target are removed at the end.
    """
    scores: list[Score] = []
    run: RunFile | None = None
    error: KvError | None = None
    sustained_users: float | None = None
    drive = measure_drive(request, target)
    make_directory(request.output, CARD_FILE)
    write_json(request.output / DRIVE_FILE, drive)
    try:
        for preset, trace in traces.items():
            try:
                stack_request = replace(request, output=request.output / preset, trace=trace)
                users = first_users(drive, sustained_users)
                score, run, error = measure_stack(stack_request, preset, users, announce, endurance)
                sustained_users = score.users
                scores.append(score)
            except KvError as stack_error:
                error = stack_error
            if error is not None:
                break
    finally:
        release(claim(target), is_kept=False)
    card = card_of(request, scores, run, error) if scores else None
    return card, drive, error
