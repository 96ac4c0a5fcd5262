"""A plan that slides gives what a whole one does, and holds a window of rows."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import write_trace
from run_files import run_file, summary

from kvreplay.config.config import Config
from kvreplay.config.setting import settle
from kvreplay.data.generate import DataSource
from kvreplay.engine.choose import choose
from kvreplay.engine.job import Job, Record
from kvreplay.engine.sliding import slider as sliding
from kvreplay.engine.sliding.slider import Slider
from kvreplay.plan import loader as loading
from kvreplay.result import journal as journals
from kvreplay.result.journal import Journal, JournaledRecord
from kvreplay.result.part import RunPart
from kvreplay.run import run as running
from kvreplay.run.recover import recover
from kvreplay.run.watching.watch import Watch
from kvtrace.core import parquet
from kvtrace.core.run.run_file import PARTIAL_OPS_FILE, PartialRunFile, RunBegun, Running

if TYPE_CHECKING:
    from pathlib import Path

    from kvreplay.config.setting import Setting

ROWS = 6000
WINDOW, BATCH = 1024, 128
LEAST_COLUMNS = ("row", "ts_ns", "op", "tier", "object_id", "offset", "length", "version")


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let windows be so small that a short trace slides."""
    monkeypatch.setattr(parquet, "BATCH_ROWS", BATCH)
    for module in (loading, sliding):
        monkeypatch.setattr(module, "WINDOW_ROWS", WINDOW)
        monkeypatch.setattr(module, "BATCH_ROWS", BATCH)
    monkeypatch.setattr(sliding, "AHEAD_ROWS", WINDOW // 2)


def trace_of(path: Path, seed: int) -> Path:
    """Write rows of all kinds: requests with stages, objects that come and go, near and far."""
    pick = random.Random(seed)  # noqa: S311 - a test's
    rows: list[Any] = []
    live: set[int] = set()
    stage_of: dict[int, int] = {}
    for at in range(ROWS):
        obj = pick.randrange(40) if pick.random() < 0.5 else at // 50 % 60 + 40
        op = "write" if obj not in live else pick.choice(["read", "read", "write", "delete"])
        (live.discard if op == "delete" else live.add)(obj)
        request = pick.randrange(20) if pick.random() < 0.1 else 20 + at // 8
        stage_of[request] = stage = stage_of.get(request, 0) + (pick.random() < 0.3)
        phase = {"read": "load", "write": "store", "delete": "evict"}[op]
        rows.append((at * 1000, op, 2, phase, obj, 0, 4096, request, stage, 0))
    return write_trace(path / "t.parquet", rows)


def slid(trace: Path, folder: Path, queue_depth: int, speed: float | None, target: str) -> tuple[list[Any], Any, int]:
    """Replay `trace` by the engine alone; return its parts put together, how it went, and the most rows in memory."""
    config = Config(tiers={"nvme": target}, queue_depth=queue_depth, speed=speed)
    setting = settle(config, trace, folder / "run", [])
    loader = setting.window.laid_by()
    due_ns = setting.window.paced(setting.pacer)
    loader.load(sliding.AHEAD_ROWS)
    record = Record.empty(loader.rows, is_open_loop=due_ns is not None, laid=loader.laid)
    parts: list[dict[str, Any]] = []
    most = [0]

    def hand(first: int, last: int) -> None:
        assert first == sum(len(part["row"]) for part in parts)
        part = RunPart(0, loader.plan, record, due_ns).within(first, last)
        plan, measured = part.plan, part.record
        found = {name: getattr(plan, name).copy() for name in LEAST_COLUMNS}
        found |= {name: getattr(measured, name).copy() for name in ("submitted_ns", "completed_ns", "outcome")}
        if due_ns is not None:
            found |= {"due_ns": due_ns[first:last].copy(), "ready_ns": measured.ready_ns.copy()}
        parts.append(found)
        most[0] = max(most[0], loader.laid - first)

    slider = Slider(loader, record, hand, is_kept=False)
    for tier in setting.tiers:
        if tier is not None:
            tier.open(1 << 30)
    engine = choose("threads", setting.tiers, queue_depth, 1 << 20, is_growing=False).engine
    data = DataSource.of(0)
    job = Job(loader.plan, due_ns, setting.tiers, record, data.fill, slider=slider)
    driven = engine.drive(job, lambda: None, lambda _: None)
    slider.finish(loader.rows)
    together = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return parts, (driven, together), most[0]


@pytest.mark.parametrize("speed", [None, 1.0, 3.0])
@pytest.mark.usefixtures("small_windows")
def test_rows_are_handed_on_in_their_order_as_they_end_and_each_waits_for_those_before_it(
    tmp_path: Path, speed: float | None
) -> None:
    trace = trace_of(tmp_path, 1)
    # Of several that end at once, it is not the last whose time counts, but the one that is told last.
    depth = 8 if speed is None else 1
    parts, (driven, found), most = slid(trace, tmp_path, depth, speed, "sim:bandwidth=100GB,latency=20us")
    assert (driven.completed, len(found["row"])) == (ROWS, ROWS)
    assert found["row"].tolist() == list(range(ROWS))
    assert (found["outcome"] == 0).all()
    assert len(parts) > ROWS // WINDOW
    assert most <= WINDOW + BATCH
    table = pq.read_table(trace).to_pydict()
    whole = settle(Config(tiers={"nvme": "null"}), trace, tmp_path / "w", []).window.laid_by()
    whole.load()
    for name in LEAST_COLUMNS:
        assert np.array_equal(found[name], getattr(whole.plan, name)), name
    # By the trace itself: who waits for whom, and since when each could have gone.
    last_of: dict[Any, list[int]] = {}
    before_of: dict[Any, list[int]] = {}
    label_of: dict[Any, Any] = {}
    for row in range(ROWS):
        ready = 0
        label = 0 if table["op"][row] == "read" else -1 - row
        for key, mark in (
            (("object", table["object_id"][row]), label),
            (("request", table["request_id"][row]), table["stage"][row]),
        ):
            if label_of.get(key) != mark:
                before_of[key], last_of[key], label_of[key] = last_of.get(key, []), [], mark
            last_of[key].append(row)
            for before in before_of[key]:
                assert found["completed_ns"][before] <= found["submitted_ns"][row], (row, before)
                ready = max(ready, int(found["completed_ns"][before]))
        if speed is not None:
            due = int(found["due_ns"][row])
            assert max(due, int(found["ready_ns"][row])) == max(due, ready), row


def sliding_setting(folder: Path) -> Setting:
    """Return the setting of a replay whose plan slides."""
    return settle(Config(tiers={"nvme": "null"}), trace_of(folder, 1), folder / "run", [])


@pytest.mark.usefixtures("small_windows")
def test_who_watches_a_plan_that_slides_knows_its_kinds_of_operations_before_its_rows_are_there(tmp_path: Path) -> None:
    setting = sliding_setting(tmp_path)
    loader = setting.window.laid_by()
    assert loader.laid == 0
    watch = Watch(setting, Record.empty(loader.rows, is_open_loop=False, laid=0), None)
    assert set(watch.totals) == {("nvme", op) for op in ("read", "write", "delete")}


@pytest.mark.usefixtures("small_windows")
def test_what_is_over_is_handed_on_some_rows_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sliding, "PART_ROWS", BATCH // 2)
    parts, (_, found), _ = slid(trace_of(tmp_path, 1), tmp_path, 8, None, "null")
    assert max(len(part["row"]) for part in parts) <= BATCH // 2
    assert found["row"].tolist() == list(range(ROWS))


@pytest.mark.parametrize("step", [1, 100, ROWS])
def test_a_journal_is_told_as_rows_are_laid_with_no_more_ahead_than_it_had_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr(journals, "_PERIOD_S", 3600.0)
    pick = random.Random(step)  # noqa: S311 - a test's
    record = Record.empty(ROWS, is_open_loop=True, laid=0)
    waiting: list[int] = []
    known = {name: getattr(run_file(summary([])), name) for name in RunBegun.__struct_fields__}
    kept = Journal(tmp_path, record, PartialRunFile(**known, running=Running("/trace")))
    for first in range(0, ROWS, BATCH):
        record.begin(first, min(first + BATCH, ROWS))
        waiting += range(first, record.begun)
        pick.shuffle(waiting)
        # Some are never done, others after many that follow them, within a window.
        late = [row for row in waiting if row % 17 and (row + WINDOW < record.begun or pick.random() < 0.7)]
        waiting = [row for row in waiting if row % 17 and row not in set(late)]
        for row in late:
            record.submitted_ns[row], record.outcome[row] = 1000 * row + pick.randrange(500), pick.choice([0, 1])
            record.completed_ns[row] = -1 if record.outcome[row] else record.submitted_ns[row] + pick.randrange(9000)
            record.ready_ns[row] = pick.randrange(1000)
        kept.keep()
    kept.close()
    assert (tmp_path / PARTIAL_OPS_FILE).stat().st_size < 29 * ROWS
    found = JournaledRecord(tmp_path, ROWS, is_open_loop=True)
    assert found.reached == int(np.flatnonzero(record.submitted_ns >= 0).max())
    for first in range(0, ROWS, step):
        found.begin(first, first + step)
        here = slice(first, first + step)
        for one, other in zip(record.columns(), found.columns(), strict=True):
            assert np.array_equal(one[here], other[here])
        assert found.record.begun <= min(first + step + WINDOW + 2 * BATCH, ROWS)


@pytest.mark.usefixtures("small_windows")
def test_a_long_run_that_was_cut_off_is_recovered_in_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = trace_of(tmp_path, 1)

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(running, "write_down", fail)
    with pytest.raises(ZeroDivisionError):
        running.replay(Config(tiers={"nvme": "null"}, speed=1000.0), trace, tmp_path / "run", [])
    ahead: list[int] = []
    begin = JournaledRecord.begin

    def noted(self: JournaledRecord, first: int, last: int) -> None:
        begin(self, first, last)
        ahead.append(last - first)

    monkeypatch.setattr(JournaledRecord, "begin", noted)
    found = recover(tmp_path / "run")
    assert (found.summary.operations, found.summary.not_reached) == (ROWS, 0)
    assert max(ahead) == BATCH
    assert len(ahead) >= ROWS // BATCH
    ops = pq.read_table(tmp_path / "run" / "ops.parquet").to_pydict()
    assert ops["row"] == list(range(ROWS))
    assert set(ops["outcome"]) == {"ok"}
    assert all(done >= sent >= 0 for sent, done in zip(ops["submitted_ns"], ops["completed_ns"], strict=True))
