"""The simplest models that together explain a source's operations.

By process, by phase, by direction.

A process is a stream of its own where the source names processes. Each stream has

- phases: cut where a likelihood-ratio test finds a change of mix, or of an open loop's rate, beyond chance and noise;
- a loop: who sets the pace. A closed loop keeps a depth, each completion lets one more in; an open one issues at its
  times, whatever is in flight. A closed loop over both directions is one stream; an open one is a stream a direction;
- places: sequential runs first, then each place once, uniform, zipf, pareto, or else zones. A law is kept if draws
  from it are used as unevenly as the source's places; zipf and pareto are fio's own generators, hashed over the
  places.
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
"""Stretches of equal time that the rate is given for."""
MAX_OPS = 1_000_000
"""The most operations of a stream that a model is fitted to, its first ones, which bounds memory.
"""
MAX_PROCESSES = 8
"""More are taken together as one."""
_MIN_OPS = 20
"""Fewer tell nothing of a distribution."""
FAST = 8
"""Bursts are fitted for a drive of so many times the source's mean rate.

What it has not done of one burst when the next comes waits with that. On drives of 4 to 32 times
the rate, as much is in flight as in the source within 25 %.
"""
_COUPLED_KS = 0.15
_SAME_PLACES = 0.5

Describe = Callable[[int, int, int, int | None, bool], DirectionProfile]
"""Op, first and last time, process, and whether zones are wanted."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A process (null for all) from `from_ns` to `to_ns`, both included."""

    process: int | None
    from_ns: int
    to_ns: int


Times = NDArray[np.int64] | NDArray[np.float64]
"""Times in ns; floating point where some are not known, which are NaN."""


def fit_streams(db: duckdb.DuckDBPyConnection, start_ns: int, describe: Describe) -> list[IoStream]:
    """Return the streams of the view `ios`, by when they begin.

    `start_ns` is its first read's or write's time.
    """
    found: list[IoStream] = []
    rows = query(db, "profile_processes")
    parts = [_Part(row["process"], row["first_ns"], row["last_ns"]) for row in rows]
    if len(rows) > MAX_PROCESSES or len(rows) == 1:
        parts = [
            _Part(None, min(part.from_ns for part in parts), max(part.to_ns for part in parts))
        ]
    span_ns = max(part.to_ns for part in parts) - min(part.from_ns for part in parts)
    drain_per_ns = FAST * sum(row["ops"] for row in rows) / max(1, span_ns)
    for part in parts:
        for phase in _phases(db, part):
            found += _phase_streams(db, phase, start_ns, describe, drain_per_ns)
    found.sort(key=lambda s: (s.start_ns, s.name))
    names = [s.name for s in found]
    return [
        (
            msgspec.structs.replace(s, name=f"{s.name}{names[: i + 1].count(s.name)}")
            if names.count(s.name) > 1
            else s
        )
        for i, s in enumerate(found)
    ]


