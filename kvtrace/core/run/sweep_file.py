"""The content of `sweep.json` and of `scorecard.json`.

A sweep replays one trace at rising loads, each as a run. Its knee is the highest load that was
sustained. A scorecard rates a drive at the knees of several caching stacks.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import msgspec

from kvtrace import __version__
from kvtrace.core.files import find_json, read_json
from kvtrace.core.run.figures import LimitCause, RunVerdict
from kvtrace.core.run.run_file import SWEEP_FILE


class Axis(StrEnum):
    """The load parameter that rises from run to run."""

    QUEUE_DEPTH = "queue_depth"
    SPEED = "speed"
    USERS = "users"

    @property
    def parameter(self) -> str:
        """The parameter of `sweep` that takes the values of this axis."""
        return {Axis.QUEUE_DEPTH: "queue_depths", Axis.SPEED: "speeds", Axis.USERS: "users"}[self]


class SweepPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a sweep."""

    value: float
    run: str
    verdict: str
    window: str | None = None
    """The part of the trace that was replayed, as `--window` names it. Null for all of it, and in
    earlier versions.
    """
    throughput_bytes_per_s: float | None
    """Object bytes read and written on tiers that transfer data / time from the first submission to
    the end.
    """
    operations_per_s: float | None
    asked_bytes_per_s: float | None = None
    """Bytes per second that were due, read and written, on those tiers; null in a closed loop."""
    operations: int | None = None
    """Operations completed in the run."""
    read_p99_ns: int | None
    """p99 of the slowest tier: response time in an open loop, service time in a closed one. Null if
    a tier has too few operations.
    """
    read_p99_lacks: str | None = None
    """Why read_p99_ns is null, and how long the run would have to be."""
    read_p50_ns: int | None = None
    """As read_p99_ns, as are the following percentiles."""
    read_p99_9_ns: int | None = None
    write_p50_ns: int | None = None
    write_p99_ns: int | None
    write_p99_9_ns: int | None = None
    kept_pace: bool | None
    """Null in a closed loop."""
    is_delivered: bool | None = None
    """Whether the requested load of an open loop was transferred by its end, even if operations
    were late. Null in a closed loop, and in sweeps of earlier versions.
    """
    late_by_itself_fraction: float | None = None
    """Share of an open loop's operations that waited for more than their dependencies. Their
    response times include that wait.
    """
    cause: str | None = None
    """The largest cause of delay in an open loop, as in the run's `pace`."""
    judgement: RunVerdict | None = None
    """The requested load, the achieved load and the bottleneck. Null in sweeps of earlier versions.
    """
    is_within_target: bool | None = None
    """Whether read_p99_ns is within the target; null without a target, or if read_p99_ns is null.
    """
    late_p99_ns: int | None
    trials: int = 1
    """Runs at this value. There are several if they decide which load an open loop sustains; the
    other fields are those of the median run.
    """
    held_trials: int | None = None
    """Trials that sustained the load; null in a closed loop."""
    is_delayed_by_replayer: bool | None = None
    """Whether the replayer's own work delayed most operations; null in a closed loop."""
    lacks_reads: bool = False
    """Whether nothing was read, in a sweep that asks how long its reads take."""

    @property
    def is_held(self) -> bool:
        """An open loop's load was sustained.

        It was delivered, it is not known to have missed the target, and the replayer did not delay
        it. A load that the replayer delayed did not reach the storage on time.
        """
        is_within_target = self.is_within_target is not False
        is_offered = not self.is_delayed_by_replayer and not self.lacks_reads
        return self.keeps_up and is_within_target and is_offered

    @property
    def keeps_up(self) -> bool:
        """An open loop's load was delivered."""
        return bool(self.kept_pace if self.is_delivered is None else self.is_delivered)


class LoadSweep(msgspec.Struct, frozen=True, kw_only=True):
    """The points of a sweep and its knee."""

    axis: Axis
    points: list[SweepPoint]
    knee: float | None
    """The value at the knee; null if no point qualifies."""
    is_saturated: bool
    """True if the sweep ended because it saturated. If false, the knee may be at a higher load."""
    rule: str
    answer: str = ""
    """One sentence: the load at the knee, its response time, and the bottleneck above it."""
    limit: LimitCause | None = None
    """The bottleneck above the knee. Null if no higher load was tried, or if the measurements do
    not identify it.
    """
    read_p99_target_ns: int | None = None
    simulated_tiers: list[str] = []
    """Tiers that transfer no data. No point counts them."""


