"""Fit streams to a source's operations: the simplest models that together describe them.

    for each process (all as one if none are named, or more than `MAX_PROCESSES`):
        cut its time into phases of constant mix and, in an open loop, constant rate
        for each phase:
            if reads and writes share one closed loop, or one skewed set of addresses: one stream
            else: one stream a direction
            fit each stream's arrivals (a `Loop`) and addresses (`Places`)

- Phases: a likelihood-ratio test finds changes of the mix or rate beyond chance and noise.
- Arrivals: a closed loop keeps a queue depth, and each completion admits one more operation. An
  open loop issues at its own times, whatever is in flight.
- Addresses: sequential runs first; the random remainder is without replacement, uniform, zipf,
  pareto, or else zones. A law fits if draws from it use addresses as unevenly as the source does.
  Zipf and pareto are fio's own generators, which hash the ranks over the addresses.

Source: own reasoning; each test names its statistic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvdistill.profile.profile import DirectionProfile, IoStream, Law, Loop, Pacing, Places
from kvdistill.queries.database import query, query_table
from kvdistill.queries.window import READ, WRITE, Columns
from kvtrace.core import duckdb

BUCKETS = 240
"""Buckets of equal time, for which a rate is counted."""
MAX_OPS = 1_000_000
"""A model is fitted to at most this many operations of a stream, the first ones; bounds memory."""
MAX_PROCESSES = 8
"""More processes than this are modelled as one."""
_MIN_OPS = 20
"""Smallest sample from which a distribution is fitted."""
FAST = 8
"""Bursts are fitted to the queue on a drive of this multiple of the source's mean rate.