def _phases(db: duckdb.DuckDBPyConnection, part: _Part) -> list[_Part]:
    """Return the stretches of `part` that keep one mix and, if no completion sets it, one rate."""
    span = part.to_ns - part.from_ns
    if not span:
        return [part]
    ops = _operations(db, part)
    bucket = max(1, -(-(span + 1) // BUCKETS))
    counts = np.zeros((4, -(-(span + 1) // bucket)), dtype=np.int64)
    which = {
        "process": part.process,
        "start_ns": part.from_ns,
        "short_bytes": int(np.median(ops["io_bytes"])),
    }
    table = query_table(db, "profile_kinds", bucket_ns=bucket, **which)
    counts[table["kind"].to_numpy(), table["bucket"].to_numpy()] = table["ops"].to_numpy()
    loop = fit_loop(ops["ts_ns"], ops["completed_ns"])
    edges = cut(counts[counts.sum(axis=1) > 0], has_rate=loop.pace is not Pacing.CLOSED)
    return [
        _Part(
            part.process, part.from_ns + a * bucket, min(part.from_ns + b * bucket - 1, part.to_ns)
        )
        for a, b in edges
    ]


def _operations(db: duckdb.DuckDBPyConnection, part: _Part) -> Columns:
    which = {"process": part.process, "from_ns": part.from_ns, "to_ns": part.to_ns}
    table = query_table(db, "profile_part", most=MAX_OPS, **which)
    return {name: table[name].to_numpy() for name in table.column_names}


def _phase_streams(
    db: duckdb.DuckDBPyConnection,
    part: _Part,
    start_ns: int,
    describe: Describe,
    drain_per_ns: float,
) -> list[IoStream]:
    ops = _operations(db, part)
    if not len(ops["op"]):
        return []
    done = None if np.isnan(ops["completed_ns"].astype(np.float64)).all() else ops["completed_ns"]
    found = []
    for name, which, loop in _split(ops, done, drain_per_ns):
        times = ops["ts_ns"][which]
        places = fit_places(ops["address"][which], ops["io_bytes"][which])
        begin, span = int(times[0]), part.to_ns + 1 - int(times[0])
        if times[-1] == times[0]:
            span = 1  # an instant has no rate: what comes next is another stream
        elif _MIN_OPS <= len(times) < MAX_OPS:
            # So many gaps as operations: the last one's is not seen.
            span = round(int(times[-1] - times[0]) * len(times) / (len(times) - 1))
        read, write = (
            (
                describe(op, part.from_ns, part.to_ns, part.process, places.law is Law.ZONES)
                if (ops["op"][which] == op).any()
                else nothing()
            )
            for op in (READ, WRITE)
        )
        times_of = {"start_ns": begin - start_ns, "span_ns": span}
        of_burst = loop.think_ops if loop.pace is Pacing.BURSTS else None
        if of_burst is not None:
            of_burst = (
                _stage_width(ops["request_id"][which], ops["stage"][which], times) or of_burst
            )
        paced = msgspec.structs.replace(loop, burst_depth=of_burst)
        found.append(
            IoStream(name=name, **times_of, read=read, write=write, loop=paced, places=places)
        )
    return found


def _stage_width(
    request: NDArray[np.int64], stage: NDArray[np.int64], came: NDArray[np.int64]
) -> int | None:
    """Return how many operations a stage holds, if a request has several at one instant.

    Null if all may run at once.

    `request` and `stage` are -1 of what is no request's, and waits for nothing.
    """
    instant = np.unique(came, return_inverse=True)[1]
    codes = (request * (instant[-1] + 1) + instant, request * (int(stage.max()) + 2) + stage)
    found = [np.unique(code, return_inverse=True, return_counts=True)[1:] for code in codes]
    asked, staged = (counts[which] for which, counts in found)
    at_once = np.where((request < 0) | (stage < 0), asked, np.minimum(staged, asked))
    return None if at_once.sum() == asked.sum() else round(float(at_once.mean()))


def _split(
    ops: Columns, done: Times | None, drain_per_ns: float = 1.0
) -> list[tuple[str, NDArray[np.bool_], Loop]]:
    """Return what is a stream of its own, with its pace.

    Both directions if they share one, else each.
    """
    both, is_read = fit_loop(ops["ts_ns"], done, drain_per_ns), ops["op"] == READ
    everything = np.ones(len(is_read), dtype=bool)
    if is_read.all() or not is_read.any():
        return [("read" if is_read.all() else "write", everything, both)]
    if both.pace is Pacing.CLOSED:
        return [("mixed", everything, both)]
    each = [
        (
            name,
            which,
            fit_loop(ops["ts_ns"][which], None if done is None else done[which], drain_per_ns),
        )
        for name, which in (("read", is_read), ("write", ~is_read))
    ]
    by_chance = all(loop.pace in (Pacing.POISSON, Pacing.BURSTS) for _name, _which, loop in each)
    # Two processes by chance are one by chance together; a program that waits for whichever is due
    # comes in pairs.
    apart = [
        exponential_ks(np.diff(ops["ts_ns"][which]))
        for which in (is_read, ~is_read)
        if which.sum() > _MIN_OPS
    ]
    is_one = both.pace is Pacing.BURSTS and len(apart) == 2 and max(apart) <= _COUPLED_KS  # noqa: PLR2004 - directions
    # In two sections fio's laws would have hot places of their own.
    if is_one or (by_chance and _has_same_hot_places(ops["address"], ops["io_bytes"], is_read)):
        return [("mixed", everything, msgspec.structs.replace(both, pace=Pacing.POISSON))]
    return each


def _has_same_hot_places(
    address: NDArray[np.int64], length: NDArray[np.int64], is_read: NDArray[np.bool_]
) -> bool:
    """Return whether reads and writes are drawn from one skewed law.

    Together they follow one, and at the same places.

    Of how often each place is read and written, the cosine: 1 if in proportion, near 0 if what is
    hot differs.
    """
    if fit_places(address, length).law not in (Law.ZIPF, Law.PARETO):
        return False
    place = np.unique(address, return_inverse=True)[1]
    read, written = (
        np.bincount(place[which], minlength=place.max() + 1).astype(float)
        for which in (is_read, ~is_read)
    )
    return float(read @ written) >= _SAME_PLACES * float(
        np.linalg.norm(read) * np.linalg.norm(written)
    )


def nothing() -> DirectionProfile:
    """Return the profile of a direction without operations."""
    return DirectionProfile(ops=0, object_bytes=0, io_bytes=0, sizes=[], zones=[])


_FULL_PERCENTILE = 99.0
"""Percentile of what arrivals find in flight that counts as the most.

A request that is split is two for a moment, which on a fast device some arrivals in a thousand
find.
"""
_FULL = 0.9
_FULL_PEAKS = 0.5
"""Share of the times at which arrivals pause that find a closed loop full."""
_TIMED = 0.99
_EVEN_WITHIN = 0.1
_EVEN_SHARE = 0.7
"""Gaps are even if this share of them is within a tenth of the median."""
_STRETCH_GAPS, _EVEN_DISPERSION = 10, 0.3
"""Variance by mean of arrivals in stretches of so many mean gaps.

Chance has 1. By deciles, which no stall changes.
"""
_DECILES_APART = 2.563
"""Standard deviations between the first and the last decile of a normal distribution."""
_POISSON_KS = 0.1
_LEAST_PAUSE_NS = 100_000
_ALIKE_WITHIN, _ALIKE_SHARE, _REGULAR_CV = 0.3, 0.5, 0.5
"""Pauses are a setting of the program if they are this much alike and share of the idle time, and
come regularly.
"""
_FEWEST_PAUSES, _FEW_REGULAR_CV = 5, 0.1
"""Of fewer than `_MIN_OPS` pauses, at least so many must come all but evenly."""
_UNEXPLAINED = 0.1
"""Share of the span that may be pauses which no setting explains, for the loop to count as closed.
"""


@dataclass(frozen=True, slots=True)
class _Events:
    """Arrivals and completions of one stream, each in order, in ns."""

    came: NDArray[np.int64]
    done: NDArray[np.int64]

    @property
    def in_flight(self) -> NDArray[np.int64]:
        """With each arrival, itself included."""
        return np.arange(1, len(self.came) + 1) - np.searchsorted(self.done, self.came, "right")


def fit_loop(came: NDArray[np.int64], done: Times | None, drain_per_ns: float = 1.0) -> Loop:
    """Return the simplest loop that explains arrivals at `came`, ascending.

    `done` may be null or hold NaN.

    Bursts are fitted for a drive that does `drain_per_ns` operations a ns.
    """
    timed = np.zeros(len(came), dtype=bool) if done is None else ~np.isnan(done)
    response_ns = (
        None if done is None or not timed.any() else float((done[timed] - came[timed]).mean())
    )
    if done is None or len(came) < _MIN_OPS or timed.mean() < _TIMED:
        pace = _open_pace(np.diff(came))
        if pace is not Pacing.BURSTS:
            return Loop(pace, response_ns=response_ns)
        # Equal bursts: a remainder would be one more pause.
        burst = -(-len(came) // max(1, round(len(came) / _waiting_together(came, drain_per_ns))))
        return Loop(pace, think_ops=burst if burst > 1 else None, response_ns=response_ns)
    events = _Events(came[timed], np.sort(done[timed].astype(np.int64)))
    depth = max(1, int(np.percentile(events.in_flight, _FULL_PERCENTILE, method="inverted_cdf")))
    if _is_closed(events, depth):
        think_ns, think_ops, unexplained_ns = _thinks(events)
        # A job that leaves out the source's pauses asks for more than the source did: its mean rate
        # is kept instead.
        if unexplained_ns <= _UNEXPLAINED * (events.done[-1] - events.came[0]):
            return Loop(Pacing.CLOSED, depth, think_ns, think_ops, response_ns)
    return Loop(_open_pace(np.diff(events.came)), depth, None, None, response_ns)


def _waiting_together(came: NDArray[np.int64], drain_per_ns: float) -> float:
    """Return how large equal bursts with as much in flight are.

    One waits for half of its own and the backlog.
    """
    at, ops = np.unique(came, return_counts=True)
    # The backlog that each burst finds: what came before, less what was done since, but never below
    # 0.
    ahead = np.cumsum(ops[:-1] - drain_per_ns * np.diff(at))
    finds = (
        np.concatenate([[0.0], ahead - np.minimum(np.minimum.accumulate(ahead), 0.0)])
        if len(at) > 1
        else 0.0
    )
    return float((ops * (ops + 2 * finds)).sum()) / len(came)


def _is_closed(events: _Events, depth: int) -> bool:
    if depth == 1:
        # Both are even then: the one whose waits are more regular is the clock.
        gaps, waits = np.diff(events.came), np.maximum(events.came[1:] - events.done[:-1], 0)
        return entropy(waits) < entropy(gaps)
    in_flight = events.in_flight
    # An arrival is a peak if something completes before the next one.
    completed = np.searchsorted(events.done, events.came, "right")
    peaks = in_flight[np.append(np.diff(completed) > 0, [True])]
    return float((peaks >= _FULL * depth).mean()) > _FULL_PEAKS


def entropy(values_ns: NDArray[np.int64]) -> float:
    """Return the differential entropy of `values_ns` (Vasicek, of spacings).

    The less, the more regular they are.
    """
    x = np.sort(values_ns).astype(np.float64)
    m = max(1, round(len(x) ** 0.5 / 2))
    # What is closer than a microsecond is the same.
    spaces = np.maximum(x[m:] - x[:-m], 1000.0)
    return float(np.log(spaces * len(x) / m).mean())


def _thinks(events: _Events) -> tuple[int | None, int | None, int]:
    """Return how long a closed loop pauses with nothing in flight, after how many operations, and
    the other idle time.

    The first two are null if it pauses never or irregularly; idle time, in ns, is of pauses of 0.1
    ms and more.
    """
    came, in_flight = events.came, events.in_flight
    begins = np.flatnonzero(in_flight[1:] == 1) + 1
    idle = came[begins] - events.done[begins - 1]
    idle_ns = int(idle[idle >= _LEAST_PAUSE_NS].sum())
    if len(idle) < _FEWEST_PAUSES:
        return None, None, idle_ns
    # The pause is the stretch of like idle times that most of the idle time is spent in.
    order = np.argsort(idle, kind="stable")
    ordered = idle[order].astype(np.float64)
    done = np.concatenate([[0.0], np.cumsum(ordered)])
    ends = np.searchsorted(ordered, ordered * (1 + _ALIKE_WITHIN), "right")
    spent = done[ends] - done[:-1]
    at = int(spent.argmax())
    pauses = order[at : ends[at]]
    typical = float(np.median(idle[pauses]))
    # A program pauses after as many operations each time; a machine that stalls does not.
    apart = np.diff(np.sort(begins[pauses]))
    cv = _REGULAR_CV if len(apart) >= _MIN_OPS else _FEW_REGULAR_CV
    is_regular = len(pauses) >= _FEWEST_PAUSES and apart.std() <= cv * apart.mean()
    if typical < _LEAST_PAUSE_NS or spent[at] < _ALIKE_SHARE * done[-1] or not is_regular:
        return None, None, idle_ns
    return round(typical), max(1, round(float(np.median(apart)))), idle_ns - int(spent[at])


def _open_pace(gaps_ns: NDArray[np.int64]) -> Pacing:
    """Return how gaps between arrivals are distributed.

    All about the same, or as by chance, or else.
    """
    if len(gaps_ns) < _MIN_OPS:
        return Pacing.POISSON
    middle = float(np.median(gaps_ns))
    if middle and float((np.abs(gaps_ns - middle) <= _EVEN_WITHIN * middle).mean()) >= _EVEN_SHARE:
        return Pacing.EVEN
    # A clock whose ticks come late, but which catches up: as many in each stretch.
    done = np.cumsum(gaps_ns)
    counts = np.bincount((done // max(1, _STRETCH_GAPS * done[-1] // len(done))).astype(np.int64))[
        :-1
    ]
    low, high = np.percentile(counts, (10, 90)) if len(counts) >= _MIN_OPS else (0, _STRETCH_GAPS)
    if low and ((high - low) / _DECILES_APART) ** 2 <= _EVEN_DISPERSION * _STRETCH_GAPS:
        return Pacing.EVEN
    return Pacing.POISSON if exponential_ks(gaps_ns) <= _POISSON_KS else Pacing.BURSTS


def exponential_ks(gaps_ns: NDArray[np.int64]) -> float:
    """Return the Kolmogorov-Smirnov distance of `gaps_ns` from an exponential distribution of their
    mean.
    """
    x = np.sort(gaps_ns).astype(np.float64)
    if not x[-1]:
        return 1.0
    expected = 1 - np.exp(-x / x.mean())
    steps = np.arange(len(x) + 1) / len(x)
    return float(max(np.abs(expected - steps[1:]).max(), np.abs(expected - steps[:-1]).max()))


MAX_PHASES = 8
_MIN_SHARE = 0.04
"""The shortest phase, of the whole span: fio starts a phase some milliseconds late."""
_MIN_PHASE_OPS = 20
"""Operations that a phase needs on average: of fewer no rate is known."""
_STALL_SHARE = 0.1
"""A stall of the device and what catches up after it are each shorter than this share of the span.
"""
_SAME_RATE = 0.1
_WORTH = 0.004
"""Nats an operation that one more phase must explain.

A read share that changes by 0.09, a rate by a fifth.
"""


def cut(counts: NDArray[np.int64], *, has_rate: bool) -> list[tuple[int, int]]:
    """Return the first bucket of each phase and the first one after it, in order.

    Phases cover all buckets.

    `counts` is (kinds of operations, buckets of equal time). Without a rate, a change of it is
    none: a closed loop is as fast as the device. That nothing comes at all is a change in any case.
    """
    n, total = counts.shape[1], int(counts.sum())
    shortest = max(1, round(n * _MIN_SHARE))
    most = max(1, min(MAX_PHASES, total // _MIN_PHASE_OPS, n // shortest))
    cost = _phase_costs(counts.astype(np.float64), shortest, has_rate=has_rate)
    best, came = [cost[0]], [np.zeros(n + 1, dtype=np.int64)]
    for _phase in range(1, most):
        through = best[-1][:, None] + cost
        came.append(through.argmin(axis=0))
        best.append(through.min(axis=0))
    # A cut has a place, and each phase a share for each kind.
    freedom = counts.shape[0] + 1
    penalty = max(freedom / 2 * float(np.log(max(total, 2))), _WORTH * total)
    phases = min(range(most), key=lambda k: float(best[k][n]) + k * penalty)
    cuts, end = [n], n
    for phase in range(phases, 0, -1):
        end = int(came[phase][end])
        cuts.append(end)
    return _without_stalls(counts, list(pairwise([0, *sorted(cuts)])))


def _without_stalls(
    counts: NDArray[np.int64], phases: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return `phases` without stalls.

    Short ones that, with what catches up after them, keep their neighbour's rate.
    """
    n = counts.shape[1]
    for first in range(len(phases)):
        for last in range(len(phases) - 1, first, -1):
            begin, end = phases[first][0], phases[last][1]
            whole = counts[:, begin:end].sum(axis=1) / (end - begin)
            kept = [p for p in phases[first : last + 1] if p[1] - p[0] > _STALL_SHARE * n]
            alike = [counts[:, a:b].sum(axis=1) / (b - a) for a, b in kept]
            if kept and all(
                float(np.abs(rate - whole).sum()) <= _SAME_RATE * float(whole.sum())
                for rate in alike
            ):
                return _without_stalls(counts, [*phases[:first], (begin, end), *phases[last + 1 :]])
    return phases


def _phase_costs(
    counts: NDArray[np.int64], shortest: int, *, has_rate: bool
) -> NDArray[np.float64]:
    """Return minus the log-likelihood of each stretch from bucket i to before j, but for what no
    cut changes.
    """
    n = counts.shape[1]
    whole = counts.sum(axis=0)
    # Whether there is anything: half a bucket is as long as the loop's pauses may be.
    rate, noise = (whole > 0)[None, :] * whole.mean(), 1.0
    if has_rate:
        rate = whole[None, :]
        # How much more neighbouring buckets differ than by chance.
        if n > 2 and whole.any():  # noqa: PLR2004 - two differences
            noise = max(
                noise, float(np.median(np.square(np.diff(whole)))) / (2 * whole.mean() * 0.455)
            )
    mixed = _mix_noise(counts)
    done = [
        np.concatenate([np.zeros((len(x), 1)), np.cumsum(x, axis=1)], axis=1)
        for x in (counts, rate)
    ]
    cost = np.full((n + 1, n + 1), np.inf)
    for start in range(n):
        ends = np.arange(start + shortest, n + 1)
        if not len(ends):
            continue
        kinds, rates = (d[:, ends] - d[:, [start]] for d in done)
        of_mix = _deviance(kinds, np.maximum(kinds.sum(axis=0), 1e-300)) / mixed
        cost[start, ends] = of_mix + _deviance(rates, ends - start) / noise
    return cost


def _deviance(
    counts: NDArray[np.float64], lengths: NDArray[np.float64] | NDArray[np.int64]
) -> NDArray[np.float64]:
    rate = counts / lengths
    return -np.where(counts > 0, counts * np.log(np.maximum(rate, 1e-300)), 0).sum(axis=0)


def _mix_noise(counts: NDArray[np.int64]) -> float:
    """Return how much more the shares of kinds differ than by chance, by the chi-square of each
    pair of neighbours.
    """
    kinds, n = counts.shape
    if kinds == 1 or n < 3:  # noqa: PLR2004 - two differences
        return 1.0
    left, right = counts[:, :-1], counts[:, 1:]
    a, b = left.sum(axis=0), right.sum(axis=0)
    both = np.maximum(left + right, 1e-300)
    square = (
        np.square(left * np.sqrt(b / np.maximum(a, 1)) - right * np.sqrt(a / np.maximum(b, 1)))
        / both
    )
    known = (a > 0) & (b > 0)
    used = int((counts.sum(axis=1) > 0).sum())
    if not known.any() or used < 2:  # noqa: PLR2004 - one kind has no shares
        return 1.0
    return max(1.0, float(square.sum(axis=0)[known].mean()) / (used - 1))


_LOOK_BACK = 32
"""Operations back that a sequential one may continue.

Several are in flight, and a process may have several runs.
"""
_SEQUENTIAL, _RANDOM = 0.98, 0.03
_EQUAL_RUNS_CV = 0.3
_ALIGNED = 0.999
_SECTOR_BYTES, _MOST_ALIGN_BYTES = 512, 1 << 20
_HOT_PARTS = (0.01, 0.03, 0.1, 0.3, 0.6)
"""Hottest parts of the used places, at which the shares of operations of two streams are compared.
"""
_FITS, _HOPELESS = 0.02, 0.3
_NEAR = 1.02
_SKEWED = 1.1
"""Variance by mean of the uses of a place, of which uniform draws have 1.

Beyond it some may be hot.
"""
_TOO_EVEN = 0.5
"""Variance by mean of how often a place is covered, below which none comes twice before all have
come.
"""
_MOST_PLACES = 1 << 19
_GOLDEN = np.uint64(0x61C8864680B583EB)
"""fio's hash multiplies ranks by this."""
_THETAS = np.concatenate([np.arange(0.2, 1.0, 0.1), np.arange(1.05, 2.5, 0.1)])
_PARETO_HS = np.concatenate([np.arange(0.02, 0.1, 0.02), np.arange(0.1, 0.5, 0.05)])
_SEED = 42


def fit_places(address: NDArray[np.int64], length: NDArray[np.int64]) -> Places:
    """Return the law of operations at `address`, in order of arrival."""
    # Which operations begin where one of the last ended.
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
        # If all but the last are about as long; one tells nothing.
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
        law, theta, places = _law(address[chosen] - begin, length[chosen], align, span)
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


def _law(
    address: NDArray[np.int64], length: NDArray[np.int64], align: int, span: int
) -> tuple[Law, float | None, int]:
    """Return the law, its parameter, and over how many places it is."""
    uses = np.unique(address, return_counts=True)[1]
    n = len(address)
    if n == len(uses):
        return Law.ONCE, None, 0
    # Of very many places, several are looked at as one, which no law but those of equal places
    # survives.
    coarse = max(1, -(-(span // align) // _MOST_PLACES))
    if coarse > 1:
        align *= coarse
        uses = np.unique(address // align, return_counts=True)[1]
    places = max(span // align, len(uses))
    # How often each place is covered by an operation.
    steps = np.zeros(places + 1, dtype=np.int64)
    np.add.at(steps, np.minimum(address // align, places), 1)
    np.add.at(steps, np.minimum(-(-(address + length) // align), places), -1)
    covered = np.cumsum(steps)[:-1]
    if covered.var() < _TOO_EVEN * covered.mean():
        return Law.ONCE, None, 0
    mean = n / places
    spread = (float(np.square(uses.astype(np.float64)).sum()) / places - mean**2) / mean
    if spread < _SKEWED or _differs(uses, np.full(places, 1 / places), n) <= _FITS:
        return Law.UNIFORM, None, 0
    # fio's generators count places in the smallest size.
    if coarse > 1 or int(length.min()) != align:
        return Law.ZONES, None, 0
    # Ranks are hashed: over a power of two each has a place of its own, else several share one. The
    # last few places of a file may not have been used.
    whole = 1 << (places - 1).bit_length()
    counts = [places, *([whole] if whole <= _NEAR * places else [])]
    laws = ((Law.ZIPF, _THETAS), (Law.PARETO, _PARETO_HS))
    distance, law, theta, count = min(
        (*_best(uses, n, c, law, values), c) for c in counts for law, values in laws
    )
    return (law, theta, count) if distance <= _FITS else (Law.ZONES, None, places)


def _best(
    uses: NDArray[np.int64], n: int, places: int, law: Law, values: NDArray[np.float64]
) -> tuple[float, Law, float]:
    """Return how far `law` is from `uses` at the best of `values`, and that, refined."""
    found = [_differs(uses, likely(law, float(value), places), n) for value in values]
    at = int(np.argmin(found))
    step = float(np.diff(values[max(0, at - 1) : at + 2]).max()) / 2
    distance, value = found[at], float(values[at])
    while distance < _HOPELESS and step > 0.005:  # noqa: PLR2004 - finer than what so few draws tell
        for near in (value - step, value + step):
            if near > 0 and abs(near - 1) > 1e-3 and (law is not Law.PARETO or near < 0.5):  # noqa: PLR2004 - of zipf and pareto
                other = _differs(uses, likely(law, near, places), n)
                if other < distance:
                    distance, value = other, near
        step /= 2
    return distance, law, round(value, 3)


def _differs(uses: NDArray[np.int64], p: NDArray[np.float64], n: int) -> float:
    """Return how far the shares of the hottest places, and the number used, are from draws with
    probabilities `p`.
    """
    drawn = np.random.default_rng(_SEED).poisson(p * n)
    drawn = drawn[drawn > 0]
    if not len(drawn):  # of two or three operations it may draw none, and tells nothing
        return 1.0
    mine, theirs = _hot_shares(uses), _hot_shares(drawn)
    return max(float(np.abs(mine - theirs).max()), abs(len(drawn) / len(uses) - 1) / 2)


def _hot_shares(uses: NDArray[np.int64]) -> NDArray[np.float64]:
    done = np.cumsum(np.sort(uses)[::-1]) / uses.sum()
    return np.array([done[max(0, round(len(uses) * part) - 1)] for part in _HOT_PARTS])


def likely(law: Law, value: float, places: int) -> NDArray[np.float64]:
    """Return how likely fio's zipf or pareto generator takes each of `places`.

    Ranks are hashed over the places, so that several may share one and some have none.
    """
    if law is Law.ZIPF:
        ranks = np.arange(1, places + 1, dtype=np.float64)
        zeta_n, zeta_2 = float((ranks**-value).sum()), 1 + 0.5**value
        eta = (1 - (2 / places) ** (1 - value)) / (1 - zeta_2 / zeta_n)
        below = ((ranks / places) ** (1 - value) - 1 + eta) / eta
        below[0] = 1 / zeta_n
        if places > 1:
            below[1] = max(zeta_2 / zeta_n, below[1])
    else:
        power = np.log(value) / np.log(1 - value)
        below = (np.arange(1, places + 1, dtype=np.float64) / max(1, places - 1)) ** (1 / power)
    share = np.diff(np.clip(np.maximum.accumulate(below), 0, 1), prepend=0)
    with np.errstate(over="ignore"):
        place = (np.arange(places, dtype=np.uint64) * _GOLDEN) % np.uint64(places)
    return np.bincount(place.astype(np.int64), share / share.sum(), places).astype(np.float64)
