"""What lies in each tier, against plain Python that follows every object, row by row."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from chains import chains_of
from hypothesis import given, settings
from hypothesis import strategies as st

from kvreplay.plan.chains import ALONE, chain, dense
from kvreplay.plan.plan import DELETE, READ, WRITE
from kvreplay.plan.residency import trace_residency

PADDINGS = [1, 512, 4096]
DRIVES = 3
SPARSE = 10**8
Rows = list[tuple[int, int, int, int]]

OPS = st.sampled_from([READ, WRITE, WRITE, DELETE])
rows_strategy = st.lists(st.tuples(st.integers(0, 2), OPS, st.integers(0, 5), st.integers(0, 20_000)), max_size=40)


def columns(rows: Rows, spread: int = 1) -> list[Any]:
    tier, op, obj, end = np.array(rows, np.int64).reshape(-1, 4).T.copy()
    return [tier, op, obj * spread, end]


def padded(length: int, tier: int) -> int:
    return -(-length // PADDINGS[tier]) * PADDINGS[tier]


def first_needs(rows: Rows) -> tuple[dict[tuple[int, int], int], int | None]:
    """Return how long each object must be before the first row, and the first row that reads what was deleted."""
    written: dict[Any, int] = defaultdict(int)
    needed: dict[Any, int] = {}
    gone: set[Any] = set()
    lost = None
    for index, (tier, op, obj, end) in enumerate(rows):
        key, reach = (tier, obj), max(end, 1)
        if op == WRITE:
            written[key] = max(written[key], reach)
        elif op == DELETE:
            written[key] = 0
            gone.add(key)
        elif reach > written[key] and key in gone:
            lost = index if lost is None else lost
        elif reach > written[key]:
            needed[key] = max(needed.get(key, 0), reach)
    return needed, lost


@settings(max_examples=300, deadline=None)
@given(rows_strategy, st.booleans())
def test_what_must_be_there_first_and_the_most_at_once_are_what_following_each_object_finds(
    rows: Rows, is_sparse: bool
) -> None:
    spread = SPARSE if is_sparse else 1
    found = trace_residency(*columns(rows, spread), PADDINGS)
    needed, lost = first_needs(rows)
    assert found.lost_read == lost
    populated = zip(found.populate_tier.tolist(), found.populate_object.tolist(), found.populate_bytes, strict=True)
    assert {(tier, obj // spread): length for tier, obj, length in populated} == needed
    held = dict(needed)
    live = [sum(padded(n, t) for (t, _), n in needed.items() if t == tier) for tier in range(len(PADDINGS))]
    most, absent = list(live), []
    for tier, op, obj, end in rows:
        before = held.get((tier, obj), 0)
        after = {READ: before, WRITE: max(before, end, 1), DELETE: 0}[op]
        absent.append(op == DELETE and before == 0)
        held[tier, obj] = after
        live[tier] += padded(after, tier) - padded(before, tier)
        most[tier] = max(most[tier], live[tier])
    assert found.absent_delete.tolist() == absent
    assert found.peak_bytes == most


parts_strategy = st.lists(
    st.tuples(st.integers(0, 1), OPS, st.integers(0, 2), st.integers(0, 12), st.integers(0, 8)), max_size=40
)


@settings(max_examples=1000, deadline=None)
@given(parts_strategy)
def test_bytes_that_were_never_written_are_needed_first(rows: list[tuple[int, int, int, int, int]]) -> None:
    """Against sets of bytes."""
    tier, op, obj, offset, length = np.array(rows, np.int64).reshape(-1, 5).T.copy()
    found = trace_residency(tier, op, obj, offset + length, PADDINGS, None, offset)
    written: dict[Any, set[int]] = defaultdict(set)
    needed: dict[Any, int] = {}
    gone: set[Any] = set()
    lost = None
    for index, (t, o, n, start, count) in enumerate(rows):
        key, touched = (t, n), set(range(start, start + count))
        if not count:
            # Of an empty write at its start an object exists; an empty read needs what lies before it.
            touched = {0} if not start else {start - 1} if o == READ else set()
        if o == WRITE:
            written[key] |= touched
        elif o == DELETE:
            written[key].clear()
            gone.add(key)
        elif touched - written[key] and key in gone:
            lost = index if lost is None else lost
        elif touched - written[key]:
            needed[key] = max(needed.get(key, 0), start + count, 1)
    assert found.lost_read == lost
    populated = zip(found.populate_tier.tolist(), found.populate_object.tolist(), found.populate_bytes, strict=True)
    assert {(t, n): length for t, n, length in populated} == needed


@settings(max_examples=200, deadline=None)
@given(rows_strategy, st.lists(st.integers(0, DRIVES - 1), min_size=6, max_size=6))
def test_a_drive_holds_its_objects_as_long_as_they_will_get(rows: Rows, drive_of: list[int]) -> None:
    found = trace_residency(*columns(rows), PADDINGS, {1: (np.array(drive_of, np.uint8), DRIVES)})
    needed, _ = first_needs(rows)
    grown: dict[tuple[int, int], int] = {}
    held = dict(needed)
    for tier, op, obj, end in rows:
        before = held.get((tier, obj), 0)
        after = {READ: before, WRITE: max(before, end, 1), DELETE: 0}[op]
        if 0 < before < after:
            grown[tier, obj] = max(grown.get((tier, obj), 0), after)
        held[tier, obj] = after
    assert found.grown == [{o: n for (t, o), n in grown.items() if t == tier} for tier in range(len(PADDINGS))]
    live: dict[tuple[int, int], int] = defaultdict(int)

    def size(key: tuple[int, int], length: int) -> int:
        return padded(max(grown.get(key, 0), length) if length and key in grown else length, key[0])

    def place(key: tuple[int, int]) -> tuple[int, int]:
        return key[0], drive_of[key[1]] if key[0] == 1 else 0

    for key, length in needed.items():
        live[place(key)] += size(key, length)
    most, held = dict(live), dict(needed)
    for tier, op, obj, end in rows:
        key = (tier, obj)
        before = held.get(key, 0)
        after = {READ: before, WRITE: max(before, end, 1), DELETE: 0}[op]
        held[key] = after
        live[place(key)] += size(key, after) - size(key, before)
        most[place(key)] = max(most.get(place(key), 0), live[place(key)])
    expected = [[most.get((tier, d), 0) for d in range(DRIVES if tier == 1 else 1)] for tier in range(len(PADDINGS))]
    assert found.drive_peak_bytes == expected


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(-1, 4), st.integers(-1, 2)), max_size=40), st.booleans())
def test_neighbours_share_a_group_if_their_label_is_one_and_a_chain_holds_a_key(
    rows: list[tuple[int, int]], is_sparse: bool
) -> None:
    key, label = np.array(rows, np.int64).reshape(-1, 2).T.copy()
    keys = dense(np.where(key > 0, key * (SPARSE if is_sparse else 1), key))
    found = chain(keys.numbers, label, count=keys.count)
    chains: dict[int, list[int]] = defaultdict(list)
    for row, (k, _) in enumerate(rows):
        if k >= 0:
            chains[k].append(row)
    expected: list[list[list[int]]] = []
    for members in chains.values():
        parts: list[list[int]] = []
        for row in members:
            if parts and rows[row][1] == rows[parts[-1][-1]][1] != ALONE:
                parts[-1].append(row)
            else:
                parts.append([row])
        expected.append(parts)
    assert chains_of(found.tolist()) == expected


def test_sparse_numbers_become_their_rank_and_negative_ones_stay() -> None:
    numbers = np.array([7 * SPARSE, -1, 3, 7 * SPARSE])
    found = dense(numbers)
    assert (found.numbers.tolist(), found.count) == ([1, -1, 0, 1], 2)
    assert found.names(np.array([1, 0])).tolist() == [7 * SPARSE, 3]
    assert dense(np.array([5, -1])).numbers.tolist() == [5, -1]
