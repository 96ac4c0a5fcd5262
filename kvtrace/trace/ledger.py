"""Keep the books of a trace: replay its rows against what must be live, and find the first that cannot be.

Rows come from a reader, which has checked each by itself (core/parquet.py): here they are checked against each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import UNSET

from kvtrace.core.compiled import njit
from kvtrace.core.parquet import DENSE_SLACK
from kvtrace.core.schema import MOST, TRACE, Op, enum_code
from kvtrace.core.units import INT64_MAX
from kvtrace.sim.chains import Numbers

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from kvtrace.core.metadata import TierFacts

_READ, _WRITE = enum_code(TRACE, "op", Op.READ), enum_code(TRACE, "op", Op.WRITE)
NO_STAGE = -(2**31)

(
    OK, TIME_BACKWARDS, OVERFLOW, REQUEST_NOT_DENSE, READ_ABSENT, READ_PAST_END, WRITE_GAP, OVER_CAPACITY,
    DELETE_ABSENT, DELETE_SIZE, STAGE_MISSING, STAGE_ALONE, STAGE_FIRST, STAGE_BACK, STAGE_GAP,
) = range(15)  # fmt: skip

FAULTS = {
    TIME_BACKWARDS: ("ts_ns", "time goes backwards to {ts_ns} ns, from {before} ns"),
    OVERFLOW: ("length_bytes", "tier {tier_name} now holds {before} bytes, more than can be reckoned with"),
    REQUEST_NOT_DENSE: ("request_id", "request {request_id} is no dense number from 0"),
    READ_ABSENT: ("object_id", "reads object {object_id}, which is not live in tier {tier_name}"),
    READ_PAST_END: ("length_bytes", "reads object {object_id} to byte {end}; {tier_name} holds {before} bytes of it"),
    WRITE_GAP: ("offset_bytes", "writes object {object_id} from byte {offset_bytes}; {tier_name} holds {before}"),
    OVER_CAPACITY: ("length_bytes", "tier {tier_name} now holds {before} bytes, over its capacity of {capacity}"),
    DELETE_ABSENT: ("object_id", "deletes object {object_id}, which is not live in tier {tier_name}"),
    DELETE_SIZE: ("length_bytes", "frees {length_bytes} bytes of object {object_id}; tier {tier_name} holds {before}"),
    STAGE_MISSING: ("stage", "request {request_id} has no stage here"),
    STAGE_ALONE: ("stage", "stage {stage} without a request"),
    STAGE_FIRST: ("stage", "request {request_id} starts with stage {stage}, not 0"),
    STAGE_BACK: ("stage", "request {request_id} goes back to stage {stage}, from {before}"),
    STAGE_GAP: ("stage", "request {request_id} goes to stage {stage} from {before}: a stage is missing"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fault:
    """The first row of a trace that cannot be, and why."""

    row: int
    column: str
    message: str


@dataclass(slots=True)
class Ledger:
    """Live bytes by tier and object, and the stage each request has reached; feed it batches in order.

    A lenient ledger (`is_strict` false) takes traces without deletes or stages, to count what is live.
    """

    tiers: list[TierFacts]
    total_rows: int
    is_strict: bool = True
    rows: int = 0
    live_bytes: NDArray[np.int64] = field(init=False)
    """Of each tier, all its instances together; so are the peaks."""
    peak_bytes: NDArray[np.int64] = field(init=False)
    objects: int = 0
    requests: int = 0
    extents: NDArray[np.int64] = field(init=False)
    """The bytes that each object had in any tier, at its largest."""
    _sizes: NDArray[np.int64] = field(init=False)
    _instances: NDArray[np.int64] = field(init=False)
    """Live bytes of each instance of a tier; of one node alone, of each tier."""
    _places: _Places | None = None
    """In a trace of several nodes: which of them has which tiers of its own."""
    _stages: NDArray[np.int32] = field(init=False)
    _state: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        """Start with nothing live."""
        n = len(self.tiers)
        self.live_bytes, self.peak_bytes = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
        if any(tier.instance_nodes is not UNSET for tier in self.tiers):
            self._places = _Places(self.tiers)
        self._sizes = np.zeros((n if self._places is None else 1, 1024), dtype=np.int64)
        self._instances = np.zeros(n, dtype=np.int64)
        self.extents = np.zeros(1024, dtype=np.int64)
        self._stages = np.full(1024, -1, dtype=np.int32)
        # last time, last row, and the "before" value of a fault
        self._state = np.zeros(3, dtype=np.int64)

    def apply(self, batch: pa.RecordBatch) -> Fault | None:
        """Enter the rows of `batch`; return the first fault, or None."""
        columns = _columns(batch)
        top_object = int(columns["object_id"].max(initial=-1))
        top_request = int(columns["request_id"].max(initial=-1))
        self.objects = max(self.objects, top_object + 1)
        self.requests = max(self.requests, top_request + 1)
        line, cell, instance = columns["tier"], columns["object_id"], columns["tier"]
        if self._places is not None:
            instance, cell = self._places.of(batch, columns)
            line = np.zeros(len(cell), np.int64)
            self._instances = _grown(self._instances, self._places.instances, 0)
        self._sizes = _grown(self._sizes, int(cell.max(initial=-1)) + 1, 0)
        self.extents = _grown(self.extents, self.objects, 0)
        self._stages = _grown(self._stages, min(self.requests, self.total_rows + DENSE_SLACK), -1)
        capacity = np.array(
            [INT64_MAX if t.capacity_bytes is None else t.capacity_bytes for t in self.tiers], dtype=np.int64
        )
        code, at = _enter(
            *(columns[name] for name in _NAMES), line, cell, instance, capacity, self._sizes, self.extents,
            self._stages, self._instances, self.live_bytes, self.peak_bytes, self._state, self.is_strict,
        )  # fmt: skip
        fault = None if code == OK else self._fault(code, at, columns)
        self.rows += batch.num_rows
        return fault

    def _fault(self, code: int, at: int, columns: dict[str, Any]) -> Fault:
        row = {name: int(columns[name][at]) for name in _NAMES}
        tier = self.tiers[row["tier"]]
        column, text = FAULTS[code]
        message = text.format(
            **row, before=int(self._state[2]), end=row["offset_bytes"] + row["length_bytes"],
            tier_name=tier.name, capacity=tier.capacity_bytes,
        )  # fmt: skip
        return Fault(self.rows + at, column, message)


class _Places:
    """Numbers the instances of tiers in a trace of several nodes, and what each object is in each of them."""

    def __init__(self, tiers: list[TierFacts]) -> None:
        unset = 2**31
        self._shared = np.array([unset if t.instance_nodes is UNSET else t.instance_nodes for t in tiers], np.int64)
        self._instances, self._cells = Numbers(0), Numbers(0)

    @property
    def instances(self) -> int:
        """How many there are so far."""
        return self._instances.count

    def of(self, batch: pa.RecordBatch, columns: dict[str, Any]) -> tuple[Any, Any]:
        """Return the instance that each row of `batch` is of, and the number of its object there."""
        tier = columns["tier"].astype(np.int64)
        node = np.zeros(len(tier), np.int64)
        if "node" in batch.schema.names:
            node = batch.column("node").to_numpy().astype(np.int64)
        instance = self._instances.of((node // self._shared[tier]) * (len(self._shared) + 1) + tier)
        return instance, self._cells.of((instance.astype(np.int64) << _OBJECT_BITS) + columns["object_id"])


_OBJECT_BITS = 38
_NAMES = ("ts_ns", "op", "tier", "object_id", "offset_bytes", "length_bytes", "request_id", "stage")


def _columns(batch: pa.RecordBatch) -> dict[str, Any]:
    columns = {}
    for name in _NAMES:
        array = batch.column(name)
        if name == "op":
            array = array.indices
        if array.null_count:
            array = array.fill_null(NO_STAGE if name == "stage" else -1)
        columns[name] = array.to_numpy()
    return columns


def _grown(array: Any, wanted: int, fill: int) -> Any:
    have = array.shape[-1]
    if wanted <= have:
        return array
    room = np.full((*array.shape[:-1], max(wanted, 2 * have) - have), fill, dtype=array.dtype)
    return np.concatenate([array, room], axis=-1)


@njit
def _enter(
    ts_ns: Any, op: Any, tier: Any, object_id: Any, offset: Any, length: Any, request: Any, stage: Any,
    line: Any, cell: Any, instance: Any, capacity: Any, sizes: Any, extents: Any, stages: Any, instances: Any,
    live: Any, peak: Any, state: Any, is_strict: bool,
) -> tuple[int, int]:  # fmt: skip
    for i in range(len(ts_ns)):
        t, o = tier[i], object_id[i]
        at, place = line[i], cell[i]
        if request[i] < -1 or request[i] >= len(stages):
            return REQUEST_NOT_DENSE, i
        held = sizes[at, place]
        if is_strict:
            code = _check(ts_ns[i], op[i], held, offset[i], length[i], request[i], stage[i], stages, state)
            if code != OK:
                return code, i
        state[0] = ts_ns[i]
        if op[i] == _WRITE:
            grown = max(held, offset[i] + length[i]) - held
            sizes[at, place] = held + grown
            extents[o] = max(extents[o], held + grown)
            live[t] += grown
            instances[instance[i]] += grown
            if live[t] > MOST:
                state[2] = live[t]
                return OVERFLOW, i
            peak[t] = max(peak[t], live[t])
            if is_strict and instances[instance[i]] > capacity[t]:
                state[2] = instances[instance[i]]
                return OVER_CAPACITY, i
        elif op[i] != _READ:
            sizes[at, place] = 0
            live[t] -= held
            instances[instance[i]] -= held
    return OK, 0


@njit
def _check(
    ts_ns: int,
    op: int,
    held: int,
    offset: int,
    length: int,
    request: int,
    stage: int,
    stages: Any,
    state: Any,
) -> int:
    if ts_ns < state[0]:
        state[2] = state[0]
        return TIME_BACKWARDS
    state[2] = held
    if op == _READ:
        if held == 0:
            return READ_ABSENT
        if offset + length > held:
            return READ_PAST_END
    elif op == _WRITE:
        if offset > held:
            return WRITE_GAP
    elif held == 0:
        return DELETE_ABSENT
    elif length != held:
        return DELETE_SIZE
    return _check_stage(request, stage, stages, state)


@njit
def _check_stage(request: int, stage: int, stages: Any, state: Any) -> int:
    if request < 0:
        return OK if stage == NO_STAGE else STAGE_ALONE
    if stage == NO_STAGE:
        return STAGE_MISSING
    reached = stages[request]
    state[2] = reached
    if reached < 0 and stage != 0:
        return STAGE_FIRST
    if stage < reached:
        return STAGE_BACK
    if stage > reached + 1:
        return STAGE_GAP
    stages[request] = stage
    return OK
