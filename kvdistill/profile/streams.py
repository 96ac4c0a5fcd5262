"""The simplest models that together explain a source's operations: by process, by phase, by direction.

A process is apart from the others where the source tells processes. A closed loop over both directions is one stream;
an open one is a stream a direction, for a program may read at one rate and write at another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from kvdistill.profile.arrivals import BUCKETS
from kvdistill.profile.loop import exponential_ks, fit_loop
from kvdistill.profile.operations import READ, WRITE
from kvdistill.profile.phases import cut
from kvdistill.profile.places import fit_places
from kvdistill.profile.profile import DirectionProfile, IoStream, Law, Loop, Pacing
from kvdistill.queries.database import query, query_table

MAX_OPS = 1_000_000
"""The most operations of a stream that a model is fitted to, its first ones, which bounds memory."""
MAX_PROCESSES = 8
"""More are one crowd."""
_MIN_OPS = 20
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


def fit_streams(db: Any, start_ns: int, describe: Describe, *, has_places: bool) -> list[IoStream]:
    """Return the streams of the view `ios`, by when they begin; `start_ns` is its first read's or write's time."""
    found: list[IoStream] = []
    for part in _processes(db):
        for phase in _phases(db, part):
            found += _streams(db, phase, start_ns, describe, has_places=has_places)
    found.sort(key=lambda s: (s.start_ns, s.name))
    names = [s.name for s in found]
    return [
        msgspec.structs.replace(s, name=f"{s.name}{names[: i + 1].count(s.name)}") if names.count(s.name) > 1 else s
        for i, s in enumerate(found)
    ]


def _processes(db: Any) -> list[_Part]:
    rows = query(db, "profile_processes")
    if len(rows) > MAX_PROCESSES or len(rows) == 1:
        return [_Part(None, min(row["first_ns"] for row in rows), max(row["last_ns"] for row in rows))]
    return [_Part(row["process"], row["first_ns"], row["last_ns"]) for row in rows]


def _phases(db: Any, part: _Part) -> list[_Part]:
    """Return the stretches of `part` that keep one mix and, if no completion sets it, one rate."""
    span = part.to_ns - part.from_ns
    if not span:
        return [part]
    ops = _operations(db, part)
    bucket = max(1, -(-(span + 1) // BUCKETS))
    counts = np.zeros((4, -(-(span + 1) // bucket)), dtype=np.int64)
    which = {"process": part.process, "start_ns": part.from_ns, "short_bytes": int(np.median(ops["io_bytes"]))}
    table = query_table(db, "profile_kinds", bucket_ns=bucket, **which)
    counts[table["kind"].to_numpy(), table["bucket"].to_numpy()] = table["ops"].to_numpy()
    loop = fit_loop(ops["ts_ns"], ops["completed_ns"])
    edges = cut(counts[counts.sum(axis=1) > 0], has_rate=loop.pace is not Pacing.CLOSED)
    return [
        _Part(part.process, part.from_ns + a * bucket, min(part.from_ns + b * bucket - 1, part.to_ns)) for a, b in edges
    ]


def _operations(db: Any, part: _Part) -> dict[str, Any]:
    which = {"process": part.process, "from_ns": part.from_ns, "to_ns": part.to_ns}
    table = query_table(db, "profile_part", most=MAX_OPS, **which)
    return {name: table[name].to_numpy() for name in table.column_names}


def _streams(db: Any, part: _Part, start_ns: int, describe: Describe, *, has_places: bool) -> list[IoStream]:
    ops = _operations(db, part)
    if not len(ops["op"]):
        return []
    done = None if np.isnan(ops["completed_ns"].astype(np.float64)).all() else ops["completed_ns"]
    found = []
    for name, which, loop in _split(ops, done):
        times = ops["ts_ns"][which]
        places = fit_places(ops["address"][which], ops["io_bytes"][which]) if has_places else None
        begin, span = int(times[0]), part.to_ns + 1 - int(times[0])
        if _MIN_OPS <= len(times) < MAX_OPS and times[-1] > times[0]:
            # So many gaps as operations: the last one's is not seen.
            span = round(int(times[-1] - times[0]) * len(times) / (len(times) - 1))
        directions = [
            describe(op, part.from_ns, part.to_ns, part.process, places is not None and places.law is Law.ZONES)
            if (ops["op"][which] == op).any()
            else nothing()
            for op in (READ, WRITE)
        ]
        found.append(
            IoStream(
                name=name,
                start_ns=begin - start_ns,
                span_ns=span,
                read=directions[0],
                write=directions[1],
                loop=loop,
                places=places,
            )
        )
    return found


def _split(ops: dict[str, Any], done: Any) -> list[tuple[str, Any, Loop]]:
    """Return what is a stream of its own, with its pace: both directions if they share one, else each."""
    both, is_read = fit_loop(ops["ts_ns"], done), ops["op"] == READ
    if is_read.all() or not is_read.any():
        return [("read" if is_read.all() else "write", np.ones(len(is_read), dtype=bool), both)]
    if both.pace is Pacing.CLOSED:
        return [("mixed", np.ones(len(is_read), dtype=bool), both)]
    each = [
        (name, which, fit_loop(ops["ts_ns"][which], None if done is None else done[which]))
        for name, which in (("read", is_read), ("write", ~is_read))
    ]
    if both.pace is Pacing.BURSTS and _is_coupled(ops["ts_ns"], is_read):
        return [("mixed", np.ones(len(is_read), dtype=bool), msgspec.structs.replace(both, pace=Pacing.POISSON))]
    by_chance = all(loop.pace in (Pacing.POISSON, Pacing.BURSTS) for _name, _which, loop in each)
    if by_chance and _has_same_hot_places(ops["address"], ops["io_bytes"], is_read):
        # In two sections fio's laws would have hot places of their own.
        return [("mixed", np.ones(len(is_read), dtype=bool), msgspec.structs.replace(both, pace=Pacing.POISSON))]
    return each


def _is_coupled(times: Any, is_read: Any) -> bool:
    """Return whether one process issues both directions, each about by chance, but one behind the other.

    Two processes by chance are one by chance together; a program that waits for whichever is due comes in pairs.
    """
    apart = [exponential_ks(np.diff(times[which])) for which in (is_read, ~is_read) if which.sum() > _MIN_OPS]
    return len(apart) == 2 and max(apart) <= _COUPLED_KS  # noqa: PLR2004 - directions


def _has_same_hot_places(address: Any, length: Any, is_read: Any) -> bool:
    """Return whether reads and writes are drawn from one skewed law: together they follow one, and at the same places.

    Of how often each place is read and written, the cosine: 1 if in proportion, near 0 if what is hot differs.
    """
    if fit_places(address, length).law not in (Law.ZIPF, Law.PARETO):
        return False
    place = np.unique(address, return_inverse=True)[1]
    read, written = (
        np.bincount(place[which], minlength=place.max() + 1).astype(float) for which in (is_read, ~is_read)
    )
    return float(read @ written) >= _SAME_PLACES * float(np.linalg.norm(read) * np.linalg.norm(written))


def nothing() -> DirectionProfile:
    """Return the profile of a direction without operations."""
    return DirectionProfile(ops=0, object_bytes=0, io_bytes=0, sizes=[], zones=[])
