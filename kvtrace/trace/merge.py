"""Merge traces into one, in order of time.

Tiers are matched by name. Objects, requests and sessions of each trace are renumbered, so that no
operation of one trace waits for one of another. Rows are merged batch by batch, in bounded memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from msgspec import UNSET, UnsetType

from kvtrace.core import pa, pc
from kvtrace.core.arrays import Array
from kvtrace.core.errors import ConfigError, refuse
from kvtrace.core.json_types import JsonObject
from kvtrace.core.metadata import Metadata, TierFacts, describe
from kvtrace.core.parameters import named
from kvtrace.core.schema import MOST, OBJECTS, REQUESTS, TRACE, Table, arrow_schema
from kvtrace.core.tables import Reader, create, objects_path, open_table, staged, staged_path
from kvtrace.core.units import format_duration

_BATCH_ROWS = 1 << 17
_TIMES = {"trace": "ts_ns", "requests": "arrival_ns"}
_MOST_OBJECTS = 2**31 - 2
"""A replay numbers objects in 32 bits."""


@dataclass(frozen=True, slots=True)
class Input:
    """A trace that is to be merged with others."""

    name: str
    """The prefix of its objects' keys in the merged trace."""
    path: Path
    shift_ns: int = 0
    requests: Path | None = None
    """Its requests table."""


