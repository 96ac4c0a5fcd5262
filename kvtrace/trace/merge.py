"""Lay traces over each other in time.

Their rows in one order, tiers matched by name, all else kept apart.

Objects, requests and sessions of each get numbers of their own, so that no operation of one waits
for another's. Rows are merged batch by batch, in bounded memory.
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
from kvtrace.core.tables import Reader, create, objects_path, open_table
from kvtrace.core.units import format_duration

_BATCH_ROWS = 1 << 17
_TIMES = {"trace": "ts_ns", "requests": "arrival_ns"}
_MOST_OBJECTS = 2**31 - 2
"""A replay numbers them in 32 bits."""


@dataclass(frozen=True, slots=True)
class Input:
    """A trace that is to be merged with others."""

    name: str
    """Of its objects' keys in the merged trace."""
    path: Path
    shift_ns: int = 0
    requests: Path | None = None
    """Its requests table."""


@dataclass(slots=True)
class _Source:
    """A trace's tables, and what is added to its numbers."""

    given: Input
    trace: Reader
    objects: Reader | None
    requests: Reader | None
    tiers: Array = field(default_factory=lambda: np.zeros(0, np.int8))
    """int8: the merged tier of each of its own."""
    first: dict[str, int] = field(default_factory=dict)
    """What is added, by column."""
    count: dict[str, int] = field(default_factory=dict)
    """How many numbers it uses, by column."""

    def moved(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows with the numbers and times that they have in the merged table."""
        arrays = []
        for name, array in zip(batch.schema.names, batch.columns, strict=True):
            added = self.first.get(name, 0)
            if name == "tier":
                moved: pa.Array = pa.array(self.tiers[array.to_numpy()])
            elif name == "key":
                moved = pc.binary_join_element_wise(self.given.name, array, "/")
            elif name == "block_ids" and added:
                values = pc.add(array.flatten(), added)
                lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
                ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
                moved = pa.ListArray.from_arrays(pa.array(ends), values, mask=array.is_null())
            else:
                moved = pc.add(array, pa.scalar(added, array.type)) if added else array
            arrays.append(moved)
        return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def merge(
    inputs: Sequence[Input],
    output: Path,
    argv: list[str],
    requests_output: Path | None = None,
    progress: Callable[[float], None] = lambda _rows: None,
) -> Metadata:
    """Write the traces of `inputs` as one to `output`, its objects table beside it and their
    requests if wanted.

    Rows of equal time are in the order of `inputs`, as far as they are read together. ConfigError
    if names, tiers or outputs do not go together.
    """
    sources = []
    for given in inputs:
        own, beside = open_table(given.path, TRACE), objects_path(given.path)
        listed = open_table(beside, OBJECTS) if beside.is_file() else None
        table = None if given.requests is None else open_table(given.requests, REQUESTS)
        if table is not None and table.meta.config_sha256 != own.meta.config_sha256:
            raise ConfigError(
                f"{named('requests', f'{given.name}={given.requests}')}: from another simulation"
                " than"
                f" {given.path}"
            )
        sources.append(_Source(given, own, listed, table))
    tiers = _match_tiers(sources)
    _number(sources)
    meta = _metadata(sources, tiers, argv)
    lacking = [s.given.name for s in sources if s.objects is None]
    # Rows of a merged trace are rows of no other trace.
    extras = tuple(
        c.name
        for c in TRACE.extras
        if c.name != "whole_row" and any(c.name in s.trace.extras for s in sources)
    )
    with ExitStack() as stack:
        trace = stack.enter_context(create(output, TRACE, meta, extras))
        if not lacking:
            objects = stack.enter_context(create(objects_path(output), OBJECTS, meta))
            for source in sources:
                assert source.objects is not None, "none lacks it"
                for batch in source.objects.batches():
                    objects.write(source.moved(batch))
        if requests_output is not None:
            asked = [(s, s.requests) for s in sources if s.requests is not None]
            requests = stack.enter_context(create(requests_output, REQUESTS, meta))
            for batch in _in_order(asked, REQUESTS, ()):
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
    """Return the tiers of all, each after those that any of the traces has before it.

    Note which each one's are.
    """
    before: dict[str, set[str]] = {}
    for source in sources:
        own = [tier.name for tier in source.trace.meta.tiers]
        for at, name in enumerate(own):
            before.setdefault(name, set()).update(own[:at])
    names: list[str] = []
    while len(names) < len(before):
        found = next(
            (name for name, of in before.items() if name not in names and of <= set(names)), None
        )
        if found is None:
            orders = "; ".join(
                ", ".join(t.name for t in source.trace.meta.tiers) for source in sources
            )
            raise ConfigError(
                f"the traces have their tiers in orders that contradict each other: {orders}"
            )
        names.append(found)
    bounds: dict[str, list[int | None]] = {name: [] for name in names}
    nodes: dict[str, set[int | UnsetType]] = {name: set() for name in names}
    for source in sources:
        source.tiers = np.array([names.index(t.name) for t in source.trace.meta.tiers], np.int8)
        for tier in source.trace.meta.tiers:
            bounds[tier.name].append(tier.capacity_bytes)
            # What is no fleet's is of the first node.
            nodes[tier.name] |= set() if source.trace.meta.fleet is None else {tier.instance_nodes}
    if unlike := next((name for name, of in nodes.items() if len(of) > 1), None):
        raise ConfigError(
            f"tier {unlike} has other numbers of nodes in each fleet; merge traces of equal fleets"
        )
    # Each keeps to its own part; together they hold no more than all of them.
    most = {
        name: None if None in of else sum(b for b in of if b is not None)
        for name, of in bounds.items()
    }
    return [TierFacts(name, most[name], next(iter(nodes[name]), UNSET)) for name in names]


def _number(sources: list[_Source]) -> None:
    """Settle what is added to the numbers of each trace, so that no two share one."""
    added = dict.fromkeys(("object_id", "request_id", "session_id", "block_ids"), 0)
    for source in sources:
        count = dict.fromkeys(added, 0)
        for reader in (
            of for of in (source.trace, source.objects, source.requests) if of is not None
        ):
            for name in set(added).intersection(reader.table.names):
                for batch in reader.batches([name]):
                    values = batch.column(0).flatten() if name == "block_ids" else batch.column(0)
                    if (most := pc.max(values).as_py()) is not None:
                        count[name] = max(count[name], most + 1)
        source.count = count
        source.first = {
            **added,
            "ts_ns": source.given.shift_ns,
            "arrival_ns": source.given.shift_ns,
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
    """Yield the rows of all readers by time; each one's keep their order."""
    time, columns = _TIMES[table.name], [*table.names, *extras]
    left = [
        (batches, next(batches, None)) for batches in (_moved(*of, columns, time) for of in readers)
    ]
    while heads := [
        (batches, head, head.column(time).to_numpy()) for batches, head in left if head is not None
    ]:
        # All up to here are known: no later batch begins before it.
        until = min(int(times[-1]) for *_, times in heads)
        counts = [int(np.searchsorted(times, until, side="right")) for *_, times in heads]
        parts = [head.slice(0, count) for (_, head, _), count in zip(heads, counts, strict=True)]
        left = [
            (batches, head.slice(count) if count < head.num_rows else next(batches, None))
            for (batches, head, _), count in zip(heads, counts, strict=True)
        ]
        order = np.argsort(
            np.concatenate([part.column(time).to_numpy() for part in parts]), kind="stable"
        )
        rows = pa.Table.from_batches(parts, arrow_schema(table, extras))
        yield from rows.take(order).combine_chunks().to_batches()


def _moved(
    source: _Source, reader: Reader, columns: list[str], time: str
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table with their new numbers and times.

    TraceError at one that is earlier than one before.
    """
    last_ns = row = 0
    for batch in reader.batches(columns):
        times = batch.column(time).to_numpy()
        late = np.append(last_ns, times[:-1]) > times
        refuse(late, "earlier than the row before it", path=reader.path, column=time, first_row=row)
        if not len(times):
            continue
        last_ns, row = int(times[-1]), row + len(times)
        if last_ns + source.given.shift_ns > MOST:
            raise ConfigError(
                f"{named('shift', source.given.name)}: its times would not fit a trace"
            )
        yield source.moved(batch)


def _metadata(sources: list[_Source], tiers: list[TierFacts], argv: list[str]) -> Metadata:
    """Return the metadata of each table.

    What is said of one simulation (its model, configuration and counters) is that of the only trace
    of a KV cache.
    """
    metas = [source.trace.meta for source in sources]
    caches = [meta for meta in metas if "hierarchy" in meta.config]
    main = caches[0] if len(caches) == 1 else None
    merged = [
        {
            "name": source.given.name,
            "shift_ns": source.given.shift_ns,
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
    # Readers look among the notes for those on computing, by how they begin.
    notes = list(main.notes) if main else []
    others = [source for source in sources if source.trace.meta is not main]
    notes += [
        f"{source.given.name}: {note}" for source in others for note in source.trace.meta.notes
    ]
    shifted = [s.given for s in sources if s.given.shift_ns]
    notes += [f"{given.name} begins {format_duration(given.shift_ns)} later" for given in shifted]
    # The counters are those of the only KV cache, its tiers in the order of all, and of the only
    # training run.
    stats: JsonObject = dict(main.stats or {}) if main is not None else {}
    if counted := stats.get("tiers"):
        # What is live at the end is more than it counted.
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
