"""Streams: which writes a drive is told to keep together, and so apart from the others (FDP handles, write hints).

Nothing that is simulated depends on them: they are told from the rows, once these are made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvtrace.core.errors import ConfigError
from kvtrace.core.schema import REQUESTS, TRACE, Op, Phase, enum_code
from kvtrace.native.records import NONE
from kvtrace.sim.presets.tier import Streams

if TYPE_CHECKING:
    from kvtrace.sim.simulation import Flush, Simulation

_AGES: Final = (("under 1 s", 1), ("under 10 s", 10), ("under 1 min", 60), ("under 10 min", 600), ("under 1 h", 3600))
_NEVER = 2**62
_PHASES: Final = {
    "computed": (Phase.PREFILL, Phase.STORE),
    "generated": (Phase.DECODE,),
    "promoted": (Phase.PROMOTE,),
    "demoted": (Phase.DEMOTE,),
    "there before": (Phase.POPULATE,),
    "collected": (Phase.COLLECT,),
}
_KINDS: Final = ("chunk or turn", "prompt", "document", "bucket")
CLASSES: Final[dict[Streams, tuple[str, ...]]] = {
    Streams.USER_KIND: REQUESTS.column("kind").values,
    Streams.QOS: REQUESTS.column("qos").values,
    Streams.SESSION: (),
    Streams.PHASE: tuple(_PHASES),
    Streams.AGE: (*(name for name, _ in _AGES), "older"),
    Streams.OBJECT_KIND: _KINDS,
}
"""What streams tell apart, in the order of their numbers; empty where numbers are assigned in turn."""
_COLUMNS: Final = {Streams.USER_KIND: "kind", Streams.QOS: "qos", Streams.SESSION: "session_id"}
"""Those that go by whom a write serves, and what the requests say of that."""


class StreamLabels:
    """Numbers the streams of a simulation's writes, one flush after the other."""

    def __init__(self, simulation: Simulation) -> None:
        """Know the objects that are there from the start."""
        self._simulation = simulation
        settings = simulation.preset.tiers
        _check(simulation)
        self._streams = [tier.streams for tier in settings]
        self._counts = np.array([tier.stream_count for tier in settings])
        self._asked = {of: _Known() for of in _COLUMNS if of in self._streams}
        self._owners = {of: _Known() for of in self._asked}
        self._kinds, self._first_ns = _Known(0), _Known(_NEVER)
        self._tally = np.zeros((len(settings), max(tier.stream_count for tier in settings), 2), np.int64)
        for kind, sizes in simulation.library_object_bytes():
            self._kinds.add(np.full(len(sizes) * simulation.parts, _KINDS.index(kind) if kind in _KINDS else 0))

    def label(self, flush: Flush) -> Any:
        """Return the stream of each row of `flush`, int16; NONE where it has none."""
        self._note(flush)
        rows, found = flush.rows, np.full(len(flush.rows["op"]), NONE, np.int16)
        writes = np.flatnonzero(rows["op"] == enum_code(TRACE, "op", Op.WRITE))
        write = _Writes(*(rows[name][writes] for name in ("ts_ns", "tier", "phase", "object_id", "request_id")))
        for of in set(self._streams) - {Streams.NONE}:
            classes = self._classes(of, write)
            for t in (t for t, streams in enumerate(self._streams) if streams is of):
                here = np.flatnonzero((write.tier == t) & (classes != NONE))
                numbers = classes[here] % self._counts[t]
                found[writes[here]] = numbers
                np.add.at(self._tally[t, :, 0], numbers, 1)
                np.add.at(self._tally[t, :, 1], numbers, rows["length_bytes"][writes[here]])
        return found

    def counts(self, t: int) -> dict[str, Any]:
        """Return what was written to tier `t` in each of its streams; nothing if it has none."""
        streams, most = self._streams[t], int(self._counts[t])
        if streams is Streams.NONE:
            return {}
        names = CLASSES[streams]
        found = [
            {
                "stream": n,
                "holds": ", ".join(names[n::most]) or f"{streams}s {n}, {n + most}, ...",
                "writes": int(writes),
                "written_bytes": int(size),
            }
            for n, (writes, size) in enumerate(self._tally[t, :most])
            if writes
        ]
        return {"streams": found}

    def _note(self, flush: Flush) -> None:
        """Learn of the objects and requests that came with `flush`."""
        made = len(flush.object_bytes)
        kinds = np.zeros(made, np.int64) if flush.is_other is None else flush.is_other * _KINDS.index("bucket")
        self._kinds.add(kinds)
        self._first_ns.grow_to(len(self._kinds))
        for of, known in self._asked.items():
            known.add(self._of_requests(of, len(known), flush))
            self._owners[of].grow_to(len(self._kinds))

    def _of_requests(self, of: Streams, known: int, flush: Flush) -> Any:
        """Return the class of each request that is not among the first `known`."""
        requests, column = self._simulation.load.requests, _COLUMNS[of]
        if requests is None:
            return flush.log[column]
        last = int(flush.rows["request_id"].max(initial=NONE))
        arrived = np.arange(known, last + 1)
        if (arrivals := self._simulation.arrivals()) is not None:
            arrived = arrivals[0][known : last + 1]
        return getattr(requests, column)[arrived]

    def _classes(self, of: Streams, write: _Writes) -> Any:
        """Return the class of each write, or NONE."""
        found = np.zeros(len(write.tier), np.int64)
        if of is Streams.PHASE:
            found = _PHASE_CLASS[write.phase]
        elif of is Streams.OBJECT_KIND:
            found = self._kinds[write.object_id]
        elif of is Streams.AGE:
            # Rows are in order of time: of the writes of one object the first is the oldest.
            np.minimum.at(self._first_ns.values, write.object_id, write.ts_ns)
            age_ns = write.ts_ns - self._first_ns[write.object_id]
            found = np.searchsorted([seconds * 10**9 for _, seconds in _AGES], age_ns, side="right")
        elif len(found):
            found = self._of_owner(of, write)
        return found

    def _of_owner(self, of: Streams, write: _Writes) -> Any:
        """Return the class of the request that each write serves, else of the one that wrote the object last."""
        owners, asked = self._owners[of], self._asked[of]
        serves = write.request_id != NONE
        order = np.argsort(write.object_id, kind="stable")
        objects, mine = write.object_id[order], serves[order]
        # Of each write the place of the last one before it, of the same object, that serves a request.
        places = np.maximum.accumulate(np.where(mine, np.arange(len(order)), NONE))
        is_known = places >= np.searchsorted(objects, objects)
        classes = owners[objects]
        classes[is_known] = asked[write.request_id[order[places[is_known]]]]
        owners.values[objects] = classes
        found = np.empty(len(order), np.int64)
        found[order] = classes
        return found


