"""The order of submissions, without threads: constraints kept, nothing stuck, buffers and depth bounded."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from chains import before_of
from hypothesis import given, settings
from hypothesis import strategies as st
from schedules import Schedule

from kvreplay.engine.filling.ahead import PREPARED_NS
from kvreplay.engine.filling.fills import NO_ROOM, ONLY_ROOM
from kvreplay.plan.plan import DELETE, READ, WRITE, Plan, build_plan

IO = 4096


def make_plan(rows: list[tuple[int, int, int, int, int]], ts: list[int] | None = None) -> Plan:
    """Return the plan of (op, object, pages, request, stage) rows on one tier; -1 is null."""
    columns: list[Any] = list(np.array(rows, dtype=np.int64).reshape(-1, 5).T)
    op, obj, pages, request, stage = columns
    count = len(rows)
    return build_plan(
        {
            "row": np.arange(count),
            "ts_ns": np.array(ts or [0] * count, dtype=np.int64),
            "op": op,
            "tier": np.zeros(count, np.int64),
            "object_id": obj,
            "offset_bytes": np.zeros(count, np.int64),
            "length_bytes": pages * IO,
            "request_id": request,
            "stage": stage,
        },
        [IO],
        Path("t.parquet"),
    )


class Simulation:
    """Runs a schedule with a clock of its own; every step is chosen by `rng`."""

    def __init__(
        self,
        plan: Plan,
        depth: int,
        rng: random.Random,
        *,
        ahead: int = 2,
        is_open: bool = False,
        together: int = 1,
        needs_room: bool = False,
        bulk_depth: int | None = None,
    ) -> None:
        self.plan, self.rng, self.depth, self.now, self.needs_room = plan, rng, depth, 0, needs_room
        due = plan.ts_ns if is_open else None
        how: dict[str, Any] = {"depth": depth, "ahead": ahead, "io_bytes": IO, "pieces_a_fill": together}
        self.schedule = Schedule(plan, due, [True], [IO], **how, bulk_depth=bulk_depth, rooms=[needs_room])
        self.fills: list[Any] = []
        self.roomy: set[int] = set()
        self.before = before_of(plan)
        self.prepared = 0
        self.out: list[Any] = []
        self.submitted: dict[int, int] = {}
        self.completed: dict[int, int] = {}
        self.order: list[int] = []
        self.most_out = self.most_of_bulk = self.clock = 0

    def step(self) -> bool:
        actions = [self._take_fill, self._take, self._finish_fill, self._finish]
        self.rng.shuffle(actions)
        return any(action() for action in actions)

    def _take(self) -> bool:
        if len(self.out) >= self.depth:
            return False
        submission = self.schedule.take(self.now)
        if submission is None:
            return False
        flight = submission.flight
        if submission.is_first:
            self.clock += 1
            self.submitted[flight.row] = self.clock
            assert not (self.needs_room and flight.needs_data) or flight.row in self.roomy
            self.order.append(flight.row)
            self.schedule.begun(flight)
        self.out.append(submission)
        self.most_out = max(self.most_out, len({s.flight.row for s in self.out}))
        if self.plan.bulk is not None and self.plan.bulk[flight.row]:
            together = sum(s.flight.row == flight.row for s in self.out)
            self.most_of_bulk = max(self.most_of_bulk, together)
        return True

    def _take_fill(self) -> bool:
        fill = self.schedule.take_fill(self.now)
        if fill is None:
            return False
        self.fills.append(fill)
        if fill.room:
            # Only what may go is given room: what it replaces is gone then.
            assert self._may_go(fill.row)
            self.roomy.add(fill.row)
        self.prepared += not self._may_go(fill.row)
        return True

    def _may_go(self, row: int) -> bool:
        """Return whether all that a row must wait for has completed."""
        return all(one in self.completed for one in self.before[row])

    def _finish_fill(self) -> bool:
        if not self.fills:
            return False
        self.schedule.filled(self.fills.pop(self.rng.randrange(len(self.fills))))
        return True

    def _finish(self) -> bool:
        if not self.out:
            return False
        submission = self.out.pop(self.rng.randrange(len(self.out)))
        if self.schedule.piece_done(submission):
            self.clock += 1
            self.completed[submission.flight.row] = self.clock
            self.schedule.done(submission.flight, self.now)
        return True

    def run(self) -> None:
        while not self.schedule.is_over:
            if self.step():
                continue
            later = [d for d in (self.schedule.next_due(self.now), self.schedule.fill_due(self.now)) if d is not None]
            assert later, "nothing can go on"
            assert min(later) > self.now, "something was due but not offered"
            self.now = min(later)


rows_strategy = st.lists(
    st.tuples(
        st.sampled_from([READ, WRITE, DELETE]),
        st.integers(0, 4),
        st.integers(0, 9),
        st.sampled_from([-1, 0, 1]),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=40,
)


def well_formed(rows: list[Any]) -> list[Any]:
    """Make the stages of each request rise."""
    stages: dict[int, int] = {}
    result = []
    for op, obj, pages, request, stage in rows:
        stages[request] = max(stages.get(request, 0), stage)
        result.append((op, obj, pages, request, stages[request] if request >= 0 else -1))
    return result


@settings(max_examples=300, deadline=None)
@given(
    rows_strategy,
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 2**32),
    st.booleans(),
    st.integers(1, 5),
    st.booleans(),
    st.none() | st.integers(1, 3),
)
def test_every_order_of_events_keeps_stages_and_hazards_and_ends(
    rows: list[Any],
    depth: int,
    ahead: int,
    seed: int,
    is_open: bool,
    together: int,
    needs_room: bool,
    bulk_depth: int | None,
) -> None:
    rows = well_formed(rows)
    rng = random.Random(seed)  # noqa: S311 - a test's choices
    ts = sorted(rng.randrange(50) for _ in rows)
    plan = make_plan(rows, ts)
    if bulk_depth is not None:
        plan = replace(plan, bulk=np.array([rng.random() < 0.5 for _ in rows], np.uint8))
    how: dict[str, Any] = {"is_open": is_open, "needs_room": needs_room, "bulk_depth": bulk_depth}
    simulation = Simulation(plan, depth, rng, ahead=ahead, together=together, **how)
    simulation.run()
    assert simulation.most_of_bulk <= (bulk_depth or depth)
    submitted, completed = simulation.submitted, simulation.completed
    assert len(completed) == len(rows)
    for j, (op_j, obj_j, _, request_j, stage_j) in enumerate(rows):
        for i, (op_i, obj_i, _, request_i, stage_i) in enumerate(rows[:j]):
            conflict = obj_i == obj_j and not (op_i == op_j == READ)
            staged = request_i == request_j >= 0 and stage_i < stage_j
            if conflict or staged:
                assert completed[i] < submitted[j]
    assert simulation.most_out <= depth


def test_free_rows_go_in_trace_order() -> None:
    simulation = Simulation(make_plan([(READ, i, 1, -1, -1) for i in range(50)]), 3, random.Random(1))  # noqa: S311 - a test's choices
    simulation.run()
    assert simulation.order == list(range(50))


def test_a_write_is_offered_only_with_its_data() -> None:
    schedule = Schedule(make_plan([(WRITE, 0, 3, -1, -1)]), None, [True], [IO], depth=4, ahead=4, io_bytes=IO)
    fills = [fill for _ in range(3) if (fill := schedule.take_fill(0))]
    assert [(f.piece, f.start, f.end) for f in fills] == [(i, i * IO, (i + 1) * IO) for i in range(3)]
    assert {f.object_end for f in fills} == {3 * IO}
    for fill in fills[:2]:
        schedule.filled(fill)
        assert schedule.take(0) is None
    schedule.filled(fills[2])
    first = schedule.take(0)
    assert first is not None
    assert first.is_first
    assert schedule.fills_in_flight == 0


def test_a_write_longer_than_the_buffers_starts_with_what_they_hold_and_is_counted() -> None:
    simulation = Simulation(make_plan([(WRITE, 0, 40, -1, -1)]), 2, random.Random(3))  # noqa: S311 - a test's choices
    for _ in range(2):
        assert simulation._take_fill()
        assert simulation._finish_fill()
    assert simulation._take()
    simulation.run()
    assert simulation.schedule.fills_in_flight == 1
    assert simulation.completed


def test_a_checkpoint_keeps_to_its_depth_and_leaves_places_and_buffers_to_others() -> None:
    plan = make_plan([(WRITE, 0, 500, -1, -1), (WRITE, 1, 500, -1, -1), (READ, 2, 1, -1, -1), (WRITE, 3, 1, -1, -1)])
    plan = replace(plan, bulk=np.array([1, 1, 0, 0], np.uint8))
    simulation = Simulation(plan, 8, random.Random(5), ahead=16, bulk_depth=2)  # noqa: S311 - a test's choices
    simulation.run()
    assert simulation.most_of_bulk == 2
    # The short ones wait for no thousand pieces.
    assert set(sorted(simulation.completed, key=simulation.completed.__getitem__)[:2]) == {2, 3}
    simulation = Simulation(plan, 8, random.Random(5), ahead=16)  # noqa: S311 - a test's choices
    simulation.run()
    assert simulation.most_of_bulk > 2


def test_nothing_goes_before_its_time_and_a_late_row_delays_no_deadline() -> None:
    plan = make_plan([(READ, i, 1, -1, -1) for i in range(3)], [0, 100, 200])
    schedule = Schedule(plan, plan.ts_ns, [True], [IO], depth=8, ahead=8, io_bytes=IO)
    assert schedule.take(0) is not None
    assert schedule.take(99) is None
    assert schedule.next_due(99) == 100
    # 150 is late for row 1; row 2 still comes at 200, not at 250.
    assert schedule.take(150) is not None
    assert schedule.next_due(150) == 200


def test_data_of_the_next_stage_is_made_while_the_stage_before_it_runs() -> None:
    plan = make_plan([(READ, 0, 1, 7, 0), (WRITE, 1, 2, 7, 1), (WRITE, 2, 1, 7, 2)])
    schedule = Schedule(plan, None, [True], [IO], depth=4, ahead=4, io_bytes=IO, rooms=[True])
    first = schedule.take(0)
    assert first is not None
    early = [fill for _ in range(3) if (fill := schedule.take_fill(0))]
    # The write after next is not prepared: its turn comes when the one before it may go.
    assert [(fill.row, fill.piece, fill.room) for fill in early] == [(1, 0, NO_ROOM), (1, 1, NO_ROOM)]
    for fill in early:
        schedule.filled(fill)
    assert schedule.take(0) is None
    assert schedule.piece_done(first)
    schedule.done(first.flight, 5)
    room = schedule.take_fill(5)
    assert room is not None
    assert (room.row, room.room, room.start, room.end, room.object_end) == (1, ONLY_ROOM, 0, 0, 2 * IO)
    assert schedule.take(5) is None
    assert schedule.is_starved(5)
    schedule.filled(room)
    second = schedule.take(5)
    assert second is not None
    assert second.flight.row == 1
    assert schedule.fills_in_flight == 0
    following = schedule.take_fill(5)
    assert following is not None
    assert (following.row, following.room) == (2, NO_ROOM)


def test_a_file_needs_no_room_when_its_stage_comes() -> None:
    plan = make_plan([(READ, 0, 1, 7, 0), (WRITE, 1, 1, 7, 1)])
    schedule = Schedule(plan, None, [True], [IO], depth=4, ahead=4, io_bytes=IO, rooms=[False])
    first, fill = schedule.take(0), schedule.take_fill(0)
    assert first is not None
    assert fill is not None
    schedule.filled(fill)
    assert schedule.piece_done(first)
    schedule.done(first.flight, 5)
    second = schedule.take(5)
    assert second is not None
    assert second.flight.row == 1


def test_what_is_prepared_leaves_buffers_to_what_may_go() -> None:
    waiting = [(WRITE, 1 + i, 9, 7, 1) for i in range(20)]
    plan = make_plan([(READ, 0, 1, 7, 0), *waiting, (WRITE, 50, 3, -1, -1)])
    schedule = Schedule(plan, None, [True], [IO], depth=4, ahead=4, io_bytes=IO)
    assert schedule.take(0) is not None
    rows = [fill.row for _ in range(40) if (fill := schedule.take_fill(0))]
    # Of ten buffers four may hold what waits, one of them in any case; the write that may go has all it needs.
    assert rows == [21, 21, 21, 1]
    only = Schedule(make_plan([(READ, 0, 1, 7, 0), *waiting]), None, [True], [IO], depth=4, ahead=4, io_bytes=IO)
    assert only.take(0) is not None
    rows = [fill.row for _ in range(40) if (fill := only.take_fill(0))]
    assert rows == [1, 1, 1, 1]


def test_data_far_ahead_of_its_time_is_not_prepared() -> None:
    later = 10**9
    plan = make_plan([(READ, 0, 1, 7, 0), (WRITE, 1, 1, 7, 1)], [0, later])
    schedule = Schedule(plan, plan.ts_ns, [True], [IO], depth=4, ahead=4, io_bytes=IO)
    assert schedule.take(0) is not None
    assert schedule.take_fill(0) is None
    assert schedule.fill_due(0) == later - PREPARED_NS
    assert schedule.take_fill(later - PREPARED_NS) is not None


def test_only_a_row_that_is_due_can_be_starved_of_data() -> None:
    plan = make_plan([(WRITE, 0, 1, -1, -1)], [100])
    schedule = Schedule(plan, plan.ts_ns, [True], [IO], depth=1, ahead=1, io_bytes=IO)
    assert schedule.take(99) is None
    assert not schedule.is_starved(99)
    assert schedule.is_starved(100)
    fill = schedule.take_fill(100)
    assert fill is not None
    # Its data is under way.
    assert schedule.is_starved(100)
    schedule.filled(fill)
    assert not schedule.is_starved(100)


def test_pieces_end_at_multiples_of_the_io_size() -> None:
    plan = build_plan(
        {
            "row": np.arange(1),
            "ts_ns": np.zeros(1, np.int64),
            "op": np.array([READ]),
            "tier": np.zeros(1, np.int64),
            "object_id": np.zeros(1, np.int64),
            "offset_bytes": np.array([5000]),
            "length_bytes": np.array([20_000]),
            "request_id": np.array([-1]),
            "stage": np.array([-1]),
        },
        [4096],
        Path("t.parquet"),
    )
    schedule = Schedule(plan, None, [True], [4096], depth=1, ahead=1, io_bytes=8192)
    submission = schedule.take(0)
    assert submission is not None
    schedule.begun(submission.flight)
    parts = [submission, *iter(lambda: schedule.take(0), None)]
    # 5000 .. 25000 padded to 4096 .. 28672, cut at 8192, 16384 and 24576.
    pieces = [(part.start, part.start + part.length) for part in parts]
    assert pieces == [(4096, 8192), (8192, 16384), (16384, 24576), (24576, 28672)]


def test_stopping_offers_nothing_more() -> None:
    schedule = Schedule(make_plan([(READ, 0, 1, -1, -1)] * 2), None, [True], [IO], depth=2, ahead=2, io_bytes=IO)
    assert schedule.take(0) is not None
    schedule.stop()
    assert schedule.take(0) is None
    assert schedule.is_over
