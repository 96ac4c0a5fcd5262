"""A plan that slides gives what a whole one does, and holds a window of rows."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import write_trace

from kvreplay.engine.job import Job
from kvreplay.engine.native_engine import EngineName, choose
from kvreplay.engine.setting import settle
from kvreplay.plan.contents import DataSource
from kvreplay.plan.replay_config import Config
from kvreplay.plan.window import Loader
from kvreplay.result.recording import RunPart
from kvreplay.result.run_tables import JournaledRecord
from kvreplay.run import feed as feeding
from kvreplay.run import replay as running
from kvreplay.run.feed import Feed
from kvreplay.run.recover import recover
from kvreplay.run.replay import Replay
from kvreplay.run.watch import Watch
from kvtrace.core import parquet_tables

if TYPE_CHECKING:
    from pathlib import Path

    from kvreplay.engine.setting import Setting

ROWS = 6000
WINDOW, BATCH = 1024, 128
PLANNED = (
    "trace_row",
    "due_ns",
    "op",
    "tier",
    "object_id",
    "offset_bytes",
    "length_bytes",
    "version",
    "request",
    "stage",
)


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let windows be so small that a short trace slides."""
    monkeypatch.setattr(parquet_tables, "BATCH_ROWS", BATCH)
    monkeypatch.setattr(feeding, "PART_ROWS", BATCH)
    defaults = Loader.begin.__kwdefaults__
    monkeypatch.setattr(Loader.begin, "__kwdefaults__", defaults | {"window": WINDOW})


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


def slid(
    trace: Path,
    folder: Path,
    queue_depth: int,
    speed: float | None,
    target: str,
    wanted: EngineName = EngineName.THREADS,
) -> tuple[list[Any], Any, int]:
    """Replay `trace` by the engine alone.

    Return its parts, how it went and all rows, and the most rows in memory.
    """
    config = Config(tiers={"nvme": target}, queue_depth=queue_depth, speed=speed)
    setting = settle(config, trace, folder / "run", [])
    loader = setting.window.loader
    rows = loader.begin(setting.pacer)
    parts: list[Any] = []
    most = [0]

    def hand(part: RunPart) -> None:
        assert part.first == sum(len(before) for before in parts)
        parts.append(part.rows.copy())
        most[0] = max(most[0], loader.laid - part.first)

    feed = Feed(loader, hand)
    feed.fill()
    for tier in setting.tiers:
        if tier is not None:
            tier.open(1 << 30)
    engine = choose(wanted, setting.tiers, queue_depth, 1 << 20)
    job = Job(
        rows,
        setting.tiers,
        DataSource(0),
        is_open_loop=speed is not None,
        feed=feed,
        stall_ns=20 * 10**9,
    )
    driven = engine.drive(job, lambda: None, lambda _: None)
    feed.finish(len(rows))
    return parts, (driven, np.concatenate(parts)), most[0]


@pytest.mark.parametrize(
    ("speed", "is_since_known"),
    [(None, False), (1.0, True), (3.0, True)],
)
@pytest.mark.usefixtures("small_windows")
def test_rows_are_handed_on_in_order_after_those_before_them(
    tmp_path: Path, speed: float | None, *, is_since_known: bool
) -> None:
    trace = trace_of(tmp_path, 1)
    # Of several that end at once, it is not the last whose time counts, but the one that is told
    # last.
    depth = 8 if speed is None else 1
    parts, (driven, found), most = slid(
        trace, tmp_path, depth, speed, "sim:bandwidth=100GB,latency=20us"
    )
    assert (driven.completed, driven.stalled, len(found)) == (ROWS, None, ROWS)
    assert found["trace_row"].tolist() == list(range(ROWS))
    assert (found["outcome"] == 0).all()
    assert len(parts) > ROWS // WINDOW
    assert most <= WINDOW
    table = pq.read_table(trace).to_pydict()
    whole = settle(Config(tiers={"nvme": "null"}, speed=speed), trace, tmp_path / "w", [])
    rows = whole.window.loader.begin(whole.pacer, window=1 << 13)
    whole.window.loader.load()
    for name in PLANNED:
        assert np.array_equal(found[name], rows.all[name]), name
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
        if is_since_known:
            due = int(found["due_ns"][row])
            assert max(due, int(found["ready_ns"][row])) == max(due, ready), row