Operations of one burst that are not complete when the next arrives queue with it. On drives of 4 to
32 times the rate, the job's operations in flight are within 25 % of the source's.
"""
_COUPLED_KS = 0.15
_SAME_PLACES = 0.5

Describe = Callable[[int, int, int, int | None, bool], DirectionProfile]
"""A function of op, first and last time in ns, process, and whether to compute zones."""


@dataclass(frozen=True, slots=True)
class _Window:
    """A time window, `from_ns` to `to_ns` inclusive, of a process (of all if null)."""

    process: int | None
    from_ns: int
    to_ns: int


CompletionTimes = NDArray[np.int64] | NDArray[np.float64]
"""Completion times in ns; floating point if some are unknown, which are NaN."""


def fit_streams(db: duckdb.DuckDBPyConnection, start_ns: int, describe: Describe) -> list[IoStream]:
    """Return the streams of the view `ios`, ordered by their start.

    `start_ns` is the time of the first read or write.
    """
    streams: list[IoStream] = []
    rows = query(db, "profile_processes")
    windows = [_Window(row["process"], row["first_ns"], row["last_ns"]) for row in rows]
    if len(rows) > MAX_PROCESSES or len(rows) == 1:
        windows = [
            _Window(
                None,
                min(window.from_ns for window in windows),
                max(window.to_ns for window in windows),
            )
        ]
    span_ns = max(window.to_ns for window in windows) - min(window.from_ns for window in windows)
    drain_per_ns = FAST * sum(row["ops"] for row in rows) / max(1, span_ns)
    for window in windows:
        ops = _operations(db, window)
        for phase in _split_phases(db, window, ops):
            phase_ops = ops if phase == window else _operations(db, phase)
            streams += [
                _stream(part, phase, start_ns, describe)
                for part in _parts(db, phase, phase_ops, drain_per_ns)
            ]
    streams.sort(key=lambda s: (s.start_ns, s.name))
    names = [s.name for s in streams]
    return [
        (
            msgspec.structs.replace(s, name=f"{s.name}{names[: i + 1].count(s.name)}")
            if names.count(s.name) > 1
            else s
        )
        for i, s in enumerate(streams)
    ]


def _split_phases(
    db: duckdb.DuckDBPyConnection, process_window: _Window, ops: Columns
) -> list[_Window]:
    """Cut a process's time into phases of constant mix and, in an open loop, constant rate.

    `ops` are its first operations.
    """
    span_ns = process_window.to_ns - process_window.from_ns
    if not span_ns:
        return [process_window]
    bucket_ns = max(1, -(-(span_ns + 1) // BUCKETS))
    counts = np.zeros((4, -(-(span_ns + 1) // bucket_ns)), dtype=np.int64)
    window_args = {
        "process": process_window.process,
        "start_ns": process_window.from_ns,
        "short_bytes": int(np.median(ops["io_bytes"])),
    }
    table = query_table(db, "profile_kinds", bucket_ns=bucket_ns, **window_args)
    counts[table["kind"].to_numpy(), table["bucket"].to_numpy()] = table["ops"].to_numpy()
    loop = fit_loop(ops["ts_ns"], ops["completed_ns"])
    edges = cut_phases(counts[counts.sum(axis=1) > 0], has_rate=loop.pace is not Pacing.CLOSED)
    return [
        _Window(
            process_window.process,
            process_window.from_ns + a * bucket_ns,
            min(process_window.from_ns + b * bucket_ns - 1, process_window.to_ns),
        )
        for a, b in edges
    ]


def _operations(db: duckdb.DuckDBPyConnection, window: _Window, op: int | None = None) -> Columns:
    """Return the first operations in `window`, or only those of kind `op`; at most MAX_OPS."""
    window_args = {"process": window.process, "from_ns": window.from_ns, "to_ns": window.to_ns}
    table = query_table(db, "profile_part", most=MAX_OPS, op=op, **window_args)
    return {name: table[name].to_numpy() for name in table.column_names}


@dataclass(frozen=True, slots=True)
class _Part:
    """The operations that one stream is fitted to."""

    name: str
    ops: Columns
    loop: Loop

    @property
    def is_whole(self) -> bool:
        """Whether these are all operations of the stream, and not only its first."""
        return len(self.ops["op"]) < MAX_OPS


def _parts(
    db: duckdb.DuckDBPyConnection, window: _Window, ops: Columns, drain_per_ns: float
) -> list[_Part]:
    """Return the operations of each stream of a phase; `ops` are the first of the phase."""
    if not len(ops["op"]):
        return []
    directions = _split_directions(ops, _completions(ops), drain_per_ns)
    is_whole, is_mixed = len(ops["op"]) < MAX_OPS, directions[0][0] == "mixed"
    if is_mixed:
        return [_Part("mixed", ops, directions[0][2])]
    if is_whole:
        return [
            _Part(name, {column: values[selected] for column, values in ops.items()}, loop)
            for name, selected, loop in directions
        ]
    # The first operations of both directions may have few of one, or none.
    by_direction = {
        name: _operations(db, window, op) for name, op in (("read", READ), ("write", WRITE))
    }
    return [
        _Part(name, own, fit_loop(own["ts_ns"], _completions(own), drain_per_ns))
        for name, own in by_direction.items()
        if len(own["op"])
    ]


def _completions(ops: Columns) -> CompletionTimes | None:
    """Return the completion times of `ops`; None if none is known."""
    completed_ns = ops["completed_ns"]
    return None if np.isnan(completed_ns.astype(np.float64)).all() else completed_ns


def _stream(part: _Part, window: _Window, start_ns: int, describe: Describe) -> IoStream:
    """Return the stream of the phase `window` that is fitted to `part`."""
    ops, loop = part.ops, part.loop
    arrival_ns = ops["ts_ns"]
    places = fit_places(ops["address"], ops["io_bytes"])
    begin_ns = int(arrival_ns[0])
    stream_ns = window.to_ns + 1 - begin_ns
    if part.is_whole and arrival_ns[-1] == arrival_ns[0]:
        stream_ns = 1  # one instant has no rate; later operations are another stream
    elif part.is_whole and len(arrival_ns) >= _MIN_OPS:
        # n operations have n gaps; the gap after the last one is estimated by the mean.
        stream_ns = round(
            int(arrival_ns[-1] - arrival_ns[0]) * len(arrival_ns) / (len(arrival_ns) - 1)
        )
    read, write = (
        (
            describe(op, window.from_ns, window.to_ns, window.process, places.law is Law.ZONES)
            if (ops["op"] == op).any()
            else empty_direction()
        )
        for op in (READ, WRITE)
    )
    burst_depth = loop.burst_ops
    if burst_depth is not None:
        burst_depth = _stage_width(ops["request_id"], ops["stage"], arrival_ns) or burst_depth
    return IoStream(
        name=part.name,
        start_ns=begin_ns - start_ns,
        span_ns=stream_ns,
        read=read,
        write=write,
        loop=msgspec.structs.replace(loop, burst_depth=burst_depth),
        places=places,
    )


def _stage_width(
    request: NDArray[np.int64], stage: NDArray[np.int64], arrival_ns: NDArray[np.int64]
) -> int | None:
    """Return the mean operations of a stage, if a request issues several stages at one instant.

    Null if all operations of an instant may run at once. `request` and `stage` are -1 for
    operations outside requests, which wait for no stage.
    """
    instant = np.unique(arrival_ns, return_inverse=True)[1]
    codes = (request * (instant[-1] + 1) + instant, request * (int(stage.max()) + 2) + stage)
    groups = [np.unique(code, return_inverse=True, return_counts=True)[1:] for code in codes]
    instant_ops, stage_ops = (counts[group] for group, counts in groups)
    at_once = np.where((request < 0) | (stage < 0), instant_ops, np.minimum(stage_ops, instant_ops))
    return None if at_once.sum() == instant_ops.sum() else round(float(at_once.mean()))


def _split_directions(
    ops: Columns, completed_ns: CompletionTimes | None, drain_per_ns: float = 1.0
) -> list[tuple[str, NDArray[np.bool_], Loop]]:
    """Split a phase into streams: name, selected operations and loop of each.

    Both directions are one stream if they share a loop or their hot addresses, else one each.
    """
    loop_of_both, is_read = fit_loop(ops["ts_ns"], completed_ns, drain_per_ns), ops["op"] == READ
    all_ops = np.ones(len(is_read), dtype=bool)
    if is_read.all() or not is_read.any():
        return [("read" if is_read.all() else "write", all_ops, loop_of_both)]
    if loop_of_both.pace is Pacing.CLOSED:
        return [("mixed", all_ops, loop_of_both)]
    streams = [
        (
            name,
            selected,
            fit_loop(
                ops["ts_ns"][selected],
                None if completed_ns is None else completed_ns[selected],
                drain_per_ns,
            ),
        )
        for name, selected in (("read", is_read), ("write", ~is_read))
    ]
    are_random = all(
        loop.pace in (Pacing.POISSON, Pacing.BURSTS) for _name, _selected, loop in streams
    )
    # Two Poisson processes together are Poisson. If each direction looks Poisson but both together
    # do not, one program issues them in pairs.
    ks_distances = [
        exponential_ks(np.diff(ops["ts_ns"][selected]))
        for selected in (is_read, ~is_read)
        if selected.sum() > _MIN_OPS
    ]
    is_coupled = (
        loop_of_both.pace is Pacing.BURSTS
        and len(ks_distances) == 2  # noqa: PLR2004 - directions
        and max(ks_distances) <= _COUPLED_KS
    )
    # In two sections of a job, fio would hash the ranks to different hot addresses.
    if is_coupled or (
        are_random and _has_same_hot_places(ops["address"], ops["io_bytes"], is_read)
    ):
        poisson_loop = msgspec.structs.replace(
            loop_of_both, pace=Pacing.POISSON, burst_ops=None, burst_depth=None
        )
        return [("mixed", all_ops, poisson_loop)]
    return streams


def _has_same_hot_places(
    address: NDArray[np.int64], length: NDArray[np.int64], is_read: NDArray[np.bool_]
) -> bool:
    """Return whether reads and writes together follow one skewed law, with the same hot addresses.

    The statistic is the cosine of the reads and writes by address: 1 if proportional, near 0 if
    the hot addresses differ.
    """
    if fit_places(address, length).law not in (Law.ZIPF, Law.PARETO):
        return False
    place = np.unique(address, return_inverse=True)[1]
    read, written = (
        np.bincount(place[selected], minlength=place.max() + 1).astype(float)
        for selected in (is_read, ~is_read)
    )
    return float(read @ written) >= _SAME_PLACES * float(
        np.linalg.norm(read) * np.linalg.norm(written)
    )


def empty_direction() -> DirectionProfile:
    """Return the profile of a direction without operations."""
    return DirectionProfile(ops=0, object_bytes=0, io_bytes=0, sizes=[], zones=[])


_FULL_PERCENTILE = 99.0
"""Percentile of the operations in flight at arrivals that is taken for the depth of a loop.