@dataclass(slots=True)
class _Source:
    """The tables of a trace, and the offsets that renumber its rows."""

    input: Input
    trace: Reader
    objects: Reader | None
    requests: Reader | None
    tiers: Array = field(default_factory=lambda: np.zeros(0, np.int8))
    """int8: the merged tier of each tier of the trace."""
    first: dict[str, int] = field(default_factory=dict)
    """The offset that is added to the numbers of a column, by column."""
    count: dict[str, int] = field(default_factory=dict)
    """The count of numbers that the trace uses, by column."""

    def renumber(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of `batch` with the numbers and times of the merged table."""
        arrays = []
        for name, array in zip(batch.schema.names, batch.columns, strict=True):
            added = self.first.get(name, 0)
            if name == "tier":
                column: pa.Array = pa.array(self.tiers[array.to_numpy()])
            elif name == "key":
                column = pc.binary_join_element_wise(self.input.name, array, "/")
            elif name == "block_ids" and added:
                values = pc.add(array.flatten(), added)
                lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
                ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
                column = pa.ListArray.from_arrays(pa.array(ends), values, mask=array.is_null())
            else:
                column = pc.add(array, pa.scalar(added, array.type)) if added else array
            arrays.append(column)
        return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def merge(
    inputs: Sequence[Input],
    output: Path,
    argv: list[str],
    requests_output: Path | None = None,
    progress: Callable[[float], None] = lambda _rows: None,
) -> Metadata:
    """Merge the traces of `inputs` into `output`, with its objects table, and their requests tables
    into `requests_output` if given.

    Rows of equal time are in the order of `inputs` if they are read together. Raises ConfigError if
    the traces do not fit together.
    """
    sources = []
    for item in inputs:
        trace_reader, table_path = open_table(item.path, TRACE), objects_path(item.path)
        objects_reader = open_table(table_path, OBJECTS) if table_path.is_file() else None
        table = None if item.requests is None else open_table(item.requests, REQUESTS)
        if table is not None and table.meta.config_sha256 != trace_reader.meta.config_sha256:
            raise ConfigError(
                f"{named('requests', f'{item.name}={item.requests}')}: from another simulation"
                f" than {item.path}"
            )
        sources.append(_Source(item, trace_reader, objects_reader, table))
    tiers = _match_tiers(sources)
    _number(sources)
    meta = _metadata(sources, tiers, argv)
    lacking = [s.input.name for s in sources if s.objects is None]
    # `whole_row` refers to rows of another trace, which a merged trace does not have.
    extras = tuple(
        c.name
        for c in TRACE.extras
        if c.name != "whole_row" and any(c.name in s.trace.extras for s in sources)
    )
    with ExitStack() as stack:
        target = stack.enter_context(staged(output))
        trace = stack.enter_context(create(target, TRACE, meta, extras))
        if not lacking:
            objects = stack.enter_context(create(objects_path(target), OBJECTS, meta))
            for source in sources:
                assert source.objects is not None, "no source lacks an objects table"
                for batch in source.objects.batches():
                    objects.write(source.renumber(batch))
        if requests_output is not None:
            with_requests = [(s, s.requests) for s in sources if s.requests is not None]
            requests_target = staged_path(requests_output, output, target)
            requests = stack.enter_context(create(requests_target, REQUESTS, meta))
            for batch in _in_order(with_requests, REQUESTS, ()):
                requests.write(batch)
        for batch in _in_order([(s, s.trace) for s in sources], TRACE, extras):
            trace.write(batch)
            progress(float(trace.rows))
        if lacking:
            trace.update(
                notes=[*trace.meta.notes, f"no objects table: {', '.join(lacking)} has none"]
            )
        trace.finish()
    return trace.meta


def _match_tiers(sources: list[_Source]) -> list[TierFacts]:
    """Return the merged tiers, and store the merged tier of each tier in the sources.

    The order of tiers in every trace holds in the merged order, too.
    """
    before: dict[str, set[str]] = {}
    for source in sources:
        tier_names = [tier.name for tier in source.trace.meta.tiers]
        for index, name in enumerate(tier_names):
            before.setdefault(name, set()).update(tier_names[:index])
    names: list[str] = []
    while len(names) < len(before):
        next_name = next(
            (name for name, values in before.items() if name not in names and values <= set(names)),
            None,
        )
        if next_name is None:
            orders = "; ".join(
                ", ".join(t.name for t in source.trace.meta.tiers) for source in sources
            )
            raise ConfigError(
                f"the traces have their tiers in orders that contradict each other: {orders}"
            )
        names.append(next_name)
    bounds: dict[str, list[int | None]] = {name: [] for name in names}
    nodes: dict[str, set[int | UnsetType]] = {name: set() for name in names}
    for source in sources:
        source.tiers = np.array([names.index(t.name) for t in source.trace.meta.tiers], np.int8)
        for tier in source.trace.meta.tiers:
            bounds[tier.name].append(tier.capacity_bytes)
            # A trace of a single node counts as one of the first node.
            nodes[tier.name] |= set() if source.trace.meta.fleet is None else {tier.instance_nodes}
    if unequal := next((name for name, values in nodes.items() if len(values) > 1), None):
        raise ConfigError(
            f"tier {unequal} is shared by different numbers of nodes; merge traces of equal fleets"
        )
    # Each trace stays within its own capacity, so the merged tier within the sum.
    capacities = {
        name: None if None in values else sum(b for b in values if b is not None)
        for name, values in bounds.items()
    }
    return [TierFacts(name, capacities[name], next(iter(nodes[name]), UNSET)) for name in names]


def _number(sources: list[_Source]) -> None:
    """Choose the offsets of the numbers of each trace, so that no two traces share a number."""
    added = dict.fromkeys(("object_id", "request_id", "session_id", "block_ids"), 0)
    for source in sources:
        count = dict.fromkeys(added, 0)
        for reader in (
            reader
            for reader in (source.trace, source.objects, source.requests)
            if reader is not None
        ):
            for name in set(added).intersection(reader.table.names):
                for batch in reader.batches([name]):
                    values = batch.column(0).flatten() if name == "block_ids" else batch.column(0)
                    if (largest_id := pc.max(values).as_py()) is not None:
                        count[name] = max(count[name], largest_id + 1)
        source.count = count
        source.first = {
            **added,
            "ts_ns": source.input.shift_ns,
            "arrival_ns": source.input.shift_ns,
        }
        for name in added:
            added[name] += count[name]
    if added["object_id"] > _MOST_OBJECTS:
        raise ConfigError(
            f"{added['object_id']:,} objects together are more than a replay can number"
        )


def _in_order(
    readers: list[tuple[_Source, Reader]], table: Table, extras: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all readers in order of time; rows of one reader keep their order."""
    time, columns = _TIMES[table.name], [*table.names, *extras]
    pending = [
        (batches, next(batches, None))
        for batches in (_renumbered(*entry, columns, time) for entry in readers)
    ]
    while heads := [
        (batches, head, head.column(time).to_numpy())
        for batches, head in pending
        if head is not None
    ]:
        # Rows up to this time are complete: no later batch begins before it.
        until = min(int(times[-1]) for *_, times in heads)
        counts = [int(np.searchsorted(times, until, side="right")) for *_, times in heads]
        slices = [head.slice(0, count) for (_, head, _), count in zip(heads, counts, strict=True)]
        pending = [
            (batches, head.slice(count) if count < head.num_rows else next(batches, None))
            for (batches, head, _), count in zip(heads, counts, strict=True)
        ]
        order = np.argsort(
            np.concatenate([rows_until.column(time).to_numpy() for rows_until in slices]),
            kind="stable",
        )
        rows = pa.Table.from_batches(slices, arrow_schema(table, extras))
        yield from rows.take(order).combine_chunks().to_batches()


def _renumbered(
    source: _Source, reader: Reader, columns: list[str], time: str
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table with their new numbers and times.

    Raises TraceError at a row that is earlier than the row before it.
    """
    last_ns = row = 0
    for batch in reader.batches(columns):
        times = batch.column(time).to_numpy()
        late = np.append(last_ns, times[:-1]) > times
        refuse(late, "earlier than the row before it", path=reader.path, column=time, first_row=row)
        if not len(times):
            continue
        last_ns, row = int(times[-1]), row + len(times)
        if last_ns + source.input.shift_ns > MOST:
            raise ConfigError(
                f"{named('shift', source.input.name)}: its times would exceed the maximum of a trace"
            )
        yield source.renumber(batch)


def _metadata(sources: list[_Source], tiers: list[TierFacts], argv: list[str]) -> Metadata:
    """Return the metadata of the merged tables.

    The model, configuration and counters are those of the trace of a KV cache, if there is exactly
    one.
    """
    metas = [source.trace.meta for source in sources]
    caches = [meta for meta in metas if "hierarchy" in meta.config]
    main = caches[0] if len(caches) == 1 else None
    merged = [
        {
            "name": source.input.name,
            "shift_ns": source.input.shift_ns,
            "preset": meta.preset,
            "seed": meta.seed,
            "config_sha256": meta.config_sha256,
            "first_object_id": source.first["object_id"],
            "first_request_id": source.first["request_id"],
            "objects": source.count["object_id"],
            "requests": source.count["request_id"],
        }
        for source, meta in zip(sources, metas, strict=True)
    ]
    # Readers search these notes by their first words, so they get no prefix.
    notes = list(main.notes) if main else []
    other_sources = [source for source in sources if source.trace.meta is not main]
    notes += [
        f"{source.input.name}: {note}"
        for source in other_sources
        for note in source.trace.meta.notes
    ]
    shifted = [s.input for s in sources if s.input.shift_ns]
    notes += [f"{item.name} begins {format_duration(item.shift_ns)} later" for item in shifted]
    # The counters are those of the only KV cache, with its tiers in the merged order, and of the
    # only training run.
    stats: JsonObject = dict(main.stats or {}) if main is not None else {}
    if counted := stats.get("tiers"):
        # The other traces have live objects, too, which its counters lack.
        by_name = {tier.get("name"): {**tier, "live_bytes": None} for tier in counted}
        stats["tiers"] = [by_name.get(tier.name, {"name": tier.name}) for tier in tiers]
    training = [
        meta.stats["checkpoint"] for meta in metas if meta.stats and "checkpoint" in meta.stats
    ]
    if len(training) == 1:
        stats["checkpoint"] = training[0]
    return describe(
        TRACE,
        "kvtrace",
        argv,
        {**(main.config if main else {}), "merged": merged},
        seed=(main or metas[0]).seed,
        preset="+".join(meta.preset or "?" for meta in metas)[:255],
        model=main.model if main else None,
        tiers=tiers,
        source=main.source if main else {"kind": "merged"},
        notes=notes,
        stats=stats or None,
        is_simulated=all(meta.is_simulated for meta in metas),
    )