def sliding_setting(folder: Path) -> Setting:
    """Return the setting of a replay whose plan slides."""
    return settle(Config(tiers={"nvme": "null"}), trace_of(folder, 1), folder / "run", [])


@pytest.mark.usefixtures("small_windows")
def test_a_sliding_plan_knows_its_kinds_before_its_rows(
    tmp_path: Path,
) -> None:
    setting = sliding_setting(tmp_path)
    assert setting.window.loader.laid == 0
    watch = Watch(setting, is_open_loop=False)
    assert set(watch.snapshot()) == {("nvme", op) for op in ("read", "write", "delete")}


@pytest.mark.usefixtures("small_windows")
def test_what_is_over_is_handed_on_some_rows_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeding, "PART_ROWS", BATCH // 2)
    parts, (_, found), _ = slid(trace_of(tmp_path, 1), tmp_path, 8, None, "null")
    assert max(len(part) for part in parts) <= BATCH // 2
    assert found["trace_row"].tolist() == list(range(ROWS))


@pytest.mark.full
def test_virtual_time_does_not_depend_on_when_rows_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write takes so long that all rows behind it fill the window.

    Of those behind these some might go meanwhile.
    """
    monkeypatch.setattr(feeding, "PART_ROWS", 1 << 13)
    monkeypatch.setattr(
        Loader.begin, "__kwdefaults__", Loader.begin.__kwdefaults__ | {"window": 1 << 14}
    )
    slow, free = 15_000, 24_700
    rows: list[Any] = [(0, "read", 2, "load", at, 0, 4096, None, None, 0) for at in range(30_000)]
    rows[slow] = (0, "write", 2, "store", slow, 0, 10**9, 1, 0, 0)
    rows[slow + 1 : free] = [
        (0, "read", 2, "load", at, 0, 4096, 1, 1, 0) for at in range(slow + 1, free)
    ]
    trace = write_trace(tmp_path / "t.parquet", rows)
    # It looks late, and as soon as there is a part.
    monkeypatch.setattr(feeding, "_PAUSE_S", 0.1)
    late, give = slid(trace, tmp_path, 8, None, "sim:bandwidth=1GB", EngineName.AUTO)[1], Feed._give
    monkeypatch.setattr(
        Feed, "_give", lambda feed, until, least: give(feed, min(until, feed._given + least), least)
    )
    soon = slid(trace, tmp_path, 8, None, "sim:bandwidth=1GB", EngineName.AUTO)[1]
    assert late[0].completed == soon[0].completed == len(rows)
    assert np.array_equal(late[1]["completed_ns"], soon[1]["completed_ns"])


@pytest.mark.usefixtures("small_windows")
def test_a_long_run_that_was_cut_off_is_recovered_in_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = trace_of(tmp_path, 1)

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as broken:
        broken.setattr(running, "write_down", fail)
        with pytest.raises(ZeroDivisionError):
            running.replay(
                Replay(Config(tiers={"nvme": "null"}, speed=1000.0), trace, tmp_path / "run", [])
            )
    ahead: list[int] = []
    begin = JournaledRecord.begin

    def noted(self: JournaledRecord, first: int, rows: Any) -> None:
        begin(self, first, rows)
        ahead.append(len(rows))

    monkeypatch.setattr(JournaledRecord, "begin", noted)
    found = recover(tmp_path / "run")
    assert (found.summary.operations, found.summary.not_reached) == (ROWS, 0)
    assert sum(ahead) == ROWS
    assert max(ahead) <= WINDOW
    assert len(ahead) >= ROWS // WINDOW
    ops = pq.read_table(tmp_path / "run" / "ops.parquet").to_pydict()
    assert ops["row"] == list(range(ROWS))
    assert set(ops["outcome"]) == {"ok"}
    assert all(
        done >= sent >= 0
        for sent, done in zip(ops["submitted_ns"], ops["completed_ns"], strict=True)
    )