A split request counts as two for a moment, which on a fast device some arrivals in a thousand see.
"""
_FULL = 0.9
_FULL_PEAKS = 0.5
"""In a closed loop, at least this share of the peaks in flight reaches the depth."""
_TIMED = 0.99
_EVEN_WITHIN = 0.1
_EVEN_SHARE = 0.7
"""Gaps are even if this share of them is within a tenth of the median."""
_STRETCH_GAPS, _EVEN_DISPERSION = 10, 0.3
"""Even arrivals have at most this variance/mean in windows of so many mean gaps; Poisson has 1.

The variance is estimated from deciles, which a stall does not change.
"""
_DECILES_APART = 2.563
"""Standard deviations between the first and the last decile of a normal distribution."""
_POISSON_KS = 0.1
_LEAST_PAUSE_NS = 100_000
_ALIKE_WITHIN, _ALIKE_SHARE, _REGULAR_CV = 0.3, 0.5, 0.5
"""Pauses are a think time of the program if they are similar, make up this share of the idle time,
and come regularly.
"""
_FEWEST_PAUSES, _FEW_REGULAR_CV = 5, 0.1
"""Fewer than `_MIN_OPS` pauses must be at least this many and almost evenly spaced."""
_UNEXPLAINED = 0.1
"""A closed loop has at most this share of its span in pauses that no think time explains."""


@dataclass(frozen=True, slots=True)
class _Events:
    """Arrivals and completions of one stream, each sorted, in ns."""

    arrival_ns: NDArray[np.int64]
    completed_ns: NDArray[np.int64]

    @property
    def in_flight(self) -> NDArray[np.int64]:
        """Operations in flight at each arrival, including itself."""
        return np.arange(1, len(self.arrival_ns) + 1) - np.searchsorted(
            self.completed_ns, self.arrival_ns, "right"
        )


def fit_loop(
    arrival_ns: NDArray[np.int64], completed_ns: CompletionTimes | None, drain_per_ns: float = 1.0
) -> Loop:
    """Fit a loop to ascending arrival times; completion times may be null or hold NaN.

    if completions are known, and peaks in flight reach the depth: closed loop, with its pauses
    else if gaps are equal, or arrivals are evenly spread: open loop, even
    else if gaps are exponential (Kolmogorov-Smirnov): open loop, Poisson
    else: open loop, uneven. Without completion times it is written as bursts, fitted to a drive
    of `drain_per_ns` operations a ns; with them it has no bursts, and its job is Poisson
    """
    timed = (
        np.zeros(len(arrival_ns), dtype=bool) if completed_ns is None else ~np.isnan(completed_ns)
    )
    response_ns = (
        None
        if completed_ns is None or not timed.any()
        else float((completed_ns[timed] - arrival_ns[timed]).mean())
    )
    if completed_ns is None or len(arrival_ns) < _MIN_OPS or timed.mean() < _TIMED:
        pace = _classify_gaps(np.diff(arrival_ns))
        if pace is not Pacing.BURSTS:
            return Loop(pace, response_ns=response_ns)
        # All bursts are equal: a remainder would add a pause.
        burst = -(
            -len(arrival_ns)
            // max(1, round(len(arrival_ns) / _fit_burst_ops(arrival_ns, drain_per_ns)))
        )
        return Loop(pace, burst_ops=burst if burst > 1 else None, response_ns=response_ns)
    events = _Events(arrival_ns[timed], np.sort(completed_ns[timed].astype(np.int64)))
    depth = max(1, int(np.percentile(events.in_flight, _FULL_PERCENTILE, method="inverted_cdf")))
    if _is_closed(events, depth):
        think_ns, think_ops, unexplained_ns = _fit_pauses(events)
        # Without the source's pauses, a closed loop would issue more than the source did; an open
        # loop at its mean rate does not.
        if unexplained_ns <= _UNEXPLAINED * (events.completed_ns[-1] - events.arrival_ns[0]):
            return Loop(Pacing.CLOSED, depth, think_ns, think_ops, response_ns)
    return Loop(_classify_gaps(np.diff(events.arrival_ns)), depth, None, None, response_ns)


def _fit_burst_ops(arrival_ns: NDArray[np.int64], drain_per_ns: float) -> float:
    """Return the size of equal bursts that queue as much as the source on the same drive.

    Little's law with a deterministic server of `drain_per_ns`: an operation of a burst of n that
    finds a backlog b waits for b + n / 2 operations on average. Equal bursts of m find none and wait
    for m / 2, so m = mean over operations of (n + 2 b).
    """
    instants, ops = np.unique(arrival_ns, return_counts=True)
    # Lindley recursion: backlog = max(0, backlog + arrivals - completions), in closed form.
    unbounded_backlog = np.cumsum(ops[:-1] - drain_per_ns * np.diff(instants))
    backlog = (
        np.concatenate(
            [[0.0], unbounded_backlog - np.minimum(np.minimum.accumulate(unbounded_backlog), 0.0)]
        )
        if len(instants) > 1
        else 0.0
    )
    return float((ops * (ops + 2 * backlog)).sum()) / len(arrival_ns)


def _is_closed(events: _Events, depth: int) -> bool:
    if depth == 1:
        # At depth 1 an open loop has regular gaps, a closed one regular waits after completions.
        gaps, waits = (
            np.diff(events.arrival_ns),
            np.maximum(events.arrival_ns[1:] - events.completed_ns[:-1], 0),
        )
        return entropy(waits) < entropy(gaps)
    in_flight = events.in_flight
    # An arrival is a peak if something completes before the next one.
    completed = np.searchsorted(events.completed_ns, events.arrival_ns, "right")
    peaks = in_flight[np.append(np.diff(completed) > 0, [True])]
    return float((peaks >= _FULL * depth).mean()) > _FULL_PEAKS


def entropy(values_ns: NDArray[np.int64]) -> float:
    """Return the differential entropy of `values_ns`; regular values have a low one.

    Vasicek's estimator of m-spacings (J. R. Stat. Soc. B 38, 1976).
    """
    ordered = np.sort(values_ns).astype(np.float64)
    spacing = max(1, round(len(ordered) ** 0.5 / 2))
    # Values within a microsecond count as equal.
    spaces = np.maximum(ordered[spacing:] - ordered[:-spacing], 1000.0)
    return float(np.log(spaces * len(ordered) / spacing).mean())


def _fit_pauses(events: _Events) -> tuple[int | None, int | None, int]:
    """Return the pause of a closed loop in ns, the operations between pauses, and the other idle ns.

    The first two are null if pauses are absent or irregular. Idle time counts pauses of 0.1 ms and
    more, with nothing in flight.
    """
    arrival_ns, in_flight = events.arrival_ns, events.in_flight
    resumed = np.flatnonzero(in_flight[1:] == 1) + 1
    idle = arrival_ns[resumed] - events.completed_ns[resumed - 1]
    idle_ns = int(idle[idle >= _LEAST_PAUSE_NS].sum())
    if len(idle) < _FEWEST_PAUSES:
        return None, None, idle_ns
    # The pause is the cluster of similar idle times (within 30 %) with the largest total time.
    order = np.argsort(idle, kind="stable")
    ordered = idle[order].astype(np.float64)
    cumulative_idle = np.concatenate([[0.0], np.cumsum(ordered)])
    cluster_ends = np.searchsorted(ordered, ordered * (1 + _ALIKE_WITHIN), "right")
    idle_in_cluster = cumulative_idle[cluster_ends] - cumulative_idle[:-1]
    longest = int(idle_in_cluster.argmax())
    pauses = order[longest : cluster_ends[longest]]
    pause_ns = float(np.median(idle[pauses]))
    # A program pauses after the same number of operations each time; a stalling machine does not.
    ops_between = np.diff(np.sort(resumed[pauses]))
    cv = _REGULAR_CV if len(ops_between) >= _MIN_OPS else _FEW_REGULAR_CV
    is_regular = len(pauses) >= _FEWEST_PAUSES and ops_between.std() <= cv * ops_between.mean()
    if (
        pause_ns < _LEAST_PAUSE_NS
        or idle_in_cluster[longest] < _ALIKE_SHARE * cumulative_idle[-1]
        or not is_regular
    ):
        return None, None, idle_ns
    return (
        round(pause_ns),
        max(1, round(float(np.median(ops_between)))),
        idle_ns - int(idle_in_cluster[longest]),
    )


def _classify_gaps(gaps_ns: NDArray[np.int64]) -> Pacing:
    """Classify the gaps between arrivals of an open loop: equal, exponential, or bursts."""
    if len(gaps_ns) < _MIN_OPS:
        return Pacing.POISSON
    median_ns = float(np.median(gaps_ns))
    if (
        median_ns
        and float((np.abs(gaps_ns - median_ns) <= _EVEN_WITHIN * median_ns).mean()) >= _EVEN_SHARE
    ):
        return Pacing.EVEN
    # A timer that fires late but catches up has equal counts in windows, despite unequal gaps.
    elapsed_ns = np.cumsum(gaps_ns)
    counts = np.bincount(
        (elapsed_ns // max(1, _STRETCH_GAPS * elapsed_ns[-1] // len(elapsed_ns))).astype(np.int64)
    )[:-1]
    low, high = np.percentile(counts, (10, 90)) if len(counts) >= _MIN_OPS else (0, _STRETCH_GAPS)
    if low and ((high - low) / _DECILES_APART) ** 2 <= _EVEN_DISPERSION * _STRETCH_GAPS:
        return Pacing.EVEN
    return Pacing.POISSON if exponential_ks(gaps_ns) <= _POISSON_KS else Pacing.BURSTS


def exponential_ks(gaps_ns: NDArray[np.int64]) -> float:
    """Return the Kolmogorov-Smirnov distance of `gaps_ns` from the exponential of their mean."""
    ordered = np.sort(gaps_ns).astype(np.float64)
    if not ordered[-1]:
        return 1.0
    expected = 1 - np.exp(-ordered / ordered.mean())
    steps = np.arange(len(ordered) + 1) / len(ordered)
    return float(max(np.abs(expected - steps[1:]).max(), np.abs(expected - steps[:-1]).max()))


MAX_PHASES = 8
_MIN_SHARE = 0.04
"""Shortest phase, as a share of the span: fio starts a phase some milliseconds late."""
_MIN_PHASE_OPS = 20
"""Smallest mean number of operations of a phase; fewer give no reliable rate."""
_STALL_SHARE = 0.1
"""A device stall, and the catch-up after it, are each shorter than this share of the span."""
_SAME_RATE = 0.1
_WORTH = 0.004
"""Log-likelihood in nats an operation that one more phase must gain.

