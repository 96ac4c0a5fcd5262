"""`sweep.json`.

One trace at rising loads, each a run, and the knee between what was sustained and what was not.

And `scorecard.json`: a drive at the knees of several caching stacks.
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
    """What rises from run to run."""

    QUEUE_DEPTH = "queue_depth"
    SPEED = "speed"
    USERS = "users"

    @property
    def parameter(self) -> str:
        """The parameter of a sweep that takes its values."""
        return {Axis.QUEUE_DEPTH: "queue_depths", Axis.SPEED: "speeds", Axis.USERS: "users"}[self]


class SweepPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a sweep."""

    value: float
    run: str
    verdict: str
    window: str | None = None
    """The part of its trace that was replayed, as `--window` names it.

    Null for all, and in earlier versions.
    """
    throughput_bytes_per_s: float | None
    """Object bytes read and written on tiers where bytes move / time from the first submission to
    the end.
    """
    operations_per_s: float | None
    asked_bytes_per_s: float | None = None
    """What an open loop was due to read and write a second there; null in a closed loop."""
    operations: int | None = None
    """That completed in the run."""
    read_p99_ns: int | None
    """Of the slowest tier.

    Response time in an open loop, service time in a closed one; null if one has too few.
    """
    read_p99_lacks: str | None = None
    """Why it is null, and how long the run would have to be."""
    read_p50_ns: int | None = None
    """This and the next of the slowest tier, as read_p99_ns."""
    read_p99_9_ns: int | None = None
    write_p50_ns: int | None = None
    write_p99_ns: int | None
    write_p99_9_ns: int | None = None
    kept_pace: bool | None
    """Null in a closed loop."""
    is_delivered: bool | None = None
    """Whether what an open loop was asked for was moved by its end, though operations may have been
    late; null in a closed loop, and in sweeps of earlier versions.
    """
    late_by_itself_fraction: float | None = None
    """Of an open loop's operations, those that waited for more than what they depend on.

    Their times contain that.
    """
    cause: str | None = None
    """What kept an open loop from its pace, as in the run's `pace`."""
    judgement: RunVerdict | None = None
    """The load asked for, the load reached, and the bottleneck.

    Null in sweeps of earlier versions.
    """
    is_within_target: bool | None = None
    """Whether read_p99_ns is within the target; null without one, or if it is not known."""
    late_p99_ns: int | None
    trials: int = 1
    """Runs at this value.

    More where they decide what an open loop sustains; the other fields are the median's.
    """
    held_trials: int | None = None
    """Those that were sustained; null in a closed loop."""
    is_delayed_by_replayer: bool | None = None
    """Whether the replayer's own work delayed most operations; null in a closed loop."""
    lacks_reads: bool = False
    """Whether nothing was read, in a sweep that asks how long its reads take."""

    @property
    def is_held(self) -> bool:
        """Whether an open loop's load was sustained.

        It was delivered, it is not known to have missed the target, and the replayer did not delay
        it: a load that the replayer delayed never reached the storage in its time. Where a sweep
        needs reads, writes alone sustain nothing.
        """
        is_within_target = self.is_within_target is not False
        is_offered = not self.is_delayed_by_replayer and not self.lacks_reads
        return self.keeps_up and is_within_target and is_offered

    @property
    def keeps_up(self) -> bool:
        """Whether an open loop's load was delivered."""
        return bool(self.kept_pace if self.is_delivered is None else self.is_delivered)


class LoadSweep(msgspec.Struct, frozen=True, kw_only=True):
    """The points and the knee."""

    axis: Axis
    points: list[SweepPoint]
    knee: float | None
    """Null if no point qualifies."""
    is_saturated: bool
    """Whether the sweep ended because it saturated; if not, the knee may lie beyond."""
    rule: str
    answer: str = ""
    """What the sweep came to, in one sentence.

    The load at the knee, its response time, and what limits above it.
    """
    limit: LimitCause | None = None
    """What limits above the knee.

    Null if nothing was tried there, or if what was measured does not decide.
    """
    read_p99_target_ns: int | None = None
    simulated_tiers: list[str] = []
    """Nothing moved there; no point counts them."""