def find_sweep(folder: Path) -> LoadSweep | None:
    """Return the sweep in `folder`, or None if there is none; TraceError if its file is damaged."""
    return find_json(
        folder / SWEEP_FILE, LoadSweep, misfit="not of this version of kvreplay: {}; sweep again"
    )


CARD_FILE = "scorecard.json"
FEW_REQUESTS = 30
"""With fewer requests in the window, more users may ask for less: with vLLM's blocks, 4 users asked
for 136 MB/s, 5 users for 720 MB/s, and 8 users for 593 MB/s.
"""


class CardTrial(msgspec.Struct, frozen=True, kw_only=True):
    """The throughput and the response times of one run of a scorecard.

    Response times start when an operation was due.
    """

    read_bytes_per_s: float | None
    written_bytes_per_s: float | None
    read_p50_ns: int | None
    """This and the next two fields are null if there are too few operations."""
    read_p99_ns: int | None
    read_p99_9_ns: int | None


class TriedUsers(msgspec.Struct, frozen=True):
    """One load of a scorecard's search, and the number of trials that sustained it."""

    users: float
    trials: int
    held_trials: int


class Score(CardTrial, frozen=True, kw_only=True):
    """The figures of the drive under one caching stack, at the load that decides.

    They are the medians of the trials at this load.
    """

    preset: str
    gen: str | None = None
    """Options of the `kvtrace gen` that generates the trace, except the users. Null in cards of
    earlier versions.
    """
    users: float | None
    """The most users that the drive sustains; null if it does not sustain the fewest that were
    tried.
    """
    tried: list[TriedUsers] = []
    """Every load of the search, rising; empty in cards of earlier versions."""
    at_users: float
    """The users of the measured runs: `users`, or the fewest that were tried if `users` is null."""
    answer: str
    limit: str | None
    request_bytes: float | None
    """The mean size of block requests. This and the next field are null without probes."""
    in_flight: float | None
    """The mean number of block requests in flight when a request is dispatched."""
    drive_writes_per_day: float | None
    """DWPD if this load lasts all day, for the whole device; null if its size is unknown."""
    life_years: float | None
    """Null without --endurance."""
    delivered_share: float | None
    """Bytes transferred / bytes that the trace requested in the same time. The bias of the
    measurement is this minus 1.
    """
    spread: float | None
    """(greatest - least) / median of the throughput, over the trials at this load."""
    trials: int
    requests: int | None = None
    """Requests in the window of its runs; null in cards of earlier versions."""
    each: list[CardTrial] = []
    """The trials, in the order of their runs."""
    trace_sha256: str | None
    """SHA-256 of the trace at this load. The same seed and options give the same bytes."""

    @property
    def is_by_chance(self) -> bool:
        """The window has so few requests that chance decides which load is sustained."""
        return self.requests is not None and self.requests < FEW_REQUESTS

    @property
    def lost_users(self) -> float | None:
        """The fewest users that the drive does not sustain; null if it sustained every load."""
        return next((load.users for load in self.tried if 2 * load.held_trials < load.trials), None)


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """The scorecard of a drive."""

    program: str = "kvreplay"
    version: str = __version__
    argv: list[str]
    status: str
    """`complete`, or why it is partial."""
    window: str | None = None
    """The part of each trace that every run measured; null in cards of earlier versions."""
    device: str | None
    model: str | None
    device_bytes: int | None
    filesystem: str | None
    scores: list[Score]


def find_card(path: Path) -> Card | None:
    """Return the scorecard at `path`, a file or its folder.

    None if `path` is no *.json file and contains no scorecard. TraceError if the file is missing,
    damaged, or no scorecard.
    """
    file = path / CARD_FILE if path.is_dir() or path.suffix != ".json" else path
    misfit = "no scorecard of this version of kvreplay: {}"
    return read_json(file, Card, misfit=misfit) if file.is_file() or file == path else None
