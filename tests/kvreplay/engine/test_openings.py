"""What of an operation may go before it is open: nothing, and nothing at all if it cannot be opened."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rings import IO, SEED, needs_uring

from kvreplay.data.words import Fresh
from kvreplay.engine.choose import ThreadEngine, UringEngine
from kvreplay.engine.job import ERROR, OK, Job, Record
from kvreplay.engine.threads import ThreadSubmitter
from kvreplay.engine.workers import Opened
from kvreplay.plan.plan import READ, WRITE, build_plan
from kvreplay.tiers.ram import RamTier
from kvreplay.tiers.tier import CopiedTier

PIECES = 6


class Guarded:
    """A tier of which object 0 cannot be opened; notes which pieces came, and with what in hand."""

    name = target = "guarded"
    engine, alignment, is_simulated = "threads", 4096, False

    def __init__(self) -> None:
        self.moved: list[tuple[Any, int]] = []
        self._lock = threading.Lock()

    def reserve(self, object_id: int, end: int) -> None:
        pass

    def begin(self, _op: int, object_id: int) -> str:
        if object_id == 0:
            raise PermissionError(13, "Permission denied")
        return f"handle of {object_id}"

    def write(self, handle: Any, offset: int, _data: memoryview) -> None:
        self._note(handle, offset)

    def read(self, handle: Any, offset: int, into: memoryview) -> int:
        self._note(handle, offset)
        return len(into)

    def end(self, _op: int, handle: Any) -> None:
        self._note(handle, -1)

    def _note(self, handle: Any, offset: int) -> None:
        with self._lock:
            self.moved.append((handle, offset))


def plan_of(rows: list[tuple[int, int]]) -> Any:
    op, obj = np.array(rows, np.int64).T.copy()
    count = len(rows)
    zeros = np.zeros(count, np.int64)
    return build_plan(
        {"row": np.arange(count), "op": op, "object_id": obj, "length_bytes": zeros + PIECES * IO}
        | {"ts_ns": zeros, "tier": zeros, "offset_bytes": zeros, "request_id": zeros - 1, "stage": zeros - 1},
        [4096],
        Path("t"),
    )


def drive(engine: Any, tier: Any, rows: list[tuple[int, int]]) -> tuple[Any, Record]:
    record = Record.empty(len(rows), is_open_loop=False)
    job = Job(plan_of(rows), None, [tier], record, Fresh.of(SEED), stops_on_error=False)
    return engine.drive(job, lambda: None, lambda _done: None), record


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have all pieces of an operation done, as by threads that were waiting, as soon as it is said to be open."""
    rows: list[int] = []
    tell = ThreadSubmitter._told

    def at_once(self: ThreadSubmitter, item: Opened) -> None:
        rows.append(item.flight.row)
        tell(self, item)
        while True:
            with self._lock:
                submission = self._pump.next_piece(self._out)
                step = None if submission is None else self._step(submission)
            if step is None:
                return
            self._workers.do(step)
            with self._lock:
                self._answer(step)

    monkeypatch.setattr(ThreadSubmitter, "_told", at_once)
    return rows


@pytest.mark.parametrize("op", [READ, WRITE])
def test_no_thread_goes_on_with_what_could_not_be_opened(told: list[int], op: int) -> None:
    tier = Guarded()
    driven, record = drive(ThreadEngine(PIECES, IO), tier, [(op, 0), (op, 1)])
    assert (driven.completed, record.outcome.tolist()) == (2, [ERROR, OK])
    name = "write" if op == WRITE else "read"
    assert driven.failure.message == f"{name} of object 0: Permission denied"
    assert told == [1], "only what is open is said to be"
    offsets = [*range(0, PIECES * IO, IO), -1]
    assert sorted(tier.moved) == sorted(("handle of 1", at) for at in offsets)


@needs_uring
@pytest.mark.parametrize("op", [READ, WRITE])
def test_nor_does_one_beside_a_ring(op: int) -> None:
    tier = Guarded()
    assert not isinstance(tier, CopiedTier)
    assert isinstance(RamTier("cpu", IO), CopiedTier), "which would be copied, not opened"
    driven, record = drive(UringEngine(PIECES, IO), tier, [(op, 0), (op, 1)])
    assert (driven.completed, record.outcome.tolist()) == (2, [ERROR, OK])
    assert {handle for handle, _ in tier.moved} == {"handle of 1"}
    assert len(tier.moved) == PIECES + 1
