"""Replays of several ranks as threads: what is pooled, who decides, what is refused."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
from conftest import run_cli, write_trace
from phrases import Saying, shows
from ranks import Hall, ThreadRanks, on_ranks
from whole import read_table

from kvreplay.experiments.load_sweep import sweep
from kvreplay.experiments.trials import Trials
from kvreplay.plan.replay_config import Config, PartitionBy
from kvreplay.ranks import rank_session as session
from kvreplay.ranks.helper import offset_of
from kvreplay.ranks.parts import RANKS_FILE
from kvreplay.run.rank_targets import rank_target
from kvreplay.run.replay import FinishedRun, Replay, replay
from kvreplay.tiers.host import is_on_drive
from kvreplay.tiers.tier import Tier
from kvtrace.core.errors import ConfigError, DeviceError, FailedOperations, KvError
from kvtrace.core.metrics.distribution import ERROR, TimeDistributions
from kvtrace.core.metrics.distribution import distribution_of as distribution
from kvtrace.core.run.run_file import RanksNote, read_run
from kvtrace.core.run.sweep_file import Axis
from kvtrace.core.schema import OPS

COUNT = 3


def trace(tmp_path: Path, count: int = 90) -> Path:
    rows = []
    for request in range(count):
        ts = request * 100_000
        rows += [
            (ts, op, 2, "load", request, 0, 8192, request, stage, 0)
            for stage, op in enumerate(("write", "read"))
        ]
        rows.append((ts, "delete", 2, "evict", request, 0, 8192, None, None, 0))
    return write_trace(tmp_path / "t.parquet", rows)


def replayed(tmp_path: Path, count: int = COUNT, **options: Any) -> FinishedRun:
    config = Config(tiers=options.pop("tiers", {"nvme": "ram"}), io_bytes=4096, **options)
    path = trace(tmp_path)
    return on_ranks(
        count,
        lambda s: s.replay(Replay(config, path, tmp_path / "run", ["kvreplay"], is_forced=True)),
        by=PartitionBy.USER,
    )


def ops_of(folder: Path) -> list[dict[str, Any]]:
    return [
        row
        for path in sorted(folder.glob("rank-*/ops.parquet"))
        for row in read_table(path, OPS).to_pylist()
    ]


def test_counts_add_up_and_percentiles_are_of_all_operations(tmp_path):
    found = replayed(tmp_path)
    run, rows = read_run(tmp_path / "run"), ops_of(tmp_path / "run")
    assert found.error is None
    assert run.status == "complete"
    assert len(rows) == 270 == run.summary.operations
    assert sorted(row["object_id"] for row in rows if row["op"] == "write") == list(range(90))
    for figures in run.summary.figures:
        mine = [row for row in rows if row["op"] == figures.op]
        times = np.array([row["completed_ns"] - row["submitted_ns"] for row in mine])
        assert figures.operations == len(mine) == 90
        assert figures.latency == distribution(times)
        assert figures.bytes == 90 * 8192
        assert figures.span_ns == max(r["completed_ns"] for r in mine) - min(
            r["submitted_ns"] for r in mine
        )
    assert isinstance(run.ranks, RanksNote)
    assert [rank.operations for rank in run.ranks.ranks] == [90, 90, 90]
    assert run.ranks.is_exact
    # By the benchmark's rule only storage counts, and memory is none.
    assert (run.ranks.combined.read_bandwidth_bytes_per_s, run.ranks.combined.write_p95_ns) == (
        None,
        None,
    )
    assert shows(run.summary.verdict, "3 ranks: nvme")
    assert run.window.rows == 270
    assert run.window.is_whole_trace


def test_a_pooled_run_is_reported_like_any_other(tmp_path):
    replayed(tmp_path)
    shown = run_cli("kvdistill", "report", tmp_path / "run").stdout
    assert "3 ranks: nvme" in shown
    assert "ranks began" in shown
    assert "MLPerf" in shown


def test_loads_of_unlike_ranks_are_pooled_over_one_schedule(tmp_path):
    # One user writes 8 times at once, another 60 times, each 5 ms: 68 operations in 300 ms. A third
    # rank has nothing.
    rows = [(0, "write", 2, "store", at, 0, 8192, 0, 0, 0) for at in range(8)]
    rows += [(at * 5_000_000, "write", 2, "store", 8 + at, 0, 8192, 1, 0, 0) for at in range(60)]
    path = write_trace(tmp_path / "unlike.parquet", sorted(rows))
    for speed in (1.0, None):
        config = Config(tiers={"nvme": "sim:bandwidth=1GB,latency=1ms"}, speed=speed, queue_depth=8)
        on_ranks(
            COUNT,
            lambda s, c=config: s.replay(
                Replay(c, path, tmp_path / "run", ["kvreplay"], is_forced=True)
            ),
            by=PartitionBy.USER,
        )
        summary, ops = read_run(tmp_path / "run").summary, ops_of(tmp_path / "run")
        assert summary.judgement is not None
        (rate,) = summary.judgement.tiers
        span_ns = max(r["completed_ns"] for r in ops) - min(r["submitted_ns"] for r in ops)
        served_ns = sum(r["completed_ns"] - r["submitted_ns"] for r in ops)
        wall_ns = summary.wall_ns or 0
        # Not the mean of a rank that was busy for a moment and of one that was hardly.
        counted_ns = wall_ns - (summary.measured_from_ns or 0)
        assert summary.in_flight_mean == pytest.approx(served_ns / counted_ns, rel=0.001)
        assert summary.judgement.evidence.in_flight_mean == pytest.approx(
            served_ns / wall_ns, rel=0.2
        )
        if summary.pace is None:
            assert rate.reached_operations_per_s == pytest.approx(68e9 / span_ns, rel=0.001)
            assert rate.asked_operations_per_s is None
        else:
            gaps = [5e6] * 59
            asked = 68e9 / (59 * 5e6 + sum(gap * gap for gap in gaps) / sum(gaps))
            assert (
                summary.pace.offered_per_s
                == rate.asked_operations_per_s
                == pytest.approx(asked, rel=0.001)
            )
            assert rate.asked_bytes_per_s == pytest.approx(asked * 8192, rel=0.001)
            assert summary.pace.delivered_per_s == pytest.approx(asked, rel=0.03)
            assert "at once" not in summary.verdict
            assert "FELL BEHIND" not in summary.verdict


class Failing(Tier):
    """Memory of a rank: rank 1 fails whatever it is asked, others the writes of some objects."""

    engine, target = "memory", "fake"

    def __init__(self, rank: int) -> None:
        self.name, self._rank, self._held = "nvme", rank, dict[int, bytearray]()

    def begin(self, _op: int, object_id: int) -> Any:
        sleep(0.002)
        if self._rank == 1 or object_id % 5 == 0:
            sleep(0.2 if self._rank == 1 and object_id > 80 else 0)
            raise OSError(5, "Input/output error")
        return self._held.setdefault(object_id, bytearray(8192))

    def write(self, handle: Any, offset: int, data: memoryview) -> None:
        handle[offset : offset + len(data)] = data

    def read(self, handle: Any, offset: int, into: memoryview) -> int:
        into[:] = handle[offset : offset + len(into)]
        return len(into)

    def delete(self, object_id: int) -> None:
        if self._rank == 1:
            raise OSError(5, "Input/output error")
        self._held.pop(object_id, None)


def test_operations_that_failed_on_ranks_count_as_those_of_one(tmp_path, monkeypatch):
    def alone(asked: Replay, *, together: Any) -> FinishedRun:
        return replay(
            asked, tiers=[None, None, Failing(int(asked.output.name[-1]))], together=together
        )

    monkeypatch.setattr(session, "replay", alone)
    found = replayed(tmp_path, speed=1.0, on_error="continue")
    rows, run = ops_of(tmp_path / "run"), read_run(tmp_path / "run")
    failed = [row for row in rows if row["outcome"] == "error"]
    assert isinstance(found.error, FailedOperations)
    assert (run.status, run.summary.errors, run.summary.operations) == (
        "failed operations",
        len(failed),
        270 - len(failed),
    )
    assert isinstance(run.ranks, RanksNote)
    assert [(rank.operations, rank.errors) for rank in run.ranks.ranks][1] == (0, 90)
    for figures in run.summary.figures:
        mine = [row for row in rows if row["op"] == figures.op]
        good = [row for row in mine if row["outcome"] == "ok"]
        assert (figures.planned, figures.operations, figures.errors) == (
            90,
            len(good),
            90 - len(good),
        )
        assert figures.latency == distribution(
            np.array([row["completed_ns"] - row["submitted_ns"] for row in good])
        )
    pace, late = run.summary.pace, [row["submitted_ns"] - row["scheduled_ns"] > 1e6 for row in rows]
    assert pace is not None
    assert pace.late_fraction == pytest.approx(sum(late) / 270)
    # Rank 1 has none that could be on time.
    ranks = [read_run(tmp_path / "run" / f"rank-{rank:04d}").summary for rank in (0, 2)]
    on_time = sum(
        (of.pace.on_time_fraction or 0) * (of.operations or 0)
        for of in ranks
        if of.pace is not None
    )
    assert pace.on_time_fraction == pytest.approx(on_time / (run.summary.operations or 0))
    assert run.ranks.straggler is not None
    assert (run.ranks.straggler.rank, run.ranks.straggler.reason) == (
        1,
        Saying("90 … operations"),
    )


@pytest.mark.full
def test_what_all_ranks_wrote_before_the_run_is_said_of_all(tmp_path):
    for name, how in (("f.dat", {}), ("d", {"precondition": "twice"})):
        target = tmp_path / name
        if how:
            target.mkdir()
        replayed(tmp_path, tiers={"nvme": str(target)}, is_buffered=True, **how)
        run, ranks = (
            read_run(tmp_path / "run"),
            [read_run(at) for at in sorted((tmp_path / "run").glob("rank-*/"))],
        )
        assert run.tiers["nvme"].get("written_first_bytes", 0) == sum(
            of.tiers["nvme"].get("written_first_bytes", 0) for of in ranks
        )
        written = [each.written_bytes for of in ranks for each in of.preconditioned]
        assert [each.written_bytes for each in run.preconditioned] == written
        assert [each.tier for each in run.preconditioned] == [
            f"nvme of rank {rank}" for rank in range(len(written))
        ]
        assert len(written) == (COUNT if how else 0)


@pytest.mark.full
def test_an_open_loop_is_pooled_by_its_due_times(tmp_path):
    replayed(tmp_path, speed=1.0)
    run, rows = read_run(tmp_path / "run"), ops_of(tmp_path / "run")
    assert run.summary.pace is not None
    assert run.summary.pace.response == distribution(
        np.array([row["completed_ns"] - row["scheduled_ns"] for row in rows])
    )
    assert run.summary.pace.lateness == distribution(
        np.array([row["submitted_ns"] - row["scheduled_ns"] for row in rows])
    )
    assert run.summary.judgement is not None
    assert run.summary.judgement.has_reached == run.summary.pace.kept_pace


@pytest.mark.full
def test_a_warm_up_is_left_out_of_what_is_pooled(tmp_path):
    replayed(tmp_path, warmup="30rows")
    run, rows = read_run(tmp_path / "run"), ops_of(tmp_path / "run")
    assert len(rows) == 270
    assert run.summary.operations == 240
    assert sum(figures.latency.count for figures in run.summary.figures) == 240


def test_a_rank_that_is_dealt_nothing_is_idle(tmp_path):
    path = write_trace(tmp_path / "t.parquet", [(0, "write", 2, "load", 0, 0, 4096, 0, 0, 0)])
    config = Config(tiers={"nvme": "ram"}, io_bytes=4096)
    on_ranks(2, lambda s: s.replay(Replay(config, path, tmp_path / "run", ["kvreplay"])))
    run = read_run(tmp_path / "run")
    assert isinstance(run.ranks, RanksNote)
    assert [rank.status for rank in run.ranks.ranks] == ["complete", "idle"]
    assert run.summary.operations == 1
    assert any("rank 1" in note for note in run.notes)


def test_what_one_rank_cannot_begin_none_begins(tmp_path):
    drive = tmp_path / "drive"
    (drive / "rank-0001").mkdir(parents=True)
    (drive / "rank-0001" / "mine.txt").write_text("not ours")
    with pytest.raises(KvError, match=r"rank 1: .*rank-0001.*\(mine\.txt\)") as refused:
        replayed(tmp_path, tiers={"nvme": str(drive)})
    assert refused.value.exit_code == DeviceError.exit_code
    assert not (tmp_path / "run").exists()
    assert (drive / "rank-0001" / "mine.txt").read_text() == "not ours"


def test_a_failed_start_leaves_nothing_of_ranks_without_a_part(tmp_path):
    path = write_trace(tmp_path / "t.parquet", [(0, "write", 2, "load", 0, 0, 4096, 0, 0, 0)])
    config = Config(tiers={"nvme": "ram"}, warmup="1rows")

    def twice(session: Any) -> None:
        for _ in range(2):
            with pytest.raises(ConfigError, match="nothing would"):
                session.replay(Replay(config, path, tmp_path / "run", ["kvreplay"]))
            assert not (tmp_path / "run").exists()

    on_ranks(COUNT, twice)


def test_waiting_for_the_common_start_is_no_sleep_of_the_run(tmp_path):
    # Ranks begin 100 ms after they agreed: longer than this run lasts.
    path = write_trace(
        tmp_path / "t.parquet",
        [(0, "write", 2, "load", at, 0, 1 << 20, at, 0, 0) for at in range(16)],
    )
    config = Config(tiers={"nvme": "ram"}, runtime="20ms")
    on_ranks(2, lambda s: s.replay(Replay(config, path, tmp_path / "run", ["kvreplay"])))
    evidence = read_run(tmp_path / "run").summary.judgement.evidence
    assert evidence.copy_busy_share > 0.1


def test_a_rank_has_a_folder_a_file_or_a_device_of_its_own(tmp_path):
    drive = tmp_path / "drive"
    drive.mkdir()
    hosts = ["a", "b", "a"]
    assert rank_target("nvme", "ram", 1, hosts) == "ram"
    assert rank_target("nvme", str(drive), 2, hosts) == str(drive / "rank-0002")
    assert (drive / "rank-0002").is_dir()
    assert rank_target("nvme", f"{drive}/f.dat", 1, hosts) == f"{drive}/f.rank-0001.dat"
    assert rank_target("s3", "s3://bucket/prefix/", 1, hosts) == "s3://bucket/prefix/rank-0001"
    assert rank_target("nvme", "/dev/nvme{local}n1", 2, hosts) == "/dev/nvme1n1"
    assert rank_target("nvme", f"{drive}/{{rank}}", 2, hosts) == f"{drive}/2"
    with pytest.raises(DeviceError, match="system path"):
        rank_target("nvme", "/", 0, hosts)
    (drive / "mine.txt").touch()
    with pytest.raises(DeviceError, match="not empty"):
        rank_target("nvme", str(drive), 1, hosts)


@pytest.mark.root
def test_ranks_of_one_host_do_not_share_a_block_device():
    devices = [path for path in Path("/dev").iterdir() if path.is_block_device()]
    if not devices:
        pytest.skip("no block device here")
    with pytest.raises(ConfigError, match=r"tiers=.*nvme.*2 ranks"):
        rank_target("nvme", str(devices[0]), 0, ["a", "b", "a"])
    assert rank_target("nvme", str(devices[0]), 1, ["a", "b", "a"]) == str(devices[0])


@pytest.mark.full
def test_bytes_of_all_ranks_are_the_kernels_for_their_processes(tmp_path):
    drive = tmp_path / "drive"
    drive.mkdir()
    if not is_on_drive(drive):
        pytest.skip("the temporary directory lies on no block device")
    length = 1 << 20
    rows = [
        (n, op, 2, "load", n % 40, 0, length, n, 0, 0)
        for n in range(120)
        for op in ("write", "read")[: 1 + n % 2]
    ]
    rows += [(120, "read", 2, "load", n, 0, length, 120 + n, 0, 0) for n in range(20)]
    path = write_trace(tmp_path / "t.parquet", rows)
    config = Config(tiers={"nvme": str(drive)}, io_bytes=length)
    # Once before: what is loaded for it is read from the drive, too.
    on_ranks(
        COUNT,
        lambda s: s.replay(Replay(config, path, tmp_path / "first", ["kvreplay"])),
        by=PartitionBy.OBJECT,
    )
    before = process_io()
    on_ranks(
        COUNT,
        lambda s: s.replay(Replay(config, path, tmp_path / "run", ["kvreplay"])),
        by=PartitionBy.OBJECT,
    )
    read, written = (after - start for after, start in zip(process_io(), before, strict=True))
    run = read_run(tmp_path / "run")
    by = {figures.op: figures for figures in run.summary.figures}
    assert (by["read"].io_bytes, by["write"].io_bytes) == (80 * length, 120 * length)
    assert run.populated is not None
    # Results are all there is besides.
    assert 80 * length <= read < 88 * length
    assert 120 * length + run.populated.bytes <= written < 128 * length
    assert not any(drive.iterdir())


def process_io() -> tuple[int, int]:
    """Return what this process had block devices read and write so far, by the kernel's count."""
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["read_bytes"]), int(counts["write_bytes"])