A change of the read share by 0.09, or of the rate by a fifth, gains as much.
"""


def cut_phases(counts: NDArray[np.int64], *, has_rate: bool) -> list[tuple[int, int]]:
    """Return [begin, end) buckets of each phase, in order; phases cover all buckets.

    `counts` has the shape (kinds of operations, buckets of equal time). If `has_rate` is false, a
    change of rate is no phase, because a closed loop is as fast as the device; an idle period is
    one in any case.

        cost[i, j] = -log-likelihood of buckets i to j with one mix and rate
        costs[k][j] = min over i of costs[k - 1][i] + cost[i, j]     (k cuts before j)
        choose k that minimises costs[k][all] + k * penalty (BIC, at least `_WORTH` an operation)

    Optimal partitioning: Jackson et al., IEEE Signal Processing Letters 12 (2005).
    """
    buckets, total = counts.shape[1], int(counts.sum())
    min_buckets = max(1, round(buckets * _MIN_SHARE))
    max_phases = max(1, min(MAX_PHASES, total // _MIN_PHASE_OPS, buckets // min_buckets))
    cost = _phase_costs(counts.astype(np.float64), min_buckets, has_rate=has_rate)
    costs_by_phases, previous_cuts = [cost[0]], [np.zeros(buckets + 1, dtype=np.int64)]
    for _phase in range(1, max_phases):
        candidates = costs_by_phases[-1][:, None] + cost
        previous_cuts.append(candidates.argmin(axis=0))
        costs_by_phases.append(candidates.min(axis=0))
    # Each further phase adds the position of its cut and a share for each kind.
    parameters = counts.shape[0] + 1
    penalty = max(parameters / 2 * float(np.log(max(total, 2))), _WORTH * total)
    phases = min(range(max_phases), key=lambda k: float(costs_by_phases[k][buckets]) + k * penalty)
    cuts, end = [buckets], buckets
    for phase in range(phases, 0, -1):
        end = int(previous_cuts[phase][end])
        cuts.append(end)
    return _without_stalls(counts, list(pairwise([0, *sorted(cuts)])))


def _without_stalls(
    counts: NDArray[np.int64], phases: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Merge short phases that are a stall and its catch-up into their neighbours.

    They are merged if all together have the same rate as the long phases among them.
    """
    buckets = counts.shape[1]
    for first in range(len(phases)):
        for last in range(len(phases) - 1, first, -1):
            begin, end = phases[first][0], phases[last][1]
            mean_rate = counts[:, begin:end].sum(axis=1) / (end - begin)
            long_phases = [
                phase
                for phase in phases[first : last + 1]
                if phase[1] - phase[0] > _STALL_SHARE * buckets
            ]
            phase_rates = [counts[:, a:b].sum(axis=1) / (b - a) for a, b in long_phases]
            if long_phases and all(
                float(np.abs(rate - mean_rate).sum()) <= _SAME_RATE * float(mean_rate.sum())
                for rate in phase_rates
            ):
                return _without_stalls(counts, [*phases[:first], (begin, end), *phases[last + 1 :]])
    return phases


