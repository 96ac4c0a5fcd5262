"""Keep the books of a trace: replay its rows against what must be live, and find the first that cannot be.

Rows come from a reader, which has checked each by itself (core/parquet.py): here they are checked against each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import UNSET

from kvtrace.core.native.library import I1, I4, I8, function
from kvtrace.core.parquet import DENSE_SLACK
from kvtrace.core.units import INT64_MAX
from kvtrace.sim.chains import Numbers

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from kvtrace.core.metadata import TierFacts

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
    objects: int = 0
    requests: int = 0
    extents: NDArray[np.int64] = field(init=False)
    """The bytes that each object had in any tier, at its largest."""
    _tiers: NDArray[np.void] = field(init=False)
    _sizes: NDArray[np.int64] = field(init=False)
    """Live bytes of an object in a tier, or in an instance of it."""
    _instances: NDArray[np.int64] = field(init=False)
    """Live bytes of each instance of a tier; of one node alone, of each tier."""
    _places: _Places | None = None
    """In a trace of several nodes: which of them has which tiers of its own."""
    _stages: NDArray[np.int32] = field(init=False)
    _state: NDArray[np.void] = field(init=False)

    def __post_init__(self) -> None:
        """Start with nothing live."""
        self._tiers = np.zeros(len(self.tiers), _TIER)
        self._tiers["capacity"] = [INT64_MAX if t.capacity_bytes is None else t.capacity_bytes for t in self.tiers]
        if any(tier.instance_nodes is not UNSET for tier in self.tiers):
            self._places = _Places(self.tiers)
        self._sizes, self.extents = np.zeros(1024, dtype=np.int64), np.zeros(1024, dtype=np.int64)
        self._instances = np.zeros(len(self.tiers), dtype=np.int64)
        self._stages = np.full(1024, -1, dtype=np.int32)
        self._state = np.zeros(1, _STATE)

    @property
    def live_bytes(self) -> NDArray[np.int64]:
        """Of each tier, all its instances together; so are the peaks."""
        return self._tiers["live"]

    @property
    def peak_bytes(self) -> NDArray[np.int64]:
        """The most that was live at once."""
        return self._tiers["peak"]

    def apply(self, batch: pa.RecordBatch) -> Fault | None:
        """Enter the rows of `batch`; return the first fault, or None."""
        columns = _columns(batch)
        top_object = int(columns["object_id"].max(initial=-1))
        top_request = int(columns["request_id"].max(initial=-1))
        self.objects = max(self.objects, top_object + 1)
        self.requests = max(self.requests, top_request + 1)
        if self._places is None:
            instance = columns["tier"].astype(np.int64)
            cell = columns["object_id"] * len(self.tiers) + instance
        else:
            instance, cell = self._places.of(batch, columns)
            self._instances = _grown(self._instances, self._places.instances, 0)
        self._sizes = _grown(self._sizes, int(cell.max(initial=-1)) + 1, 0)
        self.extents = _grown(self.extents, self.objects, 0)
        self._stages = _grown(self._stages, min(self.requests, self.total_rows + DENSE_SLACK), -1)
        code = _enter(
            batch.num_rows, *columns.values(), cell, instance, self._tiers, self._sizes, self._instances, self.extents,
            len(self._stages), self._stages, self._state, self.is_strict,
        )  # fmt: skip
        fault = None if code == OK else self._fault(code, columns)
        self.rows += batch.num_rows
        return fault

    def _fault(self, code: int, columns: dict[str, Any]) -> Fault:
        _, at, before = self._state[0].tolist()
        row = {name: int(column[at]) for name, column in columns.items()}
        tier = self.tiers[row["tier"]]
        column, text = FAULTS[code]
        message = text.format(
            **row, before=before, end=row["offset_bytes"] + row["length_bytes"],
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
        instance = self._instances.of((node // self._shared[tier]) * (len(self._shared) + 1) + tier).astype(np.int64)
        return instance, self._cells.of((instance << _OBJECT_BITS) + columns["object_id"]).astype(np.int64)


_OBJECT_BITS = 38
_COLUMNS = {
    "ts_ns": I8, "op": I1, "tier": I1, "object_id": I8, "offset_bytes": I8, "length_bytes": I8, "request_id": I8,
    "stage": I4,
}  # fmt: skip
_TIER = np.dtype([(name, I8) for name in ("capacity", "live", "peak")])
_STATE = np.dtype([(name, I8) for name in ("last_ns", "fault_row", "before")])
_enter = function(
    "ledger_enter", int, *_COLUMNS.values(), I8, I8, _TIER, I8, I8, I8, int, I4, _STATE, bool, returns=int
)  # fmt: skip


def _columns(batch: pa.RecordBatch) -> dict[str, Any]:
    columns = {}
    for name, dtype in _COLUMNS.items():
        array = batch.column(name)
        if name == "op":
            array = array.indices
        if array.null_count:
            array = array.fill_null(NO_STAGE if name == "stage" else -1)
        columns[name] = np.ascontiguousarray(array.to_numpy(), dtype)
    return columns


def _grown(array: Any, wanted: int, fill: int) -> Any:
    if wanted <= len(array):
        return array
    more = np.full(max(wanted - len(array), len(array)), fill, dtype=array.dtype)
    return np.concatenate([array, more])