@pytest.mark.full
def test_rank_0_decides_trials_and_sweeps_and_all_do_them(tmp_path):
    path = trace(tmp_path)
    config = Config(tiers={"nvme": "ram"}, io_bytes=4096)

    def both(session: Any) -> Any:
        found, error = Trials(
            Replay(config, path, tmp_path / "trials", ["kvreplay"]), 2, replaying=session.replay
        ).perform()
        assert error is None
        return found, sweep(
            Replay(config, path, tmp_path / "sweep", ["kvreplay"]),
            Axis.QUEUE_DEPTH,
            [1, 2],
            replaying=session.replay,
        )

    trials, (swept, error) = on_ranks(COUNT, both, by=PartitionBy.USER)
    assert error is None
    assert trials.status == "complete"
    assert {q.name for q in trials.quantities} >= {"bandwidth_bytes_per_s", "p50_ns"}
    assert [point.value for point in swept.points] == [1, 2]
    for folder in ("trials/trial-1", "trials/trial-2", "sweep/qd-1", "sweep/qd-2"):
        assert read_run(tmp_path / folder).summary.operations == 270
        assert len(list((tmp_path / folder).glob("rank-*/run.json"))) == COUNT


@pytest.mark.full
def test_a_run_whose_rank_0_died_is_put_together_later(tmp_path):
    replayed(tmp_path)
    whole = read_run(tmp_path / "run")
    (tmp_path / "run" / "run.json").unlink()
    shutil.rmtree(tmp_path / "run" / "rank-0001")
    found = session.recover_ranks(tmp_path / "run")
    assert found.run.status == "partial"
    assert shows(found.run.reason, "interrupted … rank 1")
    assert shows(found.run.summary.verdict, "rank 1 … 3 LOST; 2 ranks:")
    assert found.run.summary.operations == 180
    assert found.error is not None
    assert found.error.exit_code == 8
    with pytest.raises(ConfigError, match="recover"):
        session.recover_ranks(tmp_path / "run")
    assert whole.summary.operations == 270
    assert (tmp_path / "run" / RANKS_FILE).is_file()