@dataclass(frozen=True, slots=True)
class _Writes:
    """Columns of the rows that write."""

    ts_ns: Any
    tier: Any
    phase: Any
    object_id: Any
    request_id: Any


@dataclass(slots=True)
class _Known:
    """A growing column: what is known of each object, or of each request."""

    usual: int = NONE
    memory: Any = field(default_factory=lambda: np.zeros(0, np.int64))
    count: int = 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: Any) -> Any:
        return self.values[index]

    @property
    def values(self) -> Any:
        """The known values, as a view."""
        return self.memory[: self.count]

    def grow_to(self, count: int) -> None:
        """Grow to `count` values, new ones being `usual`."""
        if count > len(self.memory):
            more = np.full(max(count, 2 * len(self.memory)) - self.count, self.usual, np.int64)
            self.memory = np.concatenate([self.values, more])
        self.count = max(count, self.count)

    def add(self, values: Any) -> None:
        """Append `values`."""
        first = self.count
        self.grow_to(first + len(values))
        self.memory[first : self.count] = values


def _check(simulation: Simulation) -> None:
    """Refuse streams of what the requests do not say."""
    requests = simulation.load.requests
    for tier in simulation.preset.tiers:
        column = _COLUMNS.get(tier.streams)
        if requests is not None and column is not None and getattr(requests, column) is None:
            raise ConfigError(
                f"tiers.{tier.name}.streams={tier.streams}: the requests of {requests.origin.get('file', 'the file')} "
                f"have no {column}; streams may be {', '.join(s for s in Streams if s not in _COLUMNS)} here"
            )


_PHASE_CLASS: Final = np.array(
    [next((n for n, of in enumerate(_PHASES.values()) if phase in of), NONE) for phase in TRACE.column("phase").values]
)
