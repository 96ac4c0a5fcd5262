"""What of an operation may go before it is open.

Nothing, and nothing at all if it cannot be opened.
"""

from __future__ import annotations

import pytest
from phrases import shows
from rings import ENGINES, IO, PythonFiles, drive, engine_of, rows_of

from kvreplay.plan.row_ring import DELETE, ERROR, OK, READ, WRITE

PIECES = 6


@pytest.mark.star
@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("depth", [4 * PIECES, PIECES, 2, 1])
@pytest.mark.parametrize("op", [READ, WRITE])
def test_nothing_is_done_with_what_could_not_be_opened(name: str, depth: int, op: int) -> None:
    tier = PythonFiles()
    rows = rows_of(
        [{"op": op, "object_id": obj, "length_bytes": PIECES * IO} for obj in (0, 1, 0, 2)]
    )
    driven = drive(engine_of(name, depth), rows, [tier], stops_on_error=False)
    assert (driven.completed, rows.all["outcome"].tolist()) == (4, [ERROR, OK, ERROR, OK])
    what = "write" if op == WRITE else "read"
    assert driven.failure is not None
    assert shows(driven.failure.message, f"{what} … object 0: … Permission denied")
    assert {obj for _, obj, _, _ in tier.of("read", "write", "end")} == {1, 2}
    for obj in (1, 2):
        of = [call for call in tier.of("begin", "read", "write", "end") if call[1] == obj]
        assert of[0][0] == "begin"
        assert of[-1][0] == "end"
        assert sorted(of[1:-1]) == [(what, obj, at, IO) for at in range(0, PIECES * IO, IO)]
    assert len(tier.of("reserve")) == (4 if op == WRITE else 0)


@pytest.mark.parametrize("name", ENGINES)
def test_a_one_buffer_operation_opens_moves_and_ends_at_once(name: str) -> None:
    tier = PythonFiles()
    stated = [{"op": op, "object_id": 1, "length_bytes": 4096} for op in (WRITE, READ, DELETE)]
    drive(engine_of(name, 4), rows_of(stated), [tier])
    assert [call[0] for call in tier.calls] == [
        "reserve",
        "begin",
        "write",
        "end",
        "begin",
        "read",
        "end",
        "delete",
    ]


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("bulk_depth", [1, 2, None])
def test_a_checkpoint_keeps_its_depth_and_leaves_other_places(
    name: str, bulk_depth: int | None
) -> None:
    stated = [
        {"op": WRITE, "object_id": obj, "length_bytes": 60 * IO, "is_bulk": True} for obj in (1, 2)
    ]
    stated += [
        {"op": READ, "object_id": 3, "length_bytes": IO},
        {"op": WRITE, "object_id": 4, "length_bytes": IO},
    ]
    tier, rows = PythonFiles(), rows_of(stated)
    driven = drive(engine_of(name, 8), rows, [tier], bulk_depth=bulk_depth)
    assert (driven.failure, driven.completed) == (None, 4)
    most = max(tier.most[1], tier.most[2])
    assert most == bulk_depth if bulk_depth else most > 2
    # The short ones wait for no hundred pieces.
    assert rows.all["completed_ns"][2:].max() < rows.all["completed_ns"][:2].min()


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("depth", [1, 3])
def test_what_may_go_goes_in_the_order_of_the_trace(name: str, depth: int) -> None:
    tier = PythonFiles()
    rows = rows_of([{"op": READ, "object_id": obj, "length_bytes": 4096} for obj in range(1, 60)])
    drive(engine_of(name, depth), rows, [tier])
    begun = [obj for _, obj, _, _ in tier.of("begin")]
    assert (
        begun == sorted(begun)
        if depth == 1
        else max(abs(obj - at - 1) for at, obj in enumerate(begun)) < depth
    )


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("is_bulk", [False, True])
def test_no_more_files_are_open_than_fill_the_queue(name: str, is_bulk: bool) -> None:
    # Each write has four queues of pieces: to open more than the next would take their space too
    # soon.
    depth, count = 8, 24
    tier = PythonFiles()
    stated = [
        {"op": WRITE, "object_id": obj, "length_bytes": 4 * depth * IO, "is_bulk": is_bulk}
        for obj in range(1, count + 1)
    ]
    driven = drive(engine_of(name, depth), rows_of(stated), [tier])
    assert (driven.failure, driven.completed) == (None, count)
    opened = most = 0
    for call in tier.of("begin", "end"):
        opened += 1 if call[0] == "begin" else -1
        most = max(most, opened)
    assert 1 <= most <= depth // 2
