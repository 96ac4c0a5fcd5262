"""The versions that writes bring and reads must find, against plain Python that remembers every
byte.
"""

from __future__ import annotations

import ctypes
import random
import threading
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from conftest import write_trace
from hypothesis import given, settings
from hypothesis import strategies as st

from kvreplay.plan.row_ring import DELETE, VERSION_BEFORE, VERSION_MIXED, WRITE
from kvreplay.plan.window import SPAN, compile_window
from kvtrace.core.limit import Limit
from kvtrace.core.native.library import library
from kvtrace.core.schema import TRACE
from kvtrace.core.tables import open_table

if TYPE_CHECKING:
    from pathlib import Path

ALIGNMENTS = {0: 512, 2: 4096}
OPS = ["read", "write", "delete"]
COPIES = ("promote", "store", "demote")
NEVER = -9


def row(
    op: str, obj: int, length: int = 40_960, *, tier: int = 2, offset: int = 0, phase: str = "load"
) -> Any:
    return (0, op, tier, phase, obj, offset, length, None, None, 0)


def spans_of(loader: Any, row_number: int, most: int = 100) -> list[tuple[int, int, int]]:
    spans = np.zeros(most, SPAN)
    ask = library().plan_spans
    ask.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int]
    count = ask(loader.plan_address, row_number, 0, spans.ctypes.data, most)
    return [tuple(span) for span in spans[:count].tolist()]


def forget(loader: Any, below: int) -> None:
    drop = library().plan_forget
    drop.argtypes, drop.restype = [ctypes.c_void_p, ctypes.c_int64], None
    drop(loader.plan_address, below)


def test_only_reads_that_see_several_writes_get_spans(tmp_path: Path) -> None:
    rows = [
        row("write", 0, 8192),
        row("read", 0, 8192),
        row("write", 0, 4096, offset=4096),
        row("read", 0, 8192),
        row("read", 0, 4096, offset=4096),
        row("write", 1),
        row("read", 1),
        row("read", 2, 4096),
        row("read", 0, 5000, offset=3000),
    ]
    trace = write_trace(tmp_path / "t.parquet", rows)
    loader = compile_window(open_table(trace, TRACE), trace, {2: 4096}, Limit()).loader
    found = loader.begin(is_verified=True)
    loader.load()
    versions = found.all["version"].tolist()
    assert versions == [1, 1, 3, VERSION_MIXED, 3, 6, 6, VERSION_BEFORE, VERSION_MIXED]
    assert spans_of(loader, 3) == [(0, 4096, 1), (4096, 8192, 3)]
    assert [spans_of(loader, n) for n in (1, 4, 7)] == [[], [], []]
    # As far as they are padded.
    assert spans_of(loader, 8) == [(0, 4096, 1), (4096, 8192, 3)]
    forget(loader, 8)
    assert (spans_of(loader, 3), len(spans_of(loader, 8))) == ([], 2)
    # Without --verify, reads expect nothing.
    found = loader.begin()
    loader.load()
    assert found.all["version"].tolist() == [1, 0, 3, 0, 0, 6, 0, 0, 0]


def test_what_was_populated_shows_around_what_was_written(tmp_path: Path) -> None:
    rows = [
        row("write", 0, 4096, offset=4096),
        row("read", 0, 10_000),
        row("delete", 0),
        row("write", 0, 4096),
    ]
    rows += [row("read", 0, 4096), row("read", 0, 0, offset=4096)]
    trace = write_trace(tmp_path / "t.parquet", rows)
    loader = compile_window(open_table(trace, TRACE), trace, {2: 4096}, Limit()).loader
    found = loader.begin(is_verified=True)
    loader.load()
    assert found.all["version"].tolist() == [1, VERSION_MIXED, 0, 4, 4, VERSION_BEFORE]
    assert spans_of(loader, 1) == [(0, 4096, 0), (4096, 8192, 1), (8192, 12_288, 0)]
    # Of many, those beyond a place, as many as there is room for.
    spans = np.zeros(2, SPAN)
    assert library().plan_spans(loader.plan_address, 1, 0, spans.ctypes.data, 1) == 1
    assert spans["to_bytes"].tolist() == [4096, 0]
    assert library().plan_spans(loader.plan_address, 1, 4096, spans.ctypes.data, 2) == 2
    assert spans["to_bytes"].tolist() == [8192, 12_288]


