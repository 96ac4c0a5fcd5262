"""A trace partitioned over ranks.

The rank of each row, the dependencies that are cut, and each part as a trace.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from conftest import trace_meta, write_trace
from whole import read_table

from kvreplay.plan.replay_config import PartitionBy
from kvreplay.plan.window import compile_window
from kvreplay.ranks.partition import (
    Part,
    PartitionOptions,
    write_part,
)
from kvtrace.core.errors import ConfigError
from kvtrace.core.limit import Limit, parse_limit
from kvtrace.core.schema import REQUESTS, TRACE, arrow_schema, enum_array
from kvtrace.core.tables import create, objects_path, open_table

Row = tuple[Any, ...]


def row(
    op: str, obj: int, request: int | None = None, *, tier: int = 2, ts: int = 0, length: int = 4096
) -> Row:
    return (ts, op, tier, "load", obj, 0, length, request, None if request is None else 0, 0)


def partitioned(
    tmp_path: Path, rows: list[Row], ranks: int, by: PartitionBy | None = None, **asked: Any
) -> list[Part]:
    trace = write_trace(tmp_path / "t.parquet", rows)
    how = PartitionOptions(by, ranks, asked.pop("limit", Limit()), frozenset({0, 1, 2}), **asked)
    return [
        write_part(trace, how, rank, tmp_path / f"rank-{rank:04d}.parquet") for rank in range(ranks)
    ]


def rows_of(part: Part) -> list[Row]:
    batches = open_table(part.path, TRACE).batches(TRACE.names)
    return [tuple(r[name] for name in TRACE.names) for batch in batches for r in batch.to_pylist()]


def some_rows(count: int, seed: int) -> list[Row]:
    """Requests that write and read objects, others' among them, and evictions of what others then
    write again.
    """
    rng, rows = random.Random(seed), []  # noqa: S311 - a test's choices
    live: set[int] = set()
    for request in range(count):
        mine, ts = [3 * request + i for i in range(3)], request * 1000
        theirs = rng.randrange(3 * request + 1)
        if rng.random() < 0.5:
            rows += [] if theirs in live else [row("write", theirs, request, ts=ts)]
            rows.append(row("read", theirs, request, ts=ts))
            live.add(theirs)
        rows += [row("write", obj, request, ts=ts) for obj in mine if obj not in live]
        rows += [row("read", obj, request, ts=ts) for obj in mine]
        live |= set(mine)
        gone = rng.sample(sorted(live), rng.randrange(4))
        rows += [row("delete", obj, ts=ts) for obj in gone]
        live -= set(gone)
    return rows


def oracle(rows: list[Row], ranks: int) -> tuple[list[int], int, set[int]]:
    """Partition by user, plainly.

    The rank of each row, the rows on others' objects, and the objects of several.
    """
    users: dict[int, int] = {}
    first: dict[int, int] = {}
    owner: dict[int, int] = {}
    found, crossing, shared = [], 0, set()
    for _, op, _, _, obj, _, _, request, _, _ in rows:
        if request is not None:
            rank = users.setdefault(request, len(users) % ranks)
        else:
            rank = owner.get(obj, (obj * 0x9E3779B1 >> 16) % ranks)
        found.append(rank)
        if obj not in first:
            first[obj] = owner[obj] = rank
        elif first[obj] != rank:
            crossing += 1
            shared.add(obj)
        if op == "write":
            owner[obj] = rank
    return found, crossing, shared


@pytest.mark.parametrize("seed", range(4))
def test_users_are_dealt_as_a_plain_reckoning_deals_them(tmp_path, seed):
    rows, ranks = some_rows(60, seed), 2 + seed % 3
    parts = partitioned(tmp_path, rows, ranks, PartitionBy.USER)
    expected, crossing, shared = oracle(rows, ranks)
    left_out = 0
    for rank, part in enumerate(parts):
        mine = [r for r, of in zip(rows, expected, strict=True) if of == rank]
        got = rows_of(part)
        assert [r for r in got if r[1] != "delete"] == [r for r in mine if r[1] != "delete"]
        assert set(got) <= set(mine)
        left_out += len(mine) - len(got)
        assert part.note.deletes_left_out == len(mine) - len(got)
        # What was left out is what the part, as a trace, could not do without.
        compile_window(open_table(part.path, TRACE), part.path, {0: 1, 1: 1, 2: 4096}, Limit())
    note = parts[0].note
    assert (note.shared_rows, note.shared_objects) == (crossing, len(shared))
    assert sum(note.rows) == len(rows) == sum(len(rows_of(part)) for part in parts) + left_out
    assert note.bytes == [
        sum(r[6] for r, of in zip(rows, expected, strict=True) if of == rank and r[1] != "delete")
        for rank in range(ranks)
    ]


def test_a_delete_is_left_out_if_its_rank_reads_a_later_write(tmp_path):
    rows = [
        row("write", 0, 0),
        row("delete", 0, 0),
        row("write", 0, 1),
        row("read", 0, 0),
    ]
    first, second = partitioned(tmp_path, rows, 2, PartitionBy.USER)
    assert [r[1] for r in rows_of(first)] == ["write", "read"]
    assert [r[1] for r in rows_of(second)] == ["write"]
    assert (first.note.deletes_left_out, second.note.deletes_left_out) == (1, 0)


def test_a_read_that_nothing_wrote_since_stays_a_fault(tmp_path):
    rows = [
        row("write", 0, 0),
        row("delete", 0, 0),
        row("read", 0, 0),
        row("write", 1, 1),
        row("read", 0, 1),
    ]
    first, _ = partitioned(tmp_path, rows, 2, PartitionBy.USER)
    assert [r[1] for r in rows_of(first)] == ["write", "delete", "read"]


def test_sessions_are_users_where_the_requests_table_tells(tmp_path):
    import pyarrow as pa

    rows = [row("write", request, request) for request in range(6)]
    sessions = [7, 8, 7, None, 8, 7]
    columns = {
        "arrival_ns": [0] * 6, "request_id": list(range(6)), "session_id": sessions, "turn": [None] * 6,
        "input_tokens": [1] * 6, "output_tokens": [1] * 6, "block_ids": [None] * 6,
    }  # fmt: skip
    schema = arrow_schema(REQUESTS)
    arrays = [pa.array(columns[n], schema.field(n).type) for n in columns]
    arrays += [enum_array(REQUESTS, "qos", [0] * 6), enum_array(REQUESTS, "kind", [0] * 6)]
    with create(tmp_path / "r.parquet", REQUESTS, trace_meta(REQUESTS)) as out:
        out.write(pa.RecordBatch.from_arrays(arrays, schema=schema))
    first, second = partitioned(
        tmp_path, rows, 2, PartitionBy.USER, requests=tmp_path / "r.parquet"
    )
    # RankSession 7, session 8, then request 3 by itself.
    assert [r[7] for r in rows_of(first)] == [0, 2, 3, 5]
    assert [r[7] for r in rows_of(second)] == [1, 4]
    assert first.note.distributed == 3


def test_objects_stay_whole_where_dealt_and_cut_requests_noted(tmp_path):
    rows = [
        row(op, obj, request)
        for request in range(20)
        for obj in (request, request + 1)
        for op in ("write", "read")
    ]
    parts = partitioned(tmp_path, rows, 3, PartitionBy.OBJECT)
    seen = [{r[4] for r in rows_of(part)} for part in parts]
    assert not seen[0] & seen[1]
    assert not seen[1] & seen[2]
    note = parts[0].note
    assert (note.shared_objects, note.shared_rows) == (0, 0)
    ranks = [
        {i for i, part in enumerate(parts) for r in rows_of(part) if r[7] == request}
        for request in range(20)
    ]
    assert note.split_requests == sum(len(of) > 1 for of in ranks) > 0


def test_the_trace_says_by_what_it_is_dealt(tmp_path):
    assert partitioned(tmp_path, [row("write", 0, 0)], 2)[0].note.by == "user"
    assert partitioned(tmp_path, [row("write", 0)], 2)[0].note.by == "object"
    for by, says in ((PartitionBy.NODE, "one node"), (PartitionBy.USER, "has no requests")):
        with pytest.raises(ConfigError, match=says):
            partitioned(tmp_path, [row("write", 0)], 2, by)


def test_nodes_are_dealt_by_themselves_where_there_are_several(tmp_path):
    import pyarrow as pa

    trace = write_trace(tmp_path / "t.parquet", [row("write", obj, obj) for obj in range(6)])
    table = read_table(trace, TRACE)
    nodes = pa.array([4, 4, 9, 2, 9, 4], pa.int32())
    with create(trace, TRACE, trace_meta(), ("node",)) as out:
        batch = table.combine_chunks().to_batches()[0]
        arrays = [*batch.columns, nodes]
        out.write(pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(TRACE, ("node",))))
    asked = PartitionOptions(None, 2, Limit(), frozenset({2}))
    parts = [write_part(trace, asked, rank, tmp_path / f"rank-{rank}.parquet") for rank in range(2)]
    assert parts[0].note.by == "node"
    assert parts[0].note.distributed == 3
    assert [[r[4] for r in rows_of(part)] for part in parts] == [[0, 1, 3, 5], [2, 4]]


@pytest.mark.parametrize(("limit", "kept"), [("7", 7), ("2us", 8), ("20KiB", 5)])
def test_a_limit_is_of_the_whole_trace(tmp_path, limit, kept):
    rows = [row("write", n, n // 2, ts=n // 4 * 1000) for n in range(16)]
    parts = partitioned(tmp_path, rows, 3, PartitionBy.USER, limit=parse_limit(limit))
    assert sorted(r[4] for part in parts for r in rows_of(part)) == list(range(kept))
    assert not parts[0].is_whole


def test_a_warm_up_of_rows_is_of_the_whole_trace(tmp_path):
    rows = [row("write", n, n) for n in range(10)]
    parts = partitioned(tmp_path, rows, 3, PartitionBy.USER, warmup_rows=5)
    assert [part.warmup_rows for part in parts] == [2, 2, 1]


def test_a_part_is_a_trace_with_objects_but_no_global_counters(tmp_path):
    part = partitioned(
        tmp_path, [row("write", n, n, ts=n * 10) for n in range(5)], 2, PartitionBy.USER
    )[1]
    meta = open_table(part.path, TRACE).meta
    assert meta.stats is None
    assert meta.source is not None
    assert meta.source["part"] == {
        "file": "t.parquet", "rank": 1, "ranks": 2, "partitioned_by": "user", "nodes": None, "rows": 5, "period_ns": 50,
        "requests": 5,
    }  # fmt: skip
    assert objects_path(part.path).is_file()