def _phase_costs(
    counts: NDArray[np.int64], min_buckets: int, *, has_rate: bool
) -> NDArray[np.float64]:
    """Return -log-likelihood of buckets i to j (exclusive) for all i and j, up to a constant."""
    buckets = counts.shape[1]
    ops_by_bucket = counts.sum(axis=0)
    # Without a rate, only idle buckets count.
    arrivals, rate_noise = (ops_by_bucket > 0)[None, :] * ops_by_bucket.mean(), 1.0
    if has_rate:
        arrivals = ops_by_bucket[None, :]
        # Overdispersion: difference of neighbouring buckets against Poisson (0.455: median chi2).
        if buckets > 2 and ops_by_bucket.any():  # noqa: PLR2004 - two differences
            rate_noise = max(
                rate_noise,
                float(np.median(np.square(np.diff(ops_by_bucket))))
                / (2 * ops_by_bucket.mean() * 0.455),
            )
    mix_noise = _mix_noise(counts)
    cumulative = [
        np.concatenate([np.zeros((len(values), 1)), np.cumsum(values, axis=1)], axis=1)
        for values in (counts, arrivals)
    ]
    cost = np.full((buckets + 1, buckets + 1), np.inf)
    for start in range(buckets):
        ends = np.arange(start + min_buckets, buckets + 1)
        if not len(ends):
            continue
        kind_counts, rate_counts = (sums[:, ends] - sums[:, [start]] for sums in cumulative)
        mix_cost = _deviance(kind_counts, np.maximum(kind_counts.sum(axis=0), 1e-300)) / mix_noise
        cost[start, ends] = mix_cost + _deviance(rate_counts, ends - start) / rate_noise
    return cost


