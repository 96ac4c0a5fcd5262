"""What lies in each tier, against plain Python that follows every object, row by row."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields
from typing import Any

import numpy as np
from followed import batch_of, trace_residency
from hypothesis import given, settings
from hypothesis import strategies as st

from kvreplay.plan.row_ring import DELETE, READ, WRITE
from kvreplay.plan.window import Intake, PlanSurvey, Residency
from kvtrace.core.limit import Limit

PADDINGS = [1, 512, 4096]
DRIVES = 3
SPARSE = 10**8
Rows = list[tuple[int, int, int, int]]

OPS = st.sampled_from([READ, WRITE, WRITE, DELETE])
rows_strategy = st.lists(
    st.tuples(st.integers(0, 2), OPS, st.integers(0, 5), st.integers(0, 20_000)), max_size=40
)


def columns(rows: Rows, spread: int = 1) -> list[Any]:
    tier, op, obj, end = np.array(rows, np.int64).reshape(-1, 4).T.copy()
    return [tier, op, obj * spread, end]


def lost_row(found: Residency) -> int | None:
    return None if found.lost_read is None else found.lost_read[0]


def padded(length: int, tier: int) -> int:
    return -(-length // PADDINGS[tier]) * PADDINGS[tier]


def first_needs(rows: Rows) -> tuple[dict[tuple[int, int], int], int | None]:
    """Return how long each object must be before the first row, and the first row that reads what
    was deleted.
    """
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
def test_populated_and_peak_bytes_equal_those_per_object(rows: Rows, is_sparse: bool) -> None:
    spread = SPARSE if is_sparse else 1
    found = trace_residency(*columns(rows, spread), PADDINGS)
    needed, lost = first_needs(rows)
    assert lost_row(found) == lost
    populated = zip(
        found.populate_tier.tolist(),
        found.populate_object.tolist(),
        found.populate_bytes,
        strict=True,
    )
    assert {(tier, obj // spread): length for tier, obj, length in populated} == needed
    held = dict(needed)
    live = [
        sum(padded(n, t) for (t, _), n in needed.items() if t == tier)
        for tier in range(len(PADDINGS))
    ]
    most, absent = list(live), []
    for tier, op, obj, end in rows:
        before = held.get((tier, obj), 0)
        after = {READ: before, WRITE: max(before, end, 1), DELETE: 0}[op]
        absent.append(op == DELETE and before == 0)
        held[tier, obj] = after
        live[tier] += padded(after, tier) - padded(before, tier)
        most[tier] = max(most[tier], live[tier])
    assert found.absent_deletes == sum(absent)
    assert found.peak_bytes == most


parts_strategy = st.lists(
    st.tuples(st.integers(0, 1), OPS, st.integers(0, 2), st.integers(0, 12), st.integers(0, 8)),
    max_size=40,
)


@settings(max_examples=1000, deadline=None)
@given(parts_strategy)
def test_bytes_that_were_never_written_are_needed_first(
    rows: list[tuple[int, int, int, int, int]],
) -> None:
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
            # Of an empty write at its start an object exists; an empty read needs what lies before
            # it.
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
    assert lost_row(found) == lost
    populated = zip(
        found.populate_tier.tolist(),
        found.populate_object.tolist(),
        found.populate_bytes,
        strict=True,
    )
    assert {(t, n): length for t, n, length in populated} == needed


@settings(max_examples=200, deadline=None)
@given(rows_strategy, st.lists(st.integers(0, DRIVES - 1), min_size=6, max_size=6))
def test_a_drive_holds_its_objects_as_long_as_they_will_get(
    rows: Rows, drive_of: list[int]
) -> None:
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
    assert found.grown == [
        {o: n for (t, o), n in grown.items() if t == tier} for tier in range(len(PADDINGS))
    ]
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
    expected = [
        [most.get((tier, d), 0) for d in range(DRIVES if tier == 1 else 1)]
        for tier in range(len(PADDINGS))
    ]
    assert found.drive_peak_bytes == expected


@settings(max_examples=200, deadline=None)
@given(parts_strategy, st.lists(st.integers(1, 9), min_size=1, max_size=8), st.booleans())
def test_batches_of_any_length_come_to_the_same(
    rows: list[tuple[int, int, int, int, int]], lengths: list[int], is_sparse: bool
) -> None:
    tier, op, obj, offset, length = np.array(rows, np.int64).reshape(-1, 5).T.copy()
    shared = {1: (np.array([1, 0, 2], np.uint8), DRIVES)}
    if is_sparse:
        # As far apart as ids may be, where no table says on which drive they lie.
        obj, shared = obj * SPARSE, {}
    whole = trace_residency(tier, op, obj, offset + length, PADDINGS, shared, offset)
    ends = np.cumsum(np.resize(lengths, len(op) + 1))
    cuts = [int(e) for e in ends if e < len(op)]
    found = trace_residency(tier, op, obj, offset + length, PADDINGS, shared, offset, cuts)
    for field in fields(Residency):
        one, other = (getattr(residency, field.name) for residency in (whole, found))
        assert str(one) == str(other) if isinstance(one, list) else np.array_equal(one, other), (
            field.name
        )


def test_populated_objects_do_not_grow_up_to_their_length() -> None:
    """That object 0 is needed is known when it was written twice already."""
    rows = [
        (2, WRITE, 0, 10),
        (2, WRITE, 0, 15),
        (2, READ, 0, 30),
        (2, WRITE, 1, 10),
        (2, WRITE, 1, 15),
    ]
    found = trace_residency(*columns(rows), PADDINGS)
    assert found.populate_bytes.tolist() == [30]
    assert found.grown == [{}, {}, {1: 15}]
    assert found.peak_bytes == [0, 0, 2 * 4096]


def test_memory_follows_what_lives() -> None:
    rounds, live = 200, 100
    number = np.arange(rounds * live).reshape(rounds, live)
    obj = np.hstack([number, number]).ravel()
    op = np.tile(np.repeat([WRITE, DELETE], live), rounds)
    none = np.zeros(len(op), np.int64)
    survey, taken = PlanSurvey(1, {}), Intake([1], {0: 1}, Limit(), is_done=False)
    survey.take(
        batch_of({"tier": none, "op": op, "object_id": obj, "length_bytes": none + 5}), taken
    )
    assert survey.facts().rows == 2 * rounds * live
    assert survey.struct.residents.used == live
    survey.close()
