"""--duration.

A run as long as the clock says; what a repeat does with objects, requests and times.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import run_cli, write_trace
from msgspec import structs
from phrases import shows
from waiting import rows_in, wait_for

from kvreplay.engine.setting import settle
from kvreplay.plan.pacing import Repeated
from kvreplay.plan.replay_config import Config, PartitionBy
from kvreplay.ranks.partition import PartitionOptions, write_part
from kvreplay.result.summarize import RunResults, repeated
from kvreplay.run.replay import Replay, replay
from kvtrace.core.errors import ConfigError
from kvtrace.core.limit import Limit
from kvtrace.core.run.run_file import PARTIAL_OPS_FILE
from kvtrace.core.schema import TRACE
from kvtrace.core.tables import open_table

if TYPE_CHECKING:
    from pathlib import Path

MS = 10**6


def row(
    ts_ms: float, op: str, obj: int, *, request: int | None = None, stage: int | None = None
) -> Any:
    return (
        int(ts_ms * MS),
        op,
        2,
        "load" if op == "read" else "store",
        obj,
        0,
        4096,
        request,
        stage if request is None else stage or 0,
        0,
    )


ROWS = [
    row(0, "write", 1, request=7),
    row(2, "read", 1, request=7, stage=1),
    # 9 lies there before: it is read, deleted, written, and deleted at last.
    row(4, "read", 9),
    row(4, "delete", 9),
    row(5, "write", 9),
    row(6, "delete", 9),
    row(8, "delete", 1),
]
PERIOD_MS = 8 + (3 * 2**2 + 2 * 1**2) / 8
"""The last row, and the gap in which a moment lies on average."""


def planned(tmp_path: Path, **config: Any) -> Any:
    trace = write_trace(tmp_path / "t.parquet", ROWS)
    (tmp_path / "d").mkdir(exist_ok=True)
    return settle(
        Config(tiers={"nvme": str(tmp_path / "d")}, **config), trace, tmp_path / "run", []
    )


def laid(setting: Any) -> Any:
    """Return the rows of the plan."""
    loader = setting.window.loader
    rows = loader.begin(setting.pacer)
    loader.load()
    return rows.all


def test_a_closed_loop_on_a_model_is_planned_for_its_rate(
    tmp_path: Path,
) -> None:
    trace = write_trace(tmp_path / "t.parquet", ROWS)
    rows = {}
    for target in (
        "sim:bandwidth=1MB,latency=10us",
        "sim:bandwidth=50GB,latency=10ms,concurrency=1",
        "null",
    ):
        config = Config(tiers={"nvme": target}, runtime="1s")
        rows[target] = settle(config, trace, tmp_path / "run", []).window.rows // len(ROWS)
    # Two reads, and two writes beside them, of 4 KiB each a repeat: 8.192 ms, or two latencies.
    assert list(rows.values())[:2] == [123, 51]
    assert rows["null"] > 100_000


def test_an_open_loop_is_repeated_up_to_the_time_and_cut_there(tmp_path: Path) -> None:
    setting = planned(tmp_path, speed=1.0, runtime="25ms")
    plan = laid(setting)
    # Row 5 would leave the next repeat nothing to read; it stays out of each. 19.5 + 5 ms is the
    # last row in time.
    assert plan["trace_row"].tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 13, 14, 15, 16, 17, 18]
    expected = [
        (repeat * PERIOD_MS + ROWS[at][0] / MS) for repeat in range(3) for at in (0, 1, 2, 3, 4, 6)
    ][:-1]
    assert plan["due_ns"] / MS == pytest.approx(np.array(expected), abs=1e-4)
    assert plan["object_id"].tolist() == [1, 1, 9, 9, 9, 1] * 2 + [1, 1, 9, 9, 9]
    # What a repeat writes is a new version, and only what the first needs is populated.
    written = [
        at + 1 for at in np.flatnonzero((plan["object_id"] == 9) & (plan["op"] == 1)).tolist()
    ]
    assert plan["version"][plan["object_id"] == 9].tolist() == [
        0,
        0,
        written[0],
        0,
        0,
        written[1],
        0,
        0,
        written[2],
    ]
    assert setting.window.residency.populate_object.tolist() == [9]
    assert (setting.window.is_whole, setting.rows_once) == (False, 7)
    # Requests of a repeat are its own: stage 1 of the second waits for stage 0 of the second.
    of = [(plan["request"][at].item(), plan["stage"][at].item()) for at in (0, 1, 6, 7, 12, 13)]
    assert [stage for _, stage in of] == [0, 1] * 3
    assert [of[at][0] == of[at + 1][0] >= 0 for at in (0, 2, 4)] == [True] * 3
    assert len({request for request, _ in of}) == 3
    cut = planned(tmp_path, speed=2.0, runtime="2ms")
    assert laid(cut)["trace_row"].tolist() == [0, 1]
    with pytest.raises(ConfigError, match="--duration 0s:"):
        planned(tmp_path, runtime="0s")


@pytest.mark.parametrize("by", [None, PartitionBy.OBJECT])
def test_a_trace_in_bursts_is_repeated_one_pause_after_its_last(
    tmp_path: Path, by: PartitionBy | None
) -> None:
    # Three bursts of three rows, 20 s apart, of which each lasts 2 ms.
    rows = [row(start + at, "write", at) for start in (5_000, 25_000, 45_000) for at in range(3)]
    trace = write_trace(tmp_path / "t.parquet", rows)
    count = 9
    if by is not None:
        part = write_part(
            trace, PartitionOptions(by, 2, Limit(), frozenset((2,))), 1, tmp_path / "part.parquet"
        )
        trace, count = part.path, part.note.rows[1]
    repeated = Repeated(open_table(trace, TRACE), count, 2)
    pauses, within = 2 * 19_998**2, 6 * 1**2
    # It was 5.6 s after the last.
    assert repeated.period_ns == int((45_002 + (pauses + within) / 40_002) * MS)


class Later:
    """Other ranks, with which a run begins half a second after it could."""

    def __init__(self, reason: str | None = None) -> None:
        self.reason = reason

    def ready(self) -> None:
        pass

    def agree(self, soonest_ns: int) -> int:
        return soonest_ns + 500 * MS

    def begun(self) -> None:
        pass


@pytest.mark.parametrize("speed", [None, 1.0])
def test_the_clock_or_a_signal_ends_a_run_after_its_start(
    tmp_path: Path, speed: float | None
) -> None:
    trace = write_trace(tmp_path / "t.parquet", ROWS)
    config = Config(tiers={"nvme": "ram"}, runtime="300ms", speed=speed)
    finished = replay(Replay(config, trace, tmp_path / "run", []), together=Later())
    assert (finished.run.status, finished.error) == ("complete", None)
    # An open loop has nothing to do after its last due time.
    least_ms = 300 if speed is None else 300 - PERIOD_MS
    # Counted from when it could have begun, it would be 800 ms at least.
    assert least_ms * MS <= (finished.summary.wall_ns or 0) < 700 * MS
    finished = replay(Replay(config, trace, tmp_path / "signal", []), together=Later("SIGTERM"))
    assert str(finished.error).startswith("interrupted by SIGTERM")


def test_a_run_of_half_a_second_repeats_its_trace(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.parquet", ROWS)
    config = Config(
        tiers={"nvme": "sim:bandwidth=100GB,latency=5ms"}, runtime="500ms", queue_depth=2
    )
    finished = replay(Replay(config, trace, tmp_path / "run", []))
    run, summary = finished.run, finished.summary
    assert (run.status, finished.error, summary.errors) == ("complete", None, 0)
    # Of two objects one may be some repeats ahead of the other; what was planned beyond both was
    # not missed.
    assert (summary.not_reached or 0) < run.window.rows / 2
    assert run.window.planned_repeats > 10 * run.window.repeats
    assert (summary.wall_ns or 0) >= 500 * MS
    assert run.window.runtime_ns == 500 * MS
    assert run.window.rows_once == 7
    assert run.window.repeats == run.window.rows / 7
    assert run.window.repeats > 2
    ops = pq.read_table(tmp_path / "run" / "ops.parquet").to_pydict()
    # Each repeat replays the same rows of the trace.
    assert ops["row"] == [row % 7 for row in range(run.window.rows)]
    assert [ops["object_id"][at] for at in range(14)] == [r[4] for r in ROWS] * 2
    assert [ops["request_id"][at] for at in (0, 1, 7, 8)] == [7, 7, 15, 15]
    skipped = {at for at, outcome in enumerate(ops["outcome"]) if outcome == "skipped"}
    left_out = {at for at in range(run.window.rows) if at % 7 == 5}
    assert skipped >= left_out
    assert len(skipped - left_out) == (summary.not_reached or 0)
    # Of seven rows six go each time.
    assert f"the trace {(len(ops['row']) - len(skipped)) / 6:.3g} times" in summary.verdict
    assert (
        run.window.span_ns
        == (run.window.rows - 1) // 7 * int(PERIOD_MS * MS) + ROWS[(run.window.rows - 1) % 7][0]
    )
    assert json.loads((tmp_path / "run" / "run.json").read_text())["config"]["runtime"] == "500ms"
    served = pq.read_table(tmp_path / "run" / "requests.parquet").to_pydict()
    assert served["request_id"][:2] == [7, 15]


@pytest.mark.full
@pytest.mark.parametrize(
    ("how", "length", "ended"),
    [
        (["--queue-depth", "2", "--duration", "30s"], 1 << 20, signal.SIGKILL),
        (["--queue-depth", "2", "--duration", "30s"], 1 << 20, signal.SIGTERM),
        (["--speed", "1", "--duration", "100s"], 4096, signal.SIGKILL),
    ],
)
def test_a_run_that_is_cut_off_counts_its_repetitions(
    tmp_path: Path, how: list[str], length: int, ended: signal.Signals
) -> None:
    write_trace(tmp_path / "t.parquet", [(*r[:6], length, *r[7:]) for r in ROWS])
    (tmp_path / "d").mkdir()
    command = [
        sys.executable,
        "-m",
        "kvreplay.cli",
        "run",
        "t.parquet",
        "--tier",
        "nvme=d",
        *how,
        "-o",
        "run",
    ]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    journal = tmp_path / "run" / PARTIAL_OPS_FILE
    wait_for(process, lambda: rows_in(journal) > 14, "the journal has few rows")
    process.send_signal(ended)
    shown, _ = process.communicate()
    if ended == signal.SIGKILL:
        shown = run_cli(
            "kvreplay", "recover", tmp_path / "run", "--trace", tmp_path / "t.parquet"
        ).stdout
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    ops = pq.read_table(tmp_path / "run" / "ops.parquet").to_pydict()
    sent = [row for row, at in zip(ops["row"], ops["submitted_ns"], strict=True) if at is not None]
    summary, window = run["summary"], run["window"]
    assert (run["status"], window["runtime_ns"], len(sent) > 7) == (
        "partial",
        int(how[-1][:-1]) * 1000 * MS,
        True,
    )
    done = sum(outcome != "skipped" for outcome in ops["outcome"])
    assert f"the trace {done / 6:.3g} times" in summary["verdict"]
    assert f"{how[-1][:-1]}" in shown
    # What a closed loop provided for is nothing that it missed; what an open loop did not come to
    # was due.
    if "--speed" in how:
        assert window["planned_repeats"] >= window["repeats"] > 2 * len(sent) / 6
        assert summary["not_reached"] > window["planned_rows"] / 2
    else:
        # The window ends with the last row that was sent. Repeats name the same rows again, of
        # which those of the storage tier have a row in ops.
        nvme = 2
        planned = [row % 7 for row in range(window["rows"]) if ROWS[row % 7][2] == nvme]
        assert ops["row"] == planned
        assert (ops["row"][-1], window["repeats"]) == (sent[-1], window["rows"] / 7)
        assert (window["rows"] - 1) % 7 == sent[-1]
        # In flight at the end, or not yet in the journal: more on a busy machine.
        assert (summary["not_reached"] or 0) < max(100, window["planned_rows"] / 10)
        assert window["planned_repeats"] > 2 * window["repeats"]


def test_the_command_says_how_often(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.parquet", ROWS)
    how = ["--tier", "nvme=sim:bandwidth=10GB,latency=1ms", "--speed", "1", "--duration", "63ms"]
    # What is due as the time is over is not reached. Who falls behind goes on with rows of the last
    # repeat, while those of earlier ones still wait: what counts is how many were sent.
    for latency, least in (("1ms", 0), ("9ms", 10)):
        how = ["--tier", f"nvme=sim:bandwidth=10GB,latency={latency}", *how[2:]]
        shown = run_cli("kvreplay", "run", trace, *how, "--force", "-o", tmp_path / "run").stdout
        run = json.loads((tmp_path / "run" / "run.json").read_text())
        missed, planned = run["summary"]["not_reached"], run["window"]["planned_rows"]
        assert missed > least
        times = f"the trace {(planned - missed) / 6:.3g} times"
        assert f"; {times}" in run["summary"]["verdict"]
        assert f"note: replayed {times}" in shown
        part = f"{planned - missed} of {planned} operations"
        assert re.search(rf"63\.0 ms\): {part}, [\d.]+ ms", shown)
    # Of 40 operations due in 63 ms what was not reached was asked for, too, however far some
    # requests came.
    asked, late_ns = run["summary"]["judgement"]["tiers"][0], run["summary"]["pace"]["end_late_ns"]
    assert asked["asked_operations_per_s"] == pytest.approx(
        planned / (45 * PERIOD_MS / 7 / 1e3), rel=0.1
    )
    assert asked["reached_operations_per_s"] == pytest.approx((planned - missed) / 0.063, rel=0.25)
    assert (run["summary"]["verdict"].startswith("FELL BEHIND: "), late_ns > 10 * MS) == (
        True,
        True,
    )
    bad = run_cli(
        "kvreplay", "run", trace, *how[:2], "--duration", "soon", "-o", tmp_path / "x", check=False
    )
    assert bad.returncode == 2


def test_a_run_that_is_cut_has_the_figures_of_what_it_came_to(tmp_path: Path) -> None:
    # Every other row is on memory, which is not replayed; the others take 10 ms each, one at a
    # time.
    rows = [
        (*row(at * 2, "write", at, request=at)[:2], 2 - at % 2, *row(at, "write", at)[3:])
        for at in range(1000)
    ]
    trace = write_trace(tmp_path / "t.parquet", rows)
    config = Config(
        tiers={"nvme": "sim:bandwidth=100GB,latency=10ms"},
        runtime="200ms",
        queue_depth=1,
        window="from:0s+1s",
    )
    finished = replay(Replay(config, trace, tmp_path / "run", []))
    run, summary = finished.run, finished.summary
    assert (summary.operations, summary.not_reached) in ((20, 0), (20, 1), (21, 0))
    last = run.window.rows - 1
    assert (run.window.span_ns, run.window.is_whole_trace) == (last * 2 * MS, False)
    assert summary.skipped_rows == {"cpu": run.window.rows // 2}
    assert run.window.rows < 45
    assert "window from:0s+1s" in summary.verdict


def test_repeats_are_done_only_where_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = write_trace(tmp_path / "t.parquet", ROWS)
    summary = RunResults.summary
    # As a rank that began late and was ended with the others.
    monkeypatch.setattr(
        RunResults,
        "summary",
        lambda *found, **more: structs.replace(summary(*found, **more), wall_ns=MS),
    )
    for repeats, is_said in ((1, True), (1 << 16, False)):
        monkeypatch.setattr(
            "kvreplay.engine.setting.repeats_of", lambda *_, repeats=repeats: repeats
        )
        config = Config(
            tiers={"nvme": "sim:bandwidth=100GB,latency=5ms"}, runtime="200ms", queue_depth=2
        )
        notes = replay(Replay(config, trace, tmp_path / f"run{repeats}", [])).run.notes
        assert any(shows(note, "ended before") for note in notes) is is_said


def test_repeats_of_an_instant_are_refused_in_an_open_loop(tmp_path: Path) -> None:
    # All due at 0, they would be 300 billion operations in a minute, which it would take days to
    # plan.
    trace = write_trace(tmp_path / "t.parquet", [row(0, "write", at) for at in range(5)])
    config = Config(tiers={"nvme": "ram"}, runtime="60s", speed=1.0)
    with pytest.raises(ConfigError, match="100,000,000 operations"):
        replay(Replay(config, trace, tmp_path / "run", []))


def test_the_time_of_many_repeats_of_a_day_does_not_overflow(tmp_path: Path) -> None:
    trace = write_trace(
        tmp_path / "t.parquet", [row(at * 8_640_000, "write", at) for at in range(11)]
    )
    found = replay(
        Replay(Config(tiers={"nvme": "ram"}, runtime="20ms"), trace, tmp_path / "run", [])
    ).run
    assert found.status == "complete"
    # A period is a day and a tenth: so many are less than 2^62 ns.
    assert Repeated(open_table(trace, TRACE), 11, 10**6).repeats == (1 << 62) // (95_040_000 * MS)


def test_a_part_of_a_trace_is_said_in_percent():
    assert [repeated("the trace", times) for times in (6.571, 1.0, 0.00154, 61_700_000.0)] == [
        "the trace 6.57 times", "the trace 1 times", "0.154 % of the trace", "the trace 61,700,000 times",
    ]  # fmt: skip