def _deviance(
    counts: NDArray[np.float64], lengths: NDArray[np.float64] | NDArray[np.int64]
) -> NDArray[np.float64]:
    rate = counts / lengths
    return -np.where(counts > 0, counts * np.log(np.maximum(rate, 1e-300)), 0).sum(axis=0)


def _mix_noise(counts: NDArray[np.int64]) -> float:
    """Return the overdispersion of the mix: mean chi-square of neighbouring buckets, at least 1."""
    kinds, buckets = counts.shape
    if kinds == 1 or buckets < 3:  # noqa: PLR2004 - two differences
        return 1.0
    earlier, later = counts[:, :-1], counts[:, 1:]
    earlier_ops, later_ops = earlier.sum(axis=0), later.sum(axis=0)
    pair_counts = np.maximum(earlier + later, 1e-300)
    chi_square = (
        np.square(
            earlier * np.sqrt(later_ops / np.maximum(earlier_ops, 1))
            - later * np.sqrt(earlier_ops / np.maximum(later_ops, 1))
        )
        / pair_counts
    )
    is_busy = (earlier_ops > 0) & (later_ops > 0)
    kinds_used = int((counts.sum(axis=1) > 0).sum())
    if not is_busy.any() or kinds_used < 2:  # noqa: PLR2004 - one kind has no shares
        return 1.0
    return max(1.0, float(chi_square.sum(axis=0)[is_busy].mean()) / (kinds_used - 1))