def test_what_rank_0_does_not_see_is_brought_to_it(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "CHUNK_BYTES", 1000)
    hall, places = Hall(2), [tmp_path / "a", tmp_path / "b"]
    for rank, place in enumerate(places):
        folder = place / f"rank-{rank:04d}"
        folder.mkdir(parents=True)
        (folder / "rank.json").write_text(f"of rank {rank}")
        (folder / "ops.parquet").write_bytes(bytes(range(256)) * 10)
        (folder / "empty").touch()
    other = threading.Thread(target=session.bring, args=(ThreadRanks(hall, 1), places[1]))
    other.start()
    session.bring(ThreadRanks(hall, 0), places[0])
    other.join()
    brought = places[0] / "rank-0001"
    assert (brought / "rank.json").read_text() == "of rank 1"
    assert (brought / "ops.parquet").read_bytes() == bytes(range(256)) * 10
    assert (brought / "empty").read_bytes() == b""


def test_the_quickest_round_trip_tells_the_offset_of_a_clock():
    ahead = 5_000_000_000
    rounds = [
        (t, t + ahead + there, t + there + back)
        for t, there, back in ((0, 900, 90), (10, 40, 60), (20, 9, 900))
    ]
    assert offset_of(rounds) == (ahead - 10, 50)


def test_histograms_add_up_and_are_as_close_as_stated():
    rng = np.random.default_rng(3)
    values = (10 ** rng.uniform(2, 10, 60_000)).astype(np.int64)
    exact, pooled = TimeDistributions(limit=len(values)), TimeDistributions(limit=0)
    for part in np.array_split(values, 7):
        exact.add(part)
        pooled.add(part)
    assert exact.distribution() == distribution(values)
    found, known = pooled.distribution(), exact.distribution()
    assert (found.count, found.max_ns) == (known.count, known.max_ns)
    for name in ("p50_ns", "p95_ns", "p99_ns", "p99_9_ns"):
        assert getattr(found, name) == pytest.approx(getattr(known, name), rel=ERROR)
    for small in (*range(64), *range(64, 2048, 31), 2047):
        one = TimeDistributions(limit=0)
        one.add(np.array([small] * 2))
        assert one.distribution().p50_ns == small
