"""Where a sweep ends and where its knee lies, by the stated rules."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from conftest import run_cli, write_trace
from phrases import shows

from kvreplay.experiments.load_sweep import (
    decided,
    describe_windows,
    is_saturated,
    knee,
    limit_of_closed,
    limit_of_open,
    next_value,
    progress_of,
    reached,
    sustained,
    sweep,
    to_repeat,
    with_users,
)
from kvreplay.experiments.load_sweep import (
    point as point_of,
)
from kvreplay.plan.replay_config import Config
from kvreplay.run.replay import FinishedRun, Interrupted, Replay, replay
from kvtrace.core.document.drawing import SUFFIXES, write_drawing
from kvtrace.core.document.picture import build_picture
from kvtrace.core.document.sweep_document import sweep_document
from kvtrace.core.errors import ConfigError
from kvtrace.core.limit import STEADIEST
from kvtrace.core.run.figures import Evidence, LimitCause, RunVerdict
from kvtrace.core.run.sweep_file import Axis, LoadSweep, SweepPoint
from kvtrace.core.schema import TRACE
from kvtrace.core.tables import open_table
from kvtrace.core.units import NS_PER_MS

if TYPE_CHECKING:
    from pathlib import Path


def points(rates: list[float | None], paces: list[bool | None] | None = None) -> list[SweepPoint]:
    return [
        SweepPoint(
            value=2.0**i,
            run="r",
            verdict="v",
            throughput_bytes_per_s=rate,
            operations_per_s=None,
            read_p99_ns=None,
            write_p99_ns=None,
            kept_pace=(paces or [None] * 9)[i],
            late_p99_ns=None,
        )
        for i, rate in enumerate(rates)
    ]


@pytest.mark.parametrize(
    ("rates", "is_full", "expected"),
    [
        # 90 % of 205 is 184.5: the third point, at 4. The last two gain less than 5 % over 200 and
        # 205.
        ([100, 150, 186, 200, 205, 190], True, 4),
        ([100, 200, 400], False, 4),
        # One step without gain is not enough, nor two with a rise between.
        ([100, 101], False, 1),
        ([100, 101, 120, 121], False, 4),
        ([100, 90, 80], True, 1),
        ([None, 0.0], False, None),
    ],
)
def test_the_knee_of_depths_is_where_most_is_reached(
    rates: list[float | None], is_full: bool, expected: float | None
) -> None:
    found = points(rates)
    assert is_saturated(Axis.QUEUE_DEPTH, found) == is_full
    assert knee(Axis.QUEUE_DEPTH, found) == expected


def test_the_knee_of_speeds_is_the_last_that_kept_pace() -> None:
    assert knee(Axis.SPEED, points([1, 1, 1], [True, True, False])) == 2
    assert is_saturated(Axis.SPEED, points([1, 1, 1], [True, True, False]))
    assert not is_saturated(Axis.SPEED, points([1, 1], [True, True]))
    assert knee(Axis.SPEED, points([1, 1], [False, True])) is None


def judged(cause: LimitCause | None, **known: Any) -> RunVerdict:
    evidence = Evidence(**{"queue_depth": 8, "blocked_share": 0.0, "starved_share": 0.0} | known)
    return RunVerdict(
        sentence="",
        has_reached=False,
        tier="nvme",
        cause=cause,
        reason=None,
        tiers=[],
        evidence=evidence,
    )


def test_a_sweep_of_depths_tells_the_drive_from_the_depth() -> None:
    found = [
        msgspec.structs.replace(p, read_p99_ns=10**6, judgement=judged(None, in_flight_mean=7.9))
        for p in points([50.0, 100.0, 101.0, 100.0])
    ]
    assert is_saturated(Axis.QUEUE_DEPTH, found)
    assert shows(
        reached(found, 2, is_saturated=True), "100 B/s … queue depth 2 … p99 1.00 ms … drive"
    )
    assert shows(reached(found[:2], 2, is_saturated=False), "saturate")
    assert shows(reached(found, None, is_saturated=True), "no knee")
    for other, expected in (
        (judged(LimitCause.COPY_THREADS), LimitCause.COPY_THREADS),
        # Depths of which little was in use, or with a busy submitter, tell nothing of a drive.
        (judged(None, in_flight_mean=2.0), None),
        (judged(None, in_flight_mean=7.9, submitter_busy_share=0.95), None),
        (judged(None), None),
        (None, None),
    ):
        last = [*found[:3], msgspec.structs.replace(found[3], judgement=other)]
        assert limit_of_closed(last, is_saturated=True) is expected


def row(i: int) -> Any:
    return (i * 100_000, "write", 1, "store", i, 0, 8192, None, None, 0)


def test_a_sweep_keeps_its_runs_and_says_its_rule(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.parquet", [row(i) for i in range(40)])
    arguments = ["sweep", trace, "--tier", "cpu=ram", "--queue-depths", "1,2", "-o", tmp_path / "s"]
    shown = run_cli("kvreplay", *arguments)
    assert shown.stdout.startswith("reaches ")
    assert shows(shown.stdout.splitlines()[0], "queue depth")
    assert "90% of" in shown.stdout
    found = json.loads(run_cli("kvreplay", *arguments, "--force", "--json").stdout)
    assert [(p["value"], p["run"]) for p in found["points"]] == [(1, "qd-1"), (2, "qd-2")]
    assert found["is_saturated"] is False
    depths = [
        json.loads((tmp_path / "s" / p["run"] / "run.json").read_text())["config"]["queue_depth"]
        for p in found["points"]
    ]
    assert depths == [1, 2]
    kept = json.loads((tmp_path / "s" / "sweep.json").read_text())
    assert (kept["program"], kept["axis"]) == ("kvreplay", "queue_depth")


@pytest.mark.full
def test_what_a_point_says_is_the_runs(tmp_path: Path) -> None:
    # Nothing is due in the first 100 ms: what a run waits for before anything is asked of it is no
    # time of it.
    trace = write_trace(
        tmp_path / "t.parquet", [(10**8 + (of := row(i))[0], *of[1:]) for i in range(40)]
    )
    found, error = sweep(
        Replay(Config(tiers={"cpu": "ram"}, is_buffered=True), trace, tmp_path / "s", []),
        Axis.SPEED,
        [0.5, 1e6],
    )
    assert error is None
    for point in found.points:
        summary = msgspec.json.decode((tmp_path / "s" / point.run / "run.json").read_bytes())[
            "summary"
        ]
        start_ns = summary["measured_from_ns"]
        assert start_ns >= 10**8 / point.value
        assert point.throughput_bytes_per_s == pytest.approx(
            40 * 8192 * 1e9 / (summary["wall_ns"] - start_ns)
        )
        assert point.kept_pace == summary["pace"]["kept_pace"]

    def cut_off(asked: Replay) -> FinishedRun:
        done = replay(asked)
        return (
            done
            if asked.config.speed == 1e6
            else dataclasses.replace(done, error=Interrupted("by SIGINT"))
        )

    asked = Replay(Config(tiers={"cpu": "ram"}, is_buffered=True), trace, tmp_path / "cut", [])
    found, error = sweep(asked, Axis.SPEED, [1e6], replaying=cut_off)
    assert (len(found.points), found.answer[:9], isinstance(error, Interrupted)) == (
        1,
        "PARTIAL: ",
        True,
    )


def test_loads_due_at_once_have_no_speed_and_few_users_no_rate(tmp_path: Path) -> None:
    # 20 writes of 8 KiB at once take 164 ms at 1 MB/s: late, but nobody asked for a rate.
    trace = write_trace(tmp_path / "t.parquet", [(5, *row(i)[1:]) for i in range(20)])
    asked = Replay(Config(tiers={"cpu": "sim:bandwidth=1MB"}, speed=1.0), trace, tmp_path / "s", [])
    summary = replay(replace(asked, output=tmp_path / "r")).summary
    assert (summary.pace.kept_pace, summary.pace.offered_per_s) == (False, None)
    assert point_of(1.0, "r", summary, axis=Axis.USERS).is_held
    # A speed that leaves no time between operations that had some is too much.
    assert not point_of(1e12, "r", summary).is_held
    found, error = sweep(asked, Axis.SPEED, [1, 2])
    assert shows(str(error), "speed-1: … queue_depths")
    assert (found.knee, found.points) == (None, [])


def test_loads_whose_windows_differ_say_so() -> None:
    cold, steady = points([1.0, 2.0, 3.0, 4.0]), "steady:60s"
    found = [*cold[:2], *(msgspec.structs.replace(point, window=steady) for point in cold[2:])]
    assert shows(describe_windows(Axis.USERS, found), "2 users, steady:60s")
    assert (describe_windows(Axis.USERS, cold), describe_windows(Axis.USERS, found[2:])) == ("", "")


def test_loads_start_empty_where_the_least_evicts_nothing(
    tmp_path: Path,
) -> None:
    windows = []

    def noted(asked: Replay) -> FinishedRun:
        windows.append(asked.config.window)
        return replay(asked)

    trace = write_trace(tmp_path / "t.parquet", [row(i) for i in range(40)])
    asked = Replay(
        Config(tiers={"cpu": "ram"}, is_buffered=True, window=STEADIEST), trace, tmp_path / "s", []
    )
    sweep(asked, Axis.SPEED, [1e6, 2e6], replaying=noted)
    assert (windows[0], set(windows[1:])) == (STEADIEST, {None})


def test_a_point_has_the_window_that_was_replayed(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.parquet", [row(i) for i in range(40)])
    config = Config(tiers={"cpu": "ram"}, is_buffered=True, window="from:0s+1h")
    found, _ = sweep(Replay(config, trace, tmp_path / "s", []), Axis.QUEUE_DEPTH, [1, 2])
    assert {point.window for point in found.points} == {"from:0s+1h"}


def test_values_that_do_not_rise_are_refused(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.parquet", [row(0)])
    for options, message in (
        (["--queue-depths", "4,2"], "--queue-depths 4,2:"),
        (["--queue-depths", "1,2.5"], "whole numbers"),
        (["--queue-depths", "4"], "--queue-depths 4:"),
        (["--speeds", "2,1"], "--speeds 2,1:"),
        (["--speeds", "a,b"], "commas"),
        (["--speeds", "1,2", "--queue-depths", "1,2"], "exclude"),
        (["--queue-depths", "1,4096"], "--queue-depth 4096: give 1 to 1024"),
    ):
        done = run_cli(
            "kvreplay",
            "sweep",
            trace,
            "--tier",
            "cpu=ram",
            *options,
            "-o",
            tmp_path / "s",
            check=False,
        )
        assert done.returncode == 2
        assert shows(done.stderr, message)
        assert not (tmp_path / "s").exists()
    with pytest.raises(ConfigError, match="no --tier given"):
        sweep(Replay(Config(tiers={}), trace, tmp_path / "s", []), Axis.SPEED, [1, 2])


def test_a_target_bounds_an_open_loop() -> None:
    paced = points([1, 1, 1], [True, True, True])
    within = [
        msgspec.structs.replace(p, is_within_target=held)
        for p, held in zip(paced, (True, True, False), strict=True)
    ]
    assert knee(Axis.USERS, within) == 2
    assert is_saturated(Axis.USERS, within)
    assert not is_saturated(Axis.USERS, within[:2])


@pytest.mark.full
def test_users_make_their_own_traces_and_the_knee_is_drawn(tmp_path: Path) -> None:
    trace = tmp_path / "t.parquet"
    run_cli(
        "kvtrace",
        "gen",
        "--users",
        "2",
        "--duration",
        "3s",
        "--model",
        "tiny-1b",
        "--seed",
        "7",
        "-o",
        trace,
    )
    arguments = [
        "sweep",
        trace,
        "--tier",
        "gpu=sim",
        "--users",
        "2,3",
        "--limit",
        "40",
        "-o",
        tmp_path / "s",
    ]
    shown = run_cli("kvreplay", *arguments, "--plot", tmp_path / "knee.svg").stdout
    assert shows(shown, "tier gpu … SIMULATED")
    made = open_table(tmp_path / "s" / "users-2.parquet", TRACE)
    # The command of the trace, with the users that it had: the same trace.
    assert made.meta.config["users"] == 2
    assert (tmp_path / "s" / "users-2.parquet").read_bytes() == trace.read_bytes()
    found = json.loads((tmp_path / "s" / "sweep.json").read_text())
    assert (2, "users-2") in [(p["value"], p["run"][:7]) for p in found["points"]]
    drawn = (tmp_path / "knee.svg").read_text()
    assert "<svg" in drawn
    assert "Date" not in drawn
    svg = (tmp_path / "knee.svg").read_bytes()
    again = sweep_document(
        msgspec.convert({k: found[k] for k in LoadSweep.__struct_fields__}, LoadSweep)
    )
    write_drawing(tmp_path / "again.svg", replace(again, name="Sweep of t.parquet"), ["kvreplay"])
    assert (tmp_path / "again.svg").read_bytes() == svg


def test_what_cannot_be_swept_is_refused(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.parquet", [row(0)])
    for options, message in (
        (["--users", "1,2"], "synthetic users"),
        (["--users", "1,2.5"], "--users 1,2.5: … 1"),
        (["--users", "nan"], "--users nan:"),
        (["--queue-depths", "1,1e309"], "--queue-depths 1,1e309:"),
        (["--read-p99", "5ms"], "--read-p99"),
        # It was ignored: depths of 1 to 128 were swept.
        (
            ["--queue-depth", "32"],
            "--queue-depth … --speeds … --users",
        ),
        (["--users", "1,2", "--speeds", "1,2"], "--speeds … --users"),
        (["--plot", tmp_path / "knee.gif"], "*.html, *.svg, *.png or *.pdf"),
    ):
        done = run_cli(
            "kvreplay",
            "sweep",
            trace,
            "--tier",
            "cpu=ram",
            *options,
            "-o",
            tmp_path / "s",
            check=False,
        )
        assert (done.returncode, shows(done.stderr, message)) == (2, True), done.stderr
        assert not (tmp_path / "s").exists()


def test_an_unwritable_plot_is_refused_before_measuring(
    tmp_path: Path,
) -> None:
    trace, to = write_trace(tmp_path / "t.parquet", [row(0)]), tmp_path / "absent" / "knee.svg"
    done = run_cli(
        "kvreplay", "sweep", trace, "--tier", "cpu=ram", "--plot", to, "-o", tmp_path / "s", check=False
    )  # fmt: skip
    assert shows(done.stderr, f"{to.parent}: … directory")
    assert (done.returncode, done.stdout, (tmp_path / "s").exists()) == (4, "", False)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["gen", "--users", "8", "--seed", "1"], ["gen", "--users", "9", "--seed", "1"]),
        (["gen", "--users=8", "--seed", "1"], ["gen", "--users=9", "--seed", "1"]),
        (["gen", "--seed", "1"], ["gen", "--seed", "1", "--users", "9"]),
    ],
)
def test_only_the_users_of_a_command_change(argv: list[str], expected: list[str]) -> None:
    assert with_users(argv, 9) == expected


def test_latencies_that_differ_much_are_drawn_too(tmp_path: Path) -> None:
    wide = [
        msgspec.structs.replace(p, read_p99_ns=10**6 * 5**i)
        for i, p in enumerate(points([1.0, 2.0, 3.0]))
    ]
    found = LoadSweep(axis=Axis.QUEUE_DEPTH, points=wide, knee=None, is_saturated=False, rule="")
    times, rates = map(build_picture, sweep_document(found).chapters[0].tables[0].charts)
    # 1 to 25 ms: a linear axis would have the first at the bottom.
    assert (times.y.is_log, times.y.unit, rates.y.is_log) == (True, "ms", False)
    for suffix in SUFFIXES:
        write_drawing(tmp_path / f"k{suffix}", sweep_document(found), ["kvreplay", "sweep"])
    starts = {".html": b"<!doctype html>", ".svg": b"<?xml", ".png": b"\x89PNG", ".pdf": b"%PDF"}
    assert all(
        (tmp_path / f"k{suffix}").read_bytes().startswith(starts[suffix]) for suffix in SUFFIXES
    )


def searched(axis: Axis, asked: list[float], limit: float) -> list[float]:
    """Return what a search tries if all up to `limit` is kept."""
    tried: list[SweepPoint] = []
    while (value := next_value(axis, asked, tried)) is not None:
        (point,) = points([1.0], [value <= limit])
        tried.append(msgspec.structs.replace(point, value=value))
    return [p.value for p in tried]


@pytest.mark.parametrize(
    ("axis", "asked", "limit", "expected"),
    [
        # The first that is lost ends the values asked for; then between it and the last kept.
        (Axis.SPEED, [1, 2, 4, 8], 3, [1, 2, 4, 2.83, 3.36, 3.08]),
        # All are lost: downward, then between.
        (Axis.SPEED, [1, 2], 0.3, [1, 0.5, 0.25, 0.354, 0.297, 0.324]),
        # All are kept: upward.
        (Axis.SPEED, [1, 2], 5, [1, 2, 4, 8, 5.66, 4.76, 5.19]),
        (Axis.SPEED, [1, 2], 1e9, [1, 2, 4, 8, 16, 32]),
        (Axis.SPEED, [1, 2], 0, [1, 0.5, 0.25, 0.125, 0.0625, 0.0312, 0.0156]),
        # Users are whole.
        (Axis.USERS, [8, 16], 3, [8, 4, 2, 3]),
        (Axis.USERS, [2, 3], 0, [2, 1]),
        # One is where a search begins: it finds the rest, however far away.
        (Axis.USERS, [1], 100, [1, 2, 4, 8, 16, 32, 64, 128, 90, 107, 98]),
        (Axis.USERS, [1], 0, [1]),
    ],
)
def test_an_open_loop_is_searched_both_ways(
    axis: Axis, asked: list[float], limit: float, expected: list[float]
) -> None:
    assert searched(axis, asked, limit) == expected


def test_a_search_ends_where_more_users_ask_no_more() -> None:
    asked = [100.0, 200.0, 390.0, 400.0, 380.0, 1000.0]
    found = [
        msgspec.structs.replace(p, asked_bytes_per_s=rate)
        for p, rate in zip(points([1.0] * 6, [True] * 6), asked, strict=True)
    ]
    assert [next_value(Axis.USERS, [1], found[:n]) for n in range(1, 6)] == [2, 4, 8, 16, None]
    assert is_saturated(Axis.USERS, found[:5])
    assert shows(
        sustained(Axis.USERS, found[:5], None), "380 B/s at 16 users, 400 B/s at 8 users … compute"
    )
    # Without rates, of a file's requests for one, nothing is said.
    blind = [msgspec.structs.replace(p, asked_bytes_per_s=None) for p in found]
    assert next_value(Axis.USERS, [1], blind) == 64


def test_a_delivered_load_is_sustained_despite_late_operations() -> None:
    (late,) = points([1.0], [False])
    late = msgspec.structs.replace(
        late, is_delivered=True, late_by_itself_fraction=0.31, read_p99_ns=10**6
    )
    assert late.is_held
    assert shows(sustained(Axis.USERS, [late], None), "p99 1.00 ms (replayer … 31.0 %")
    assert shows(progress_of(Axis.USERS, late, None), "sustained … p99 1.00 ms (replayer … 31.0 %")
    # What rounds to none is not said.
    assert all(
        shows(
            progress_of(
                Axis.USERS, msgspec.structs.replace(late, late_by_itself_fraction=share), None
            ),
            "sustained … p99 1.00 ms",
        )
        for share in (None, 0.0, 0.0009)
    )
    behind = msgspec.structs.replace(
        late, is_delivered=False, asked_bytes_per_s=1e9, late_by_itself_fraction=None
    )
    assert not behind.is_held
    assert shows(progress_of(Axis.USERS, behind, None), "falls behind … p99 1.00 ms, 1.00 GB/s")
    assert shows(
        sustained(Axis.USERS, [behind], None),
        "1 user: … falls behind … p99 1.00 ms; … not identified",
    )


def test_a_load_that_the_replayer_delayed_is_not_sustained() -> None:
    (late,) = points([1.0], [False])
    late = msgspec.structs.replace(
        late,
        is_delivered=True,
        is_delayed_by_replayer=True,
        late_by_itself_fraction=1.0,
        cause="submission",
        read_p99_ns=10**6,
    )
    assert not late.is_held
    assert next_value(Axis.USERS, [1], [late]) is None
    assert shows(progress_of(Axis.USERS, late, None), "100.0 % … submission … p99 1.00 ms")


def test_where_reads_are_needed_writes_alone_sustain_nothing() -> None:
    """The search goes down to where storage is read, and names no limit of the storage."""
    few, many = points([4.0, 8.0], [True, True])
    few = msgspec.structs.replace(few, value=4)
    many = msgspec.structs.replace(many, value=8, lacks_reads=True)
    assert many.keeps_up
    assert not many.is_held
    assert next_value(Axis.USERS, [4, 8], [few, many]) == 5.0
    assert limit_of_open([few, many]) is None
    assert shows(progress_of(Axis.USERS, many, None), "reads … only written")


@pytest.mark.parametrize(
    ("drive", "data", "expected"),
    [(0.3, 0.1, LimitCause.DRIVE), (0.1, 0.3, None)],
)
def test_what_requests_wait_for_under_more_load_is_the_drives(
    drive: float, data: float, expected: LimitCause | None
) -> None:
    shares = {"drive": drive, "dependencies": 0.6, "data": data}
    held, lost = points([1.0, 1.0], [True, False])
    lost = msgspec.structs.replace(
        lost, judgement=judged(LimitCause.DEPENDENCIES, response_shares=shares)
    )
    assert limit_of_open([held, lost]) is expected
    # The first of the lost that decides.
    more = msgspec.structs.replace(lost, judgement=judged(LimitCause.QUEUE_LIMIT))
    assert limit_of_open([held, lost, more]) is (expected or LimitCause.QUEUE_LIMIT)
    # Without a lower load that was held, it may be the trace's own.
    assert limit_of_open([lost]) is LimitCause.DEPENDENCIES


@pytest.mark.full
def test_one_command_makes_the_trace_and_finds_the_knee(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvreplay.experiments.load_sweep.DOUBLINGS", 1)
    gen = "--users 9 --duration 3s --model tiny-1b --set workload.think_time=1s"
    # Nothing moves on a simulated tier: the search goes on as long as users ask for more.
    arguments = [
        "sweep",
        "--gen",
        gen,
        "--tier",
        "gpu=sim",
        "--users",
        "1,2",
        "--limit",
        "20",
        "-o",
        tmp_path / "s",
    ]
    run_cli("kvreplay", *arguments)
    found = json.loads((tmp_path / "s" / "sweep.json").read_text())
    assert found["axis"] == "users"
    assert open_table(tmp_path / "s" / "trace.parquet", TRACE).meta.config["users"] == 9
    assert (tmp_path / "s" / "trace.objects.parquet").is_file()
    assert open_table(tmp_path / "s" / "users-1.parquet", TRACE).meta.config["users"] == 1
    both = run_cli("kvreplay", "sweep", tmp_path / "t.parquet", *arguments[1:], check=False)
    assert (both.returncode, shows(both.stderr, "TRACE … --gen")) == (2, True)


def tried(
    axis: Axis, asked: list[float], limits: list[float]
) -> tuple[list[float], list[SweepPoint]]:
    """Return what a sweep runs where trial n at a value is kept up to limits[n], and its points."""
    trials: dict[float, list[SweepPoint]] = {}
    order: list[float] = []
    found: list[SweepPoint] = []
    value: float | None = asked[0]
    while value is not None:
        (point,) = points([1.0], [value <= limits[len(trials.get(value, []))]])
        late = msgspec.structs.replace(point, value=value, late_p99_ns=len(order))
        trials.setdefault(value, []).append(late)
        order.append(value)
        found = [decided(of_value) for of_value in trials.values()]
        value = next_value(axis, asked, found)
        value = to_repeat(found) if value is None else value
    return order, sorted(found, key=lambda p: p.value)


def test_the_knees_two_sides_are_retried_and_the_median_decides() -> None:
    order, found = tried(Axis.USERS, [4, 8], [6, 6, 6])
    assert order == [4, 8, 5, 6, 7, 6, 6, 7]
    assert [(p.value, p.trials, p.held_trials) for p in found][2:4] == [(6, 3, 3), (7, 2, 0)]
    assert shows(sustained(Axis.USERS, found, None), "0 … 2 trials")
    # 5 is kept at first, and then not twice: the search goes on below, and repeats what decides
    # there.
    order, found = tried(Axis.USERS, [4, 8], [5, 4, 4])
    assert order == [4, 8, 5, 6, 5, 4, 4, 5]
    kept = {p.value: (p.trials, p.held_trials, p.is_held) for p in found}
    assert (kept[4], kept[5]) == ((3, 3, True), (3, 1, False))
    assert shows(
        sustained(Axis.USERS, found, None),
        "4 users; … p99 … no reads … 3 … 3 trials … 5 users … 1 … 3",
    )
    # All are kept: the greatest is what a sweep claims.
    order, _ = tried(Axis.SPEED, [1, 2], [1e9] * 3)
    assert order == [1, 2, 4, 8, 16, 32, 32, 32]


def test_the_figures_of_trials_are_the_medians() -> None:
    three = [
        msgspec.structs.replace(p, read_p99_ns=ns, run=str(ns))
        for p, ns in zip(points([1.0] * 3, [True, True, True]), (30, 10, 20), strict=True)
    ]
    assert (decided(three).read_p99_ns, decided(three).run) == (20, "20")
    closed = points([1.0])
    assert (decided(closed).trials, decided(closed).held_trials) == (1, None)


def test_a_machine_too_busy_for_us_is_not_searched_downward() -> None:
    ours = [
        msgspec.structs.replace(p, cause="submission") for p in points([1.0, 1.0], [False, False])
    ]
    assert next_value(Axis.SPEED, [2, 4], ours[:1]) == 0.5
    assert next_value(Axis.SPEED, [2, 4], ours) is None


def test_a_search_ends_in_one_sentence() -> None:
    found = points([1.0, 1.0, 1.0], [True, True, False])
    ms = [msgspec.structs.replace(p, read_p99_ns=(i + 1) * 10**6) for i, p in enumerate(found)]
    assert shows(sustained(Axis.SPEED, ms, None), "2 x … p99 2.00 ms … 4 x … p99 3.00 ms")
    ms[2] = msgspec.structs.replace(ms[2], judgement=judged(LimitCause.DRIVE))
    assert shows(sustained(Axis.SPEED, ms, None), "drive … the limit … 4 x")
    ms[2] = msgspec.structs.replace(ms[2], judgement=judged(LimitCause.REPLAYER))
    assert shows(sustained(Axis.SPEED, ms, None), "replayer … the limit … 4 x")
    assert shows(sustained(Axis.SPEED, ms[:2], None), "2 x … p99 2.00 ms … every load")
    over = [
        msgspec.structs.replace(ms[0], is_within_target=True),
        msgspec.structs.replace(ms[1], is_within_target=False),
    ]
    assert shows(
        sustained(Axis.USERS, over, 1_500_000),
        "1 user; … p99 1.00 ms … 2 users … p99 2.00 ms … 1.50 ms",
    )
    assert shows(sustained(Axis.SPEED, found[2:], None), "4 x … falls behind")
    waiting = msgspec.structs.replace(found[2], cause="dependencies", operations=57)
    assert shows(
        sustained(Axis.SPEED, [waiting], None),
        "4 x … falls behind … p99 … no reads … 57 operations",
    )
    few = [msgspec.structs.replace(p, read_p99_lacks="40 reads") for p in found[:1]]
    assert shows(
        sustained(Axis.SPEED, few, 1000), "--read-p99 … 1 x … p99 … (40 reads) … every load"
    )


@pytest.mark.full
def test_a_p99_that_is_not_known_ends_no_sweep(tmp_path: Path) -> None:
    rows = [(i * 1_000_000, "read", 1, "load", i % 4, 0, 4096, None, None, 0) for i in range(40)]
    trace = write_trace(tmp_path / "t.parquet", rows)
    found, error = sweep(
        Replay(Config(tiers={"cpu": "ram"}), trace, tmp_path / "s", []),
        Axis.SPEED,
        [0.5, 1],
        read_p99_target_ns=10**9,
    )
    assert error is None
    assert len(found.points) > 1
    first = found.points[0]
    assert (first.read_p99_ns, first.is_within_target) == (None, None)
    assert shows(first.read_p99_lacks, "40 reads … p99 … 100 … --limit … 2.5 times")
    assert "unknown" in found.answer


@pytest.mark.parametrize("target", ["sim:bandwidth=1GB,latency=100us", "null"])
def test_a_sweep_of_simulated_tiers_marks_its_figures_simulated(
    tmp_path: Path, target: str
) -> None:
    ops = ["write", "read"] * 150
    rows = [
        (i * NS_PER_MS, op, 2, "load", i // 2, 0, 1_000_000, i // 2, i % 2, 0)
        for i, op in enumerate(ops)
    ]
    trace = write_trace(tmp_path / "t.parquet", rows)
    arguments = [
        "--tier",
        f"nvme={target}",
        "--queue-depths",
        "1,2,4",
        "--window",
        "all",
        "-o",
        tmp_path / "sweep",
    ]
    shown = run_cli("kvreplay", "sweep", trace, *arguments).stdout
    assert shown.startswith("SIMULATED: ")
    first, second = json.loads((tmp_path / "sweep" / "sweep.json").read_text())["points"][:2]
    if target == "null":
        assert (
            first["throughput_bytes_per_s"],
            first["operations_per_s"],
            first["read_p99_ns"],
        ) == (None, None, None)
        return
    # One after the other: 100 us, and 1 ms for 1 MB.
    assert first["throughput_bytes_per_s"] == pytest.approx(1e6 / 1.1e-3, rel=0.01)
    assert first["read_p99_ns"] == pytest.approx(1.1 * NS_PER_MS, rel=0.01)
    assert second["throughput_bytes_per_s"] > 1.5 * first["throughput_bytes_per_s"]