_LOOK_BACK = 32
"""A sequential operation may continue any of this many operations before it.

Several operations are in flight, and a process may have several sequential runs.
"""
_SEQUENTIAL, _RANDOM = 0.98, 0.03
_EQUAL_RUNS_CV = 0.3
_ALIGNED = 0.999
_SECTOR_BYTES, _MOST_ALIGN_BYTES = 512, 1 << 20
_HOT_PARTS = (0.01, 0.03, 0.1, 0.3, 0.6)
"""Fractions of the used addresses, hottest first, at which two distributions are compared."""
_FITS, _HOPELESS = 0.02, 0.3
_NEAR = 1.02
_SKEWED = 1.1
"""Variance/mean of the uses of an address; uniform draws have 1, hot addresses more."""
_TOO_EVEN = 0.5
"""Draws whose coverage has a variance/mean below this are without replacement."""
_MOST_PLACES = 1 << 19
_GOLDEN = np.uint64(0x61C8864680B583EB)
"""fio's hash multiplies ranks by this constant (GOLDEN_RATIO_64)."""
_THETAS = np.concatenate([np.arange(0.2, 1.0, 0.1), np.arange(1.05, 2.5, 0.1)])
_PARETO_HS = np.concatenate([np.arange(0.02, 0.1, 0.02), np.arange(0.1, 0.5, 0.05)])
_SEED = 42


def fit_places(address: NDArray[np.int64], length: NDArray[np.int64]) -> Places:
    """Fit sequential runs and a random law to addresses in order of arrival."""
    # An operation is sequential if it begins where one of the last `_LOOK_BACK` ended.
    end, follows = address + length, np.zeros(len(address), dtype=bool)
    for back in range(1, min(_LOOK_BACK, len(address) - 1) + 1):
        follows[back:] |= address[back:] == end[:-back]
    share, run_ops = float(follows.mean()), None
    if share >= _SEQUENTIAL:
        share = 1.0
    elif share <= _RANDOM:
        share = 0.0
    else:
        runs = np.diff(np.flatnonzero(~follows))
        # The last run may be cut off, so it is not compared; a single run has no typical length.
        if len(runs) > 1 and runs.std() <= _EQUAL_RUNS_CV * runs.mean():
            run_ops = max(1, round(float(np.median(runs))))
    chosen = ~follows if 0 < share < 1 else np.ones(len(address), dtype=bool)
    # The largest power of two that all but a few addresses are multiples of.
    align = _MOST_ALIGN_BYTES
    while align > _SECTOR_BYTES and (address[chosen] % align == 0).mean() < _ALIGNED:
        align //= 2
    begin = int(address.min()) // align * align
    span = int((address + length).max()) - begin
    law, theta, places = Law.UNIFORM, None, 0
    if share < 1:
        law, theta, places = _fit_law(address[chosen] - begin, length[chosen], align, span)
    if law in (Law.ZIPF, Law.PARETO):
        span = places * align
    return Places(
        sequential_share=share,
        run_ops=run_ops,
        law=law,
        theta=theta,
        align_bytes=align,
        begin_bytes=begin,
        span_bytes=span,
    )


