"""The journal of a run: what its ring of rows came to, once each, and told again row by row."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from run_files import run_file, summary

from kvreplay.plan.row_ring import (
    CORRUPT,
    ERROR,
    JOURNAL,
    MIN_ROWS,
    NONE,
    OK,
    ROW,
    SKIPPED,
    RowRing,
    begin,
)
from kvreplay.result import run_tables as journals
from kvreplay.result.run_tables import (
    Journal,
    JournaledRecord,
    PartialRunFile,
    Running,
    journal,
    unrecovered,
)
from kvtrace.core.errors import DeviceError
from kvtrace.core.native.structs import Structure
from kvtrace.core.run.run_file import PARTIAL_OPS_FILE, RunBegun

if TYPE_CHECKING:
    from pathlib import Path

MEASURED = ("submitted_ns", "completed_ns", "outcome", "ready_ns", "retries")


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "_PERIOD_S", 3600.0)


class Listener:
    """Of one tier, with one bound."""

    def __init__(self) -> None:
        self.totals, self.buckets = np.zeros(12, np.int64), np.zeros(6, np.int64)
        self.response_ns, late_ns, self.noted = np.zeros(500, np.int64), np.zeros(500, np.int64), 0
        of = {
            "totals": self.totals,
            "buckets": self.buckets,
            "response_ns": self.response_ns,
            "late_ns": late_ns,
        }
        self.counters = Structure(
            JOURNAL, "Watched", **of, bound=np.array([4000]), bounds=1, room=500, step=1
        )

    def note(self) -> None:
        self.noted += 1


def content() -> PartialRunFile:
    known = {name: getattr(run_file(summary([])), name) for name in RunBegun.__struct_fields__}
    return PartialRunFile(**known, running=Running("/trace"))


def rows_of(outcomes: list[int]) -> RowRing:
    rows = RowRing.of({"op": np.zeros(len(outcomes), np.int8)})
    for at, outcome in enumerate(outcomes):
        if outcome in (OK, ERROR):
            rows.all[["submitted_ns", "completed_ns", "ready_ns"]][at] = (0, 0, 0)
            rows.all["submitted_ns"][at], rows.all["outcome"][at] = 10 * at, outcome
            rows.all["completed_ns"][at] = 10 * at + 5 if outcome == OK else -1
            rows.all["ready_ns"][at] = at
    return rows


def empty(count: int) -> Any:
    """Return rows of which nothing was done."""
    rows = np.zeros(count, ROW)
    begin(rows)
    return rows


def journaled(path: Path, total: int) -> Any:
    """Return what the journal in `path` kept, told row by row."""
    kept, rows = JournaledRecord(path, total), empty(total)
    for row in range(total):
        kept.begin(row, rows[row : row + 1])
    return rows


def test_a_journal_keeps_each_operation_once(tmp_path: Path) -> None:
    rows = rows_of([3, 0, 3, 1, 0])
    rows.all["retries"][3] = 1
    begun = content()

    def fail() -> None:
        with journal(tmp_path, rows, begun) as kept:
            kept.keep()
            kept.keep()
            # A row that ends after later ones, and was asked of an object store again.
            for name, value in zip(MEASURED, (0, 5, OK, 0, 2), strict=True):
                rows.all[name][0] = value
            kept.keep()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with (tmp_path / PARTIAL_OPS_FILE).open("rb") as file:
        places = [
            b.column("place_step").to_numpy().cumsum().tolist() for b in pa.ipc.open_stream(file)
        ]
    assert places == [[1, 3, 4], [0]]
    found = journaled(tmp_path, 5)
    assert found["outcome"].tolist() == [0, 0, 3, 1, 0]
    assert found["retries"].tolist() == [2, 0, 0, 1, 0]
    assert found["completed_ns"].tolist() == [5, 15, -1, -1, 45]
    assert found["ready_ns"].tolist() == [0, 1, 0, 3, 4]
    # A kill in the middle of a batch costs that batch.
    whole = (tmp_path / PARTIAL_OPS_FILE).read_bytes()
    (tmp_path / PARTIAL_OPS_FILE).write_bytes(whole[:-20])
    assert journaled(tmp_path, 5)["outcome"].tolist() in ([0, 0, 3, 1, 0], [3, 0, 3, 1, 0])
    (tmp_path / PARTIAL_OPS_FILE).write_bytes(whole[: len(whole) // 2])
    assert journaled(tmp_path, 5)["outcome"].tolist() in ([3, 0, 3, 1, 0], [3, 3, 3, 3, 3])
    with unrecovered(tmp_path) as known:
        assert known == begun


def test_two_runs_cannot_write_to_one_directory(tmp_path: Path) -> None:
    first = Journal(tmp_path, rows_of([0]), content())
    with pytest.raises(DeviceError, match="kvreplay"):
        Journal(tmp_path, rows_of([0]), content())
    first.close()


@pytest.mark.parametrize("step", [1, 100, 5000])
def test_a_ring_that_is_used_again_and_again_is_kept_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Rows end in any order within the ring; some never do, and are passed by."""
    monkeypatch.setattr(journals, "_BATCH_ROWS", 64)
    total, batch, pick = 5000, 100, random.Random(step)  # noqa: S311 - a test's
    rows, expected, listener = RowRing(total, MIN_ROWS), empty(total), Listener()
    kept = Journal(tmp_path, rows, content(), listener)
    waiting: list[int] = []
    for first in range(0, total, batch):
        low = max(0, first + batch - MIN_ROWS)
        # What is still under way so far back ends, or never does.
        for row in [row for row in waiting if row < low or pick.random() < 0.3]:
            waiting.remove(row)
            if row % 17 == 0:
                continue
            ended = rows.within(row, row + 1)
            ended["submitted_ns"] = 1000 * row + pick.randrange(500)
            ended["outcome"] = outcome = pick.choice([OK, ERROR, CORRUPT])
            ended["completed_ns"] = (
                -1 if outcome == ERROR else ended["submitted_ns"] + pick.randrange(9000)
            )
            ended["ready_ns"], ended["retries"] = pick.randrange(1000), pick.choice([0, 0, 3])
            for name in MEASURED:
                expected[name][row] = ended[name][0]
        kept.pass_by(low)
        for row in range(first, first + batch):
            laid = rows.within(row, row + 1)
            laid["trace_row"] = row
            begin(laid)
        rows.struct.laid, rows.struct.given = first + batch, low
        waiting += range(first, first + batch)
        pick.shuffle(waiting)
        kept.keep()
    kept.close()
    assert (tmp_path / PARTIAL_OPS_FILE).stat().st_size < 40 * total
    is_done, is_good = expected["outcome"] != SKIPPED, expected["outcome"] == OK
    took_ns = (expected["completed_ns"] - expected["submitted_ns"])[is_good]
    assert listener.totals[:4].tolist() == [
        is_good.sum(),
        (is_done & ~is_good).sum(),
        0,
        took_ns.sum(),
    ]
    assert listener.buckets[:2].tolist() == [(took_ns <= 4000).sum(), (took_ns > 4000).sum()]
    # Every other one was left out, three times.
    assert listener.counters.sampled <= 500 < 2 * listener.counters.sampled
    assert listener.response_ns[: listener.counters.sampled].sum() > 0
    assert listener.noted >= total // batch
    found, again = JournaledRecord(tmp_path, total), empty(total)
    assert found.reached == int(np.flatnonzero(is_done).max())
    for first in range(0, total, step):
        found.begin(first, again[first : first + step])
        # No more is held ahead than was under way at once.
        assert len(found._ahead) <= MIN_ROWS
    for name in MEASURED:
        assert np.array_equal(again[name], expected[name])
    assert (again["submitted_ns"][~is_done] == NONE).all()
