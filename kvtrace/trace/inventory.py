"""Count the contents of a trace in one pass, and validate its rows and its objects table.

All figures are counted from the rows, except the hit rates, which the simulation recorded.
`monthly_costs` computes the bill of an object store for the requests of a trace and its objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from kvtrace.core import pa
from kvtrace.core.arrays import Array, Columns
from kvtrace.core.document.document import (
    Cell,
    Chapter,
    Document,
    ReportColumn,
    Sheet,
    Unit,
    table_of,
)
from kvtrace.core.document.fleet_chapters import event_lines, event_tables
from kvtrace.core.errors import TraceError, refuse
from kvtrace.core.json_types import JsonObject
from kvtrace.core.metadata import Metadata, TierFacts
from kvtrace.core.native.library import I1, I4, I8, StructAt, function
from kvtrace.core.native.structs import Structure
from kvtrace.core.row_check import DENSE_SLACK
from kvtrace.core.schema import OBJECTS, TRACE, Op, Phase, enum_code, numbers
from kvtrace.core.simulation_stats import TierStats
from kvtrace.core.tables import DatasetReader, Reader, objects_path, open_table
from kvtrace.core.units import (
    INT64_MAX,
    NS_PER_S,
    counted,
    format_bytes,
    format_count,
    format_duration,
)
from kvtrace.native.numbering import Numbers, grown
from kvtrace.native.records import WORLD
from kvtrace.sim.presets.tier import MONTH_S, TierSetting

_RETRIEVE, _DOCUMENT = (
    enum_code(TRACE, "phase", Phase.RETRIEVE),
    enum_code(OBJECTS, "kind", "document"),
)


def take(reader: Reader, progress: Callable[[float], None]) -> JsonObject:
    """Count a trace in one pass: rows, span, objects, operations, bytes and peak live bytes.

    The hit rates are those of the simulation.
    """
    meta = reader.meta
    ledger = Ledger(meta.tiers, meta.rows or 0, reader.path, is_strict=False)
    ops, phases = TRACE.column("op").values, TRACE.column("phase").values
    shape = (max(1, len(meta.tiers)), len(ops), len(phases))
    counts, sizes = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    ends_ns, simulated = list[int](), (meta.stats or {}).get("tiers") or []
    # A lenient ledger reads no stages, and nothing counts ranks.
    names = [name for name in (*TRACE.names, *reader.extras) if name not in ("stage", "rank")]
    for batch in reader.large_batches(names):
        ledger.apply(batch)
        if batch.num_rows:
            times = batch.column("ts_ns").to_numpy()
            ends_ns += [int(times.min()), int(times.max())]
            _count(batch, counts, sizes)
        progress(float(ledger.rows))
    cells = [
        {
            "tier": meta.tiers[t].name,
            "op": ops[o],
            "phase": phases[p],
            "operations": int(counts[t, o, p]),
            "bytes": int(sizes[t, o, p]),
        }
        for t, o, p in np.argwhere(counts).tolist()
    ]
    return {
        "rows": ledger.rows,
        "span_ns": max(ends_ns) - min(ends_ns) if ends_ns else None,
        "objects": ledger.objects,
        "requests": ledger.requests or None,
        "operations": cells,
        "tiers": [
            {
                "name": tier.name,
                "capacity_bytes": tier.capacity_bytes,
                **({} if tier.instance_nodes is UNSET else {"instance_nodes": tier.instance_nodes}),
                "peak_live_bytes": int(ledger.peak_bytes[t]),
                "live_bytes_at_end": int(ledger.live_bytes[t]),
                "is_upper_bound": not counts[:, ops.index("delete")].any(),
                "hit_ratio": simulated[t].get("hit_ratio") if t < len(simulated) else None,
            }
            for t, tier in enumerate(meta.tiers)
        ],
    }


def _count(batch: pa.RecordBatch, counts: Array, sizes: Array) -> None:
    """Add the operations and bytes of `batch` to those of each tier, operation and phase."""
    tier, op, phase = (
        np.ascontiguousarray(numbers(batch.column(name), I1)) for name in ("tier", "op", "phase")
    )
    length_bytes = np.ascontiguousarray(numbers(batch.column("length_bytes")))
    _count_rows(batch.num_rows, tier, op, phase, length_bytes, *counts.shape[1:], counts, sizes)


def document(name: str, meta: Metadata, inventory: JsonObject) -> Document:
    """Return the inventory `found` of the trace `name` as a document."""
    named_requests, simulated_requests = (
        inventory["requests"],
        (meta.stats or {}).get("requests") or 0,
    )
    requests_text = "- requests" if named_requests is None else counted(named_requests, "request")
    if simulated_requests > (
        named_requests or 0
    ):  # A prompt that is shorter than a chunk does no I/O.
        requests_text = f"I/O of {format_count(named_requests or 0)} of {counted(simulated_requests, 'request')}"
    headline = (
        f"{counted(inventory['rows'], 'row')} over {format_duration(inventory['span_ns'])},"
        f" {counted(inventory['objects'], 'object')}, {requests_text}\nmade by {meta.program} {meta.version},"
        f" preset {meta.preset or '-'}, model {meta.model_name or '-'}, seed"
        f" {'-' if meta.seed is None else meta.seed}, source"
        f" {(meta.source or {}).get('kind', '-')}\n{'simulated' if meta.is_simulated else 'not simulated by kvtrace'};"
        f" configuration {meta.config_sha256[:12]}"
    )
    operations = [
        ReportColumn("tier"),
        ReportColumn("op"),
        ReportColumn("phase"),
        ReportColumn("operations", unit=Unit.COUNT),
        ReportColumn("bytes", unit=Unit.BYTES),
    ]
    tiers = [
        ReportColumn("name", "tier"),
        ReportColumn("capacity_bytes", "capacity", Unit.BYTES),
        ReportColumn("peak_live_bytes", "peak live", Unit.BYTES),
        ReportColumn("live_bytes_at_end", "live at end", Unit.BYTES),
        ReportColumn("hit_ratio", "hit rate", Unit.SHARE),
    ]
    rows = [
        {
            **tier,
            "capacity_bytes": _capacity(tier),
            # In a trace without deletes, all written bytes count as live: an upper bound.
            "peak_live_bytes": (
                Cell(f"≤ {format_bytes(tier['peak_live_bytes'])}", Unit.TEXT)
                if tier["is_upper_bound"]
                else tier["peak_live_bytes"]
            ),
        }
        for tier in inventory["tiers"]
    ]
    is_bound = any(t["is_upper_bound"] and t["peak_live_bytes"] for t in inventory["tiers"])
    bound = "≤: nothing is deleted from this tier in the trace, so its live bytes only grow"
    tables = [
        table_of("operations", Sheet.SUMMARY, operations, inventory["operations"], keys=3),
        table_of("tiers (hit rate: counted by the simulation)", Sheet.SUMMARY, tiers, rows),
    ]
    lines = [bound] if is_bound else []
    if meta.events is not None:
        tables += event_tables(meta.events)
        lines += event_lines(meta.events)
    return Document(name, headline, [Chapter("", tables, lines)], meta.notes)


def _capacity(tier: JsonObject) -> Cell | str:
    """Return the capacity of a tier; in a fleet, that of each of its instances."""
    capacity, nodes = tier["capacity_bytes"], tier.get("instance_nodes")
    if capacity is None:
        return Cell("unbounded", Unit.TEXT)
    if nodes is None:
        return capacity
    return Cell(
        f"{format_bytes(capacity)} {'a node' if nodes == 1 else f'for {nodes} nodes'}", Unit.TEXT
    )


def check(reader: Reader, progress: Callable[[float], None]) -> tuple[Ledger, bool]:
    """Check the rows of a trace against the live objects, and check its objects table.

    Returns the final ledger and whether the trace has an objects table. Raises TraceError at the
    first invalid row.
    """
    meta = reader.meta
    if isinstance(reader, DatasetReader):
        reader.check_files()
    ledger = Ledger(meta.tiers, meta.rows or 0, reader.path)
    documents: set[int] = set()
    for batch in reader.large_batches():
        ledger.apply(batch)
        is_retrieved = batch.column("phase").indices.to_numpy() == _RETRIEVE
        documents.update(batch.column("object_id").to_numpy()[is_retrieved].tolist())
        progress(float(ledger.rows))
    for live, tier in zip(
        ledger.live_bytes.tolist(), (meta.stats or {}).get("tiers") or [], strict=False
    ):
        if tier.get("live_bytes") not in (None, live):
            raise TraceError(
                f"tier {tier['name']} ends with {live} bytes live, but the simulation counted"
                f" {tier['live_bytes']}: rows are missing",
                path=reader.path,
            )
    beside = objects_path(reader.path)
    if beside.exists():
        shares = {tier.stored_share for tier in meta.tiers if isinstance(tier.stored_share, float)}
        check_objects(open_table(beside, OBJECTS), ledger.extents, documents, shares)
    return ledger, beside.exists()


def check_objects(
    reader: Reader,
    extents: NDArray[np.int64],
    documents: set[int],
    stored_shares: Iterable[float] = (),
) -> None:
    """Raise TraceError at the first row of the objects table that contradicts the trace.

    `extents[o]` is the size of object o in the trace in bytes, above 0 if it is ever written;
    `documents` are the objects that the trace retrieves. The table may list objects that the trace
    never writes: no tier admitted them. It has the whole size of one of which tiers only ever
    stored one of `stored_shares`.
    """
    document_ids, kind_names = (
        np.array(sorted(documents), dtype=np.int64),
        np.array(OBJECTS.column("kind").values),
    )
    row, before, is_listed = 0, -1, np.zeros(len(extents), dtype=bool)
    for batch in reader.batches():
        ids, kinds = (numbers(batch.column(name)) for name in ("object_id", "kind"))
        sizes = batch.column("size_bytes")
        message = "object {} is out of order, or twice in the table"
        refuse(
            np.diff(ids, prepend=before) <= 0,
            message,
            ids,
            path=reader.path,
            column="object_id",
            first_row=row,
        )
        is_known = ids < len(extents)
        is_listed[ids[is_known]] = True
        written = np.zeros(len(ids), dtype=np.int64)
        written[is_known] = extents[ids[is_known]]
        is_wrong = (
            sizes.is_valid().to_numpy(zero_copy_only=False)
            & (written > 0)
            & (numbers(sizes) != written)
        )
        for share in stored_shares:
            # A part of a byte is not stored, but one byte always is.
            stored = np.maximum(1, np.floor(numbers(sizes) * share))
            is_wrong &= np.abs(stored - written) > 1
        message = "object {} is {} bytes here, but {} in the trace"
        refuse(
            is_wrong,
            message,
            ids,
            sizes,
            written,
            path=reader.path,
            column="size_bytes",
            first_row=row,
        )
        is_wrong = np.isin(ids, document_ids) & (kinds != _DOCUMENT)
        message = "object {} is a {} here, but the trace retrieves it as a document"
        refuse(
            is_wrong,
            message,
            ids,
            kind_names[kinds],
            path=reader.path,
            column="kind",
            first_row=row,
        )
        row, before = row + len(ids), int(ids[-1]) if len(ids) else before
    missing = np.flatnonzero((extents > 0) & ~is_listed)
    if len(missing):
        raise TraceError(f"object {missing[0]} of the trace is not in this table", path=reader.path)


def monthly_costs(
    trace: Path, tiers: Sequence[TierSetting], counters: Sequence[TierStats], span_ns: int | None
) -> list[JsonObject]:
    """Return the monthly cost of each tier with a price, at the rate of `trace`.

    A row is a request, and the bytes live at the end of the trace are stored all month. The list is
    empty if no tier has a price, or the trace has no span.
    """
    priced = [t for t, tier in enumerate(tiers) if tier.has_price]
    if not priced or not span_ns:
        return []
    reader = open_table(trace, TRACE)
    # The trace may list more than the tiers: the link of a fleet whose nodes prefill or decode.
    counts = np.zeros((len(reader.meta.tiers), len(Op), len(Phase)), np.int64)
    for batch in reader.large_batches(("tier", "op", "phase", "length_bytes")):
        _count(batch, counts, np.zeros_like(counts))
    counts[:, :, enum_code(TRACE, "phase", Phase.POPULATE)] = 0
    reads, writes = (
        counts[:, enum_code(TRACE, "op", op)].sum(axis=1).tolist() for op in (Op.READ, Op.WRITE)
    )
    months = MONTH_S * NS_PER_S / span_ns
    return [
        tiers[t].monthly_cost(reads[t], writes[t], months, counters[t].live_bytes) for t in priced
    ]


FAULTS: Final = {
    "TIME_BACKWARDS": ("ts_ns", "time goes backwards to {ts_ns} ns, from {before} ns"),
    "OVERFLOW": ("length_bytes", "tier {tier_name} now holds {before} bytes, more than 2^62"),
    "REQUEST_NOT_DENSE": ("request_id", "request {request_id} is not a dense number from 0"),
    "READ_ABSENT": ("object_id", "reads object {object_id}, which is not live in tier {tier_name}"),
    "READ_PAST_END": ("length_bytes", "reads object {object_id} to byte {end}; {tier_name} holds {before} bytes of it"),
    "WRITE_GAP": ("offset_bytes", "writes object {object_id} from byte {offset_bytes}; {tier_name} holds {before}"),
    "OVER_CAPACITY": ("length_bytes", "tier {tier_name} now holds {before} bytes, over its capacity of {capacity}"),
    "DELETE_ABSENT": ("object_id", "deletes object {object_id}, which is not live in tier {tier_name}"),
    "DELETE_SIZE": (
        "length_bytes", "frees {length_bytes} bytes of object {object_id}; tier {tier_name} holds {before}",
    ),
    "STAGE_MISSING": ("stage", "request {request_id} has no stage here"),
    "STAGE_ALONE": ("stage", "stage {stage} without a request"),
    "STAGE_FIRST": ("stage", "request {request_id} starts with stage {stage}, not 0"),
    "STAGE_BACK": ("stage", "request {request_id} goes back to stage {stage}, from {before}"),
    "STAGE_GAP": ("stage", "request {request_id} goes to stage {stage} from {before}: a stage is missing"),
}  # fmt: skip


class Ledger:
    """Live bytes by tier and object, and the last stage of each request.

    Batches are applied in order. A lenient ledger (`is_strict` false) counts live bytes also of
    traces without deletes or stages.
    """

    def __init__(
        self,
        tiers: list[TierFacts],
        total_rows: int,
        path: Path | None = None,
        *,
        is_strict: bool = True,
    ) -> None:
        """Start with empty `tiers`; `total_rows` and `path` are those of the trace."""
        self.tiers, self.path, self._total_rows = tiers, path, total_rows
        self.rows = 0
        self._validation = Structure(
            WORLD, "Validation", is_strict=is_strict, instances=np.zeros(len(tiers), np.int64)
        )
        self._validation.tiers = np.zeros(len(tiers), WORLD.dtype("ValidatedTier"))
        self._validation.tiers["capacity_bytes"] = [
            INT64_MAX if tier.capacity_bytes is None else tier.capacity_bytes for tier in tiers
        ]
        # For a trace of several nodes: the number of consecutive nodes that share an instance of a tier.
        nodes = [
            _ALL_NODES if tier.instance_nodes is UNSET else tier.instance_nodes for tier in tiers
        ]
        self._shared = np.array(nodes, np.int64) if set(nodes) - {_ALL_NODES} else None
        self._validation.has_nodes = self._shared is not None
        self._instances, self._cells = Numbers(0), Numbers(0)
        """Dense numbers of the instances of tiers, and of the objects in each instance."""

    @property
    def extents(self) -> Array:
        """int64: the largest size of each object in any tier, bytes; -1 if no row names it."""
        return self._validation.extents

    @property
    def objects(self) -> int:
        """The number of objects that the rows name; ids may have gaps."""
        return int(np.count_nonzero(self._validation.extents >= 0))

    @property
    def requests(self) -> int:
        """The number of requests that the rows name."""
        return int(np.count_nonzero(self._validation.stages >= 0))

    @property
    def live_bytes(self) -> Array:
        """int64: the live bytes of each tier, all its instances together."""
        return self._validation.tiers["live_bytes"]

    @property
    def peak_bytes(self) -> Array:
        """int64: the peak of the live bytes of each tier, all its instances together."""
        return self._validation.tiers["peak_bytes"]

    def apply(self, batch: pa.RecordBatch) -> None:
        """Apply the rows of `batch`; TraceError at the first invalid row.

        A lenient ledger needs no column `stage`.
        """
        columns = {
            name: np.ascontiguousarray(numbers(batch.column(name), kind))
            for name, kind in _COLUMNS.items()
            if name in batch.schema.names
        }
        if "stage" not in columns:
            columns["stage"] = np.empty(0, I4)
        books = self._validation
        objects, requests = (
            int(columns[name].max(initial=-1)) + 1 for name in ("object_id", "request_id")
        )
        cells = objects * len(self.tiers)
        cell = instance = np.empty(0, np.int64)
        if self._shared is not None:
            tier = columns["tier"].astype(np.int64)
            node = (
                batch.column("node").to_numpy().astype(np.int64)
                if "node" in batch.schema.names
                else 0
            )
            place = node // self._shared[tier] * (len(self.tiers) + 1) + tier
            instance = self._instances.of(place).astype(np.int64)
            cell = self._cells.of((instance << _OBJECT_BITS) + columns["object_id"]).astype(
                np.int64
            )
            books.instances = grown(books.instances, self._instances.count, 0)
            cells = int(cell.max(initial=-1)) + 1
        books.sizes = grown(books.sizes, cells, 0)
        books.extents = grown(books.extents, objects, -1)
        books.stages = grown(books.stages, min(requests, self._total_rows + DENSE_SLACK), -1)
        if code := _enter(books, batch.num_rows, *columns.values(), cell, instance):
            raise self._fault(code, columns)
        self.rows += batch.num_rows

    def _fault(self, code: int, columns: Columns) -> TraceError:
        fault_row = self._validation.fault_row
        row = {name: int(column[fault_row]) for name, column in columns.items() if len(column)}
        tier = self.tiers[row["tier"]]
        column, text = FAULTS[_CODES[code]]
        message = text.format(
            **row, before=self._validation.before, end=row["offset_bytes"] + row["length_bytes"],
            tier_name=tier.name, capacity=tier.capacity_bytes,
        )  # fmt: skip
        return TraceError(message, path=self.path, row=self.rows + fault_row, column=column)


_OBJECT_BITS = 38
_ALL_NODES = 2**31
_COLUMNS = {
    "ts_ns": I8, "op": I1, "tier": I1, "object_id": I8, "offset_bytes": I8, "length_bytes": I8, "request_id": I8,
    "stage": I4,
}  # fmt: skip
_CODES = {code: name for name, code in WORLD.constants.items() if name in FAULTS}
_count_rows = function("validate_count", int, I1, I1, I1, I8, int, int, I8, I8)
_enter = function("validate_rows", StructAt, int, *_COLUMNS.values(), I8, I8, returns=int)