def _fit_law(
    address: NDArray[np.int64], length: NDArray[np.int64], align: int, span: int
) -> tuple[Law, float | None, int]:
    """Return the law, its parameter, and its number of addresses."""
    uses = np.unique(address, return_counts=True)[1]
    draws = len(address)
    if draws == len(uses):
        return Law.ONCE, None, 0
    # Too many addresses are grouped; then only laws without hot addresses can be fitted.
    coarse = max(1, -(-(span // align) // _MOST_PLACES))
    if coarse > 1:
        align *= coarse
        uses = np.unique(address // align, return_counts=True)[1]
    places = max(span // align, len(uses))
    # The number of operations that cover each address.
    edges = np.zeros(places + 1, dtype=np.int64)
    np.add.at(edges, np.minimum(address // align, places), 1)
    np.add.at(edges, np.minimum(-(-(address + length) // align), places), -1)
    coverage = np.cumsum(edges)[:-1]
    if coverage.var() < _TOO_EVEN * coverage.mean():
        return Law.ONCE, None, 0
    mean = draws / places
    dispersion = (float(np.square(uses.astype(np.float64)).sum()) / places - mean**2) / mean
    if (
        dispersion < _SKEWED
        or _distance_from_draws(uses, np.full(places, 1 / places), draws) <= _FITS
    ):
        return Law.UNIFORM, None, 0
    # fio's generators count addresses in units of the smallest size.
    if coarse > 1 or int(length.min()) != align:
        return Law.ZONES, None, 0
    # Ranks are hashed: over a power of two each rank has its own address, else several share one.
    # The last few addresses of a file may be unused.
    power_of_two = 1 << (places - 1).bit_length()
    counts = [places, *([power_of_two] if power_of_two <= _NEAR * places else [])]
    laws = ((Law.ZIPF, _THETAS), (Law.PARETO, _PARETO_HS))
    distance, law, theta, count = min(
        (*_fit_parameter(uses, draws, c, law, values), c) for c in counts for law, values in laws
    )
    return (law, theta, count) if distance <= _FITS else (Law.ZONES, None, places)


def _fit_parameter(
    uses: NDArray[np.int64], draws: int, places: int, law: Law, values: NDArray[np.float64]
) -> tuple[float, Law, float]:
    """Return the smallest distance of `law` from `uses`, the law, and the parameter that gives it.

    The best of `values` is refined by bisection.
    """
    distances = [
        _distance_from_draws(uses, place_probabilities(law, float(value), places), draws)
        for value in values
    ]
    best = int(np.argmin(distances))
    step = float(np.diff(values[max(0, best - 1) : best + 2]).max()) / 2
    distance, value = distances[best], float(values[best])
    while distance < _HOPELESS and step > 0.005:  # noqa: PLR2004 - the resolution of the draws
        for near in (value - step, value + step):
            if near > 0 and abs(near - 1) > 1e-3 and (law is not Law.PARETO or near < 0.5):  # noqa: PLR2004 - of zipf and pareto
                near_distance = _distance_from_draws(
                    uses, place_probabilities(law, near, places), draws
                )
                if near_distance < distance:
                    distance, value = near_distance, near
        step /= 2
    return distance, law, round(value, 3)


def _distance_from_draws(
    uses: NDArray[np.int64], probabilities: NDArray[np.float64], draws: int
) -> float:
    """Return the distance of `uses` from random draws with the given probabilities.

    It is the largest difference in the shares of the hottest addresses, or in the number used.
    """
    drawn = np.random.default_rng(_SEED).poisson(probabilities * draws)
    drawn = drawn[drawn > 0]
    if not len(drawn):  # with two or three operations, the sample may be empty
        return 1.0
    source_shares, drawn_shares = _shares_of_hottest(uses), _shares_of_hottest(drawn)
    return max(
        float(np.abs(source_shares - drawn_shares).max()), abs(len(drawn) / len(uses) - 1) / 2
    )


def _shares_of_hottest(uses: NDArray[np.int64]) -> NDArray[np.float64]:
    cumulative_share = np.cumsum(np.sort(uses)[::-1]) / uses.sum()
    return np.array(
        [cumulative_share[max(0, round(len(uses) * fraction) - 1)] for fraction in _HOT_PARTS]
    )


def place_probabilities(law: Law, parameter: float, places: int) -> NDArray[np.float64]:
    """Return the probability of each address under fio's zipf or pareto generator.

    Ranks are hashed over the addresses, so several ranks may share one and some addresses have none.
    Source: fio's `lib/zipf.c`, which uses Gray et al. (SIGMOD 1994).
    """
    if law is Law.ZIPF:
        ranks = np.arange(1, places + 1, dtype=np.float64)
        zeta_n, zeta_2 = float((ranks**-parameter).sum()), 1 + 0.5**parameter
        cumulative = np.ones(places)
        if places > 2:  # noqa: PLR2004 - the first two ranks have probabilities of their own
            eta = (1 - (2 / places) ** (1 - parameter)) / (1 - zeta_2 / zeta_n)
            cumulative = ((ranks / places) ** (1 - parameter) - 1 + eta) / eta
            cumulative[1] = max(zeta_2 / zeta_n, cumulative[1])
        cumulative[0] = 1 / zeta_n
    else:
        power = np.log(parameter) / np.log(1 - parameter)
        cumulative = (np.arange(1, places + 1, dtype=np.float64) / max(1, places - 1)) ** (
            1 / power
        )
    share = np.diff(np.clip(np.maximum.accumulate(cumulative), 0, 1), prepend=0)
    with np.errstate(over="ignore"):
        place = (np.arange(places, dtype=np.uint64) * _GOLDEN) % np.uint64(places)
    return np.bincount(place.astype(np.int64), share / share.sum(), places).astype(np.float64)