def find_sweep(folder: Path) -> LoadSweep | None:
    """Return the sweep in `folder`, or None if there is none; TraceError if its file is damaged."""
    return find_json(
        folder / SWEEP_FILE, LoadSweep, misfit="not of this version of kvreplay: {}; sweep again"
    )


CARD_FILE = "scorecard.json"
FEW_REQUESTS = 30
"""With fewer in a window more users may ask for less.

Of vLLM's blocks 4 asked for 136 MB/s, 5 for 720, 8 for 593.
"""


class CardTrial(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of a scorecard moved on the drive, and its response times.

    From when an operation was due.
    """

    read_bytes_per_s: float | None
    written_bytes_per_s: float | None
    read_p50_ns: int | None
    """This and the next null of too few operations."""
    read_p99_ns: int | None
    read_p99_9_ns: int | None


class TriedUsers(msgspec.Struct, frozen=True):
    """A load of a scorecard's search, and how often the drive sustained it."""

    users: float
    trials: int
    held_trials: int


class Score(CardTrial, frozen=True, kw_only=True):
    """What the drive does under one stack, at the load that decides.

    The medians of its trials, and each trial's.
    """

    preset: str
    gen: str | None = None
    """Options of the `kvtrace gen` that makes its trace, but for the users.

    Null in cards of earlier versions.
    """
    users: float | None
    """The most that it sustains; null if it sustains not even the least that was tried."""
    tried: list[TriedUsers] = []
    """Every load of the search, rising; empty in cards of earlier versions."""
    at_users: float
    """Where it was measured: `users`, or else the least that was tried."""
    answer: str
    limit: str | None
    request_bytes: float | None
    """The mean of the block requests; this and the next null without probes."""
    in_flight: float | None
    """The mean number of block requests in flight, as one is dispatched."""
    drive_writes_per_day: float | None
    """At this load, kept up, of the whole device; null if its size is not known."""
    life_years: float | None
    """Null without --endurance."""
    delivered_share: float | None
    """Bytes that were moved over bytes that the trace asked for in the same time.

    Its bias, less one.
    """
    spread: float | None
    """(greatest - least) / median of the throughput over the trials at this load."""
    trials: int
    requests: int | None = None
    """In the window of its runs; null in cards of earlier versions."""
    each: list[CardTrial] = []
    """One a trial, in their order."""
    trace_sha256: str | None
    """Of its trace at this load: the same seed and options give the same bytes."""

    @property
    def is_by_chance(self) -> bool:
        """Whether its window holds so few requests that which of them it holds decides what is
        sustained.
        """
        return self.requests is not None and self.requests < FEW_REQUESTS

    @property
    def lost_users(self) -> float | None:
        """The least that it does not sustain; null if nothing that was tried failed."""
        return next((load.users for load in self.tried if 2 * load.held_trials < load.trials), None)


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """The scorecard of a drive."""

    program: str = "kvreplay"
    version: str = __version__
    argv: list[str]
    status: str
    """complete, or why it is partial."""
    window: str | None = None
    """Which part of each trace every run measured; null in cards of earlier versions."""
    device: str | None
    model: str | None
    device_bytes: int | None
    filesystem: str | None
    scores: list[Score]


def find_card(path: Path) -> Card | None:
    """Return the scorecard at `path`, a file or its folder; None if it is no *.json and holds none.

    TraceError if the file is missing, damaged, or no scorecard.
    """
    file = path / CARD_FILE if path.is_dir() or path.suffix != ".json" else path
    misfit = "no scorecard of this version of kvreplay: {}"
    return read_json(file, Card, misfit=misfit) if file.is_file() or file == path else None