@pytest.mark.parametrize("is_verified", [False, True])
def test_memory_follows_what_lives(tmp_path: Path, is_verified: bool) -> None:
    rounds, live = 60, 100
    rows = [
        row(op, at * live + n)
        for at in range(rounds)
        for op in ("write", "delete")
        for n in range(live)
    ]
    trace = write_trace(tmp_path / "t.parquet", rows)
    loader = compile_window(open_table(trace, TRACE), trace, {2: 4096}, Limit()).loader
    ring = loader.begin(is_verified=is_verified, window=1024)
    held = []
    while not loader.is_whole:
        ring.struct.given = loader.load()
        held.append(loader.held_bytes)
    assert max(held) == held[0]


class Model:
    """What every byte of every object is, and which version a write brings.

    In steps of `ALIGNMENTS`.
    """

    def __init__(self, rows: list[Any], residency: Any) -> None:
        self.holds: dict[int, set[int]] = {}
        self.newest: dict[int, int] = {}
        self.touched: dict[int, int] = {}
        self.bytes: dict[tuple[int, int], dict[int, int]] = {}
        for tier, obj, length in zip(
            residency.populate_tier,
            residency.populate_object,
            residency.populate_bytes,
            strict=True,
        ):
            self.bytes[int(tier), int(obj)] = dict.fromkeys(
                self.blocks(int(tier), 0, int(length)), VERSION_BEFORE
            )
        self.rows, self.expected = rows, []
        for _, op, tier, phase, obj, offset, length, *_ in rows:
            if tier in ALIGNMENTS:
                self.take(OPS.index(op), tier, phase in COPIES, obj, offset, length)

    def blocks(self, tier: int, start: int, end: int) -> range:
        """Return the places of 512 bytes that are touched."""
        by = ALIGNMENTS[tier] // 512
        return range(start // ALIGNMENTS[tier] * by, -(-end // ALIGNMENTS[tier]) * by)

    def take(self, op: int, tier: int, is_copy: bool, obj: int, offset: int, length: int) -> None:
        holds, number = self.holds.setdefault(obj, set()), len(self.expected) + 1
        content = self.bytes.setdefault((tier, obj), {})
        blocks = self.blocks(tier, offset, offset + length)
        if op == DELETE:
            if tier in holds:
                holds.discard(tier)
                content.clear()
                self.expected.append((0, None))
            if not holds:
                self.newest.pop(obj, None)
                self.touched.pop(obj, None)
            return
        version = VERSION_BEFORE
        if op == WRITE:
            if not is_copy or self.touched.get(obj, tier) == tier:
                self.newest[obj] = number
            version = self.newest.get(obj, 0)
            content.update(dict.fromkeys(blocks, version))
            self.expected.append((version, None))
        else:
            self.expected.append((None, [content.get(block, NEVER) for block in blocks]))
        holds.add(tier)
        self.touched[obj] = tier


def random_rows(seed: int, count: int) -> list[Any]:
    """Rows of which none reads what was deleted."""
    rng, rows, gone = random.Random(seed), [], set()  # noqa: S311 - a test's choices
    for _ in range(count):
        tier, obj = rng.choice([0, 0, 1, 2, 2]), rng.randrange(6)
        op = rng.choices(OPS, [5, 5, 1])[0]
        offset, length = rng.choice([0, 0, 700, 4096, 9000]), rng.choice([0, 1, 512, 4096, 12_000])
        phase = rng.choice(["load", "demote", "promote", "store", "prefill"])
        key = (tier, obj)
        if op == "delete":
            gone.add(key)
        elif key in gone and op == "read":
            # Written whole first.
            rows.append(row("write", obj, 30_000, tier=tier, phase=phase))
            gone.discard(key)
        rows.append(row(op, obj, length, tier=tier, offset=offset, phase=phase))
    return rows


@pytest.mark.first(seed=3)
@pytest.mark.parametrize("seed", range(12))
def test_versions_and_reads_equal_those_per_block(tmp_path: Path, seed: int) -> None:
    rows = random_rows(seed, 4000)
    trace = write_trace(tmp_path / "t.parquet", rows)
    window = compile_window(open_table(trace, TRACE), trace, ALIGNMENTS, Limit())
    model, loader = Model(rows, window.residency), window.loader
    assert len(model.expected) == window.planned_rows
    ring = loader.begin(is_verified=True, window=1024)
    first, mixed = 0, 0
    while first < window.planned_rows:
        # Not a divisor of anything: loading goes on within batches, and around the end of the ring.
        last = loader.load(first + 777)
        for number in range(first, last):
            of = ring.within(number, number + 1)[0]
            version, blocks = model.expected[number]
            if blocks is None:
                assert of["version"] == version, number
                continue
            start = (
                int(of["offset_bytes"])
                // ALIGNMENTS[int(of["tier"])]
                * ALIGNMENTS[int(of["tier"])]
                // 512
            )
            if of["version"] == VERSION_MIXED:
                found = [NEVER] * len(blocks)
                for begin, end, which in spans_of(loader, number):
                    assert begin < end
                    found[begin // 512 - start : end // 512 - start] = [which] * (
                        (end - begin) // 512
                    )
                mixed += 1
            else:
                found = [int(of["version"])] * len(blocks)
            assert found == blocks, number
        forget(loader, last)
        first = ring.struct.given = last
    assert mixed > 100


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), min_size=1, max_size=60))
def test_spans_of_any_writes_are_the_last_write_of_each_block(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[int, int]]
) -> None:
    rows = [row("write", 0, 60 * 512, tier=0)]
    content = [1] * 60
    for number, (at, length) in enumerate(writes):
        rows.append(row("write", 0, length * 512, tier=0, offset=at * 512))
        content[at : at + length] = [number + 2] * length
    rows.append(row("read", 0, 60 * 512, tier=0))
    trace = write_trace(tmp_path_factory.mktemp("t") / "t.parquet", rows)
    loader = compile_window(open_table(trace, TRACE), trace, ALIGNMENTS, Limit()).loader
    last = loader.begin(is_verified=True)
    loader.load()
    spans = spans_of(loader, len(rows) - 1) or [(0, 60 * 512, int(last.all["version"][-1]))]
    assert [
        version for start, end, version in spans for _ in range((end - start) // 512)
    ] == content
    assert all(a[1] == b[0] and a[2] != b[2] for a, b in pairwise(spans))


@pytest.mark.full
def test_engines_may_ask_while_rows_are_laid(tmp_path: Path) -> None:
    rows = [
        row("write", 0, 4096 * (1 + n % 2)) if n % 2 else row("read", 0, 8192)
        for n in range(60_000)
    ]
    rows[:0] = [row("write", 0, 8192), row("write", 0, 4096)]
    trace = write_trace(
        tmp_path / "t.parquet", [r if r[1] == "read" else (*r[:6], 4096, *r[7:]) for r in rows]
    )
    window = compile_window(open_table(trace, TRACE), trace, {2: 4096}, Limit())
    loader, asked = window.loader, []
    rows_of = loader.begin(is_verified=True, window=1024)

    def ask() -> None:
        for number in range(window.planned_rows):
            while loader.laid <= number:
                pass
            of = rows_of.within(number, number + 1)[0]
            if of["version"] == VERSION_MIXED:
                asked.append(spans_of(loader, number))
            if number % 100 == 99 or number == window.planned_rows - 1:
                forget(loader, number + 1)
                rows_of.struct.given = number + 1

    thread = threading.Thread(target=ask)
    thread.start()
    while not loader.is_whole:
        loader.load()
    thread.join()
    assert rows_of.struct.given == window.planned_rows
    assert {tuple(span[:2] for span in spans) for spans in asked} == {((0, 4096), (4096, 8192))}
