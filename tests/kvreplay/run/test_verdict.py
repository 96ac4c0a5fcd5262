"""What a run says of itself: whether it moved anything, kept pace, failed, and why."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import time
from dataclasses import replace
from importlib.metadata import version
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from conftest import run_cli, write_trace
from drive_files import write_drive
from phrases import Saying, shows
from whole import read_table

from kvreplay.engine.limits import with_depth
from kvreplay.plan.replay_config import Config
from kvreplay.result.cause import counted_share
from kvreplay.run.replay import Replay, replay
from kvreplay.run.run_document import run_document
from kvreplay.tiers.files import FileTier
from kvreplay.tiers.modelled import SimulatedTier
from kvreplay.tiers.ram import RamTier
from kvreplay.tiers.tier import Service, StorageOptions, Tier
from kvtrace.core.errors import ConfigError, FailedOperations
from kvtrace.core.run.figures import LimitCause, RunVerdict
from kvtrace.core.run.run_file import DeviceIo
from kvtrace.core.schema import OPS
from kvtrace.core.units import NS_PER_MS, NS_PER_S, format_duration

if TYPE_CHECKING:
    from pathlib import Path

STATS = {"output_tokens": 500, "lookups": 10, "tiers": [{"hits": 2}, {"hits": 1}, {"hits": 1}]}


def row(op: str, tier: int, obj: int, length: int = 4096, *, ts: int = 0) -> Any:
    return (ts, op, tier, "load", obj, 0, length, None, None, 0)


def test_a_run_that_would_move_nothing_names_tiers_with_rows(tmp_path: Path) -> None:
    trace = write_trace(
        tmp_path / "t.parquet", [row("write", 2, i) for i in range(3)] + [row("read", 0, 9)]
    )
    done = run_cli(
        "kvreplay", "run", trace, "--tier", "cpu=ram", "-o", tmp_path / "run", check=False
    )
    assert done.returncode == 2
    assert shows(done.stderr.strip(), "gpu (1 row), nvme (3 rows)")
    assert not (tmp_path / "run").exists()
    deletes = write_trace(tmp_path / "d.parquet", [row("delete", 1, 0), row("write", 2, 1)])
    with pytest.raises(ConfigError, match=r"rows on cpu.*\(1\)"):
        replay(Replay(Config(tiers={"cpu": "ram"}), deletes, tmp_path / "run", []))


def test_tokens_a_second_need_every_storage_tier(tmp_path: Path) -> None:
    rows = [row("write", 1, 0), row("write", 2, 1), row("read", 2, 1)]
    trace = write_trace(tmp_path / "t.parquet", rows, stats=STATS)
    found = []
    for targets in (["cpu=ram"], ["cpu=ram", "nvme=null"], ["nvme=ram"]):
        named = [argument for target in targets for argument in ("--tier", target)]
        shown = run_cli(
            "kvreplay", "run", trace, *named, "-o", tmp_path / "-".join(targets), "--json"
        )
        found.append(json.loads(shown.stdout)["mlperf"]["throughput"])
    for lacking in found[:2]:
        assert (lacking["tokens"], lacking["wall_clock_throughput_tokens_per_s"]) == (None, None)
        assert shows(lacking["reason"], "did not move: nvme")
    assert (found[2]["tokens"], found[2]["reason"]) == (500, None)


class PythonRam(Tier):
    """Memory whose operations are Python's."""

    engine, target = "threads", "ram"

    def __init__(self, name: str, io_bytes: int, *, is_verified: bool = False) -> None:
        """Hold objects of at most one I/O each; never `is_verified`."""
        assert not is_verified
        self.name, self._io_bytes = name, io_bytes
        self._objects: dict[int, bytearray] = {}

    def reserve(self, object_id: int, end: int) -> None:
        assert end <= self._io_bytes
        self._objects.setdefault(object_id, bytearray(self._io_bytes))

    def begin(self, op: int, object_id: int) -> bytearray:
        assert op in (0, 1)
        return self._objects[object_id]

    def write(self, handle: bytearray, offset: int, data: memoryview) -> None:
        handle[offset : offset + len(data)] = data

    def read(self, handle: bytearray, offset: int, into: memoryview) -> int:
        into[:] = handle[offset : offset + len(into)]
        return len(into)

    def end(self, op: int, handle: bytearray) -> None:
        assert op in (0, 1)
        assert handle is not None

    def delete(self, object_id: int) -> None:
        del self._objects[object_id]


class Full(PythonRam):
    """Memory that is full for objects from number 16 on."""

    def begin(self, op: int, object_id: int) -> Any:
        if object_id >= 16:
            raise OSError(28, "No space left on device")
        return super().begin(op, object_id)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvreplay.tiers.make_tiers.RamTier", Full)


@pytest.mark.usefixtures("full")
def test_a_run_that_went_on_says_what_failed(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.parquet", [row("write", 1, i) for i in range(41)])
    how = ["--tier", "cpu=ram", "--on-error", "continue"]
    # How late operations were submitted is known of those that failed, too, which no other row of
    # it counts.
    paced = run_cli(
        "kvreplay", "run", trace, *how, "--speed", "1", "-o", tmp_path / "paced", check=False
    )
    assert "\nall, failed ones too " in paced.stdout
    done = run_cli("kvreplay", "run", trace, *how, "-o", tmp_path / "run", check=False)
    assert done.returncode == FailedOperations.exit_code == 6
    assert shows(done.stdout, "25 … 41 operations FAILED; cpu")
    assert "; 16 operations in " in done.stdout.splitlines()[0]
    # Which of those in flight together come first is the threads' affair.
    failed = (
        r"25 of 41 operations failed, the first at row (\d+): write of object \1: No space left on"
        r" device"
    )
    assert (first := re.search(failed, done.stderr)) is not None
    assert 8 <= int(first[1]) <= 24
    kept = json.loads((tmp_path / "run" / "run.json").read_text())
    assert kept["status"] == "failed operations"
    assert shows(kept["reason"], "25 of 41")
    # Trials go on as well, and say it.
    done = run_cli(
        "kvreplay", "run", trace, *how, "--trials", "2", "-o", tmp_path / "trials", check=False
    )
    assert done.returncode == 6
    assert (
        json.loads((tmp_path / "trials" / "trials.json").read_text())["status"]
        == "failed operations"
    )


def test_a_run_says_what_was_replayed_and_on_what(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.parquet", [row("write", 2, i) for i in range(4)])
    (tmp_path / "drive").mkdir()
    arguments = [
        "run",
        trace,
        "--tier",
        f"nvme={tmp_path / 'drive'}",
        "--buffered",
        "-o",
        tmp_path / "run",
    ]
    run_cli("kvreplay", *arguments)
    kept = json.loads((tmp_path / "run" / "run.json").read_text())
    assert kept["trace"]["sha256"] == hashlib.sha256(trace.read_bytes()).hexdigest()
    host = kept["host"]
    assert (host["hostname"], host["memory_bytes"] > 1 << 26) == (platform.node(), True)
    assert {name: host["libraries"][name] for name in ("numpy", "dgen-py")} == {
        name: version(name) for name in ("numpy", "dgen-py")
    }
    facts = kept["tiers"]["nvme"]
    if facts["device"] is not None:
        assert facts["device_bytes"] > 0
        assert "[" not in (facts["scheduler"] or "")
    # What it measured is not lost to the next run.
    again = run_cli("kvreplay", *arguments, check=False)
    assert again.returncode == 4
    assert shows(again.stderr, "finished run … --force")
    assert json.loads((tmp_path / "run" / "run.json").read_text()) == kept
    assert run_cli("kvreplay", *arguments, "--force").returncode == 0


def test_an_open_loops_only_queue_limit_is_its_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiers: list[Any] = [None, FileTier("nvme", tmp_path, StorageOptions())]
    closed, opened = Config(tiers={"nvme": "d"}), Config(tiers={"nvme": "d"}, speed=1.0)

    def settled(config: Config, peak: int = 0, among: list[Any] = tiers) -> tuple[int, str]:
        found, why = with_depth(config, among, [peak] * len(among))
        return found.depth, why

    monkeypatch.setattr("kvreplay.engine.limits.available_bytes", lambda: 1 << 40)
    monkeypatch.setattr("kvreplay.engine.limits.resource.getrlimit", lambda _: (1024, 1024))
    assert settled(closed) == (8, Saying("closed loop"))
    # Three GiB of buffers, of which what is in flight is touched.
    assert settled(opened) == (1024, "the most")
    small = replace(opened, io_bytes=65536)
    assert settled(small) == (1024, "the most")
    assert settled(replace(opened, queue_depth=8)) == (8, "--queue-depth")
    memory: list[Any] = [PythonRam("cpu", 4096), tiers[1]]
    assert settled(opened, among=memory) == (128, "a thread each")
    assert settled(opened, among=[RamTier("cpu", 4096), tiers[1]])[0] == 1024
    monkeypatch.setattr("kvreplay.engine.limits.resource.getrlimit", lambda _: (300, 1024))
    assert settled(small) == (256, Saying("ulimit -n"))
    # 1 MiB each; a quarter of what a tier in memory leaves is 192 MiB, and 80 MiB.
    monkeypatch.setattr("kvreplay.engine.limits.available_bytes", lambda: 768 << 20)
    assert settled(opened) == (128, "memory for buffers")
    assert settled(opened, 448 << 20, [RamTier("cpu", 4096), tiers[1]])[0] == 64


def test_a_queue_limit_that_made_a_run_late_is_named(tmp_path: Path) -> None:
    class Slow(PythonRam):
        def read(self, handle: Any, offset: int, into: memoryview) -> int:
            time.sleep(0.03)  # long beside what a busy machine adds
            return super().read(handle, offset, into)

    # 1,000 reads a second of 30 ms each need thirty in flight.
    rows = [row("read", 1, i % 8, ts=i * 1_000_000) for i in range(100)]
    trace = write_trace(tmp_path / "t.parquet", rows)
    found = []
    for depth in (2, None):
        config = Config(tiers={"cpu": "ram"}, speed=1.0, queue_depth=depth, io_bytes=4096)
        how: list[Any] = [None, Slow("cpu", 4096), None]
        found.append(replay(Replay(config, trace, tmp_path / f"run-{depth}", []), tiers=how).run)
    limited, free = found
    assert limited.summary.pace is not None
    assert (limited.summary.pace.kept_pace, limited.summary.pace.cause) == (False, "queue")
    assert "FELL BEHIND: cpu delivered " in limited.summary.verdict
    assert "2 (--queue-depth)" in limited.summary.verdict
    assert "of 2" in limited.summary.verdict
    assert (limited.summary.pace.held_share or 0) > 0.5
    assert free.summary.pace is not None
    assert (free.engine.queue_depth, free.summary.pace.held_share) == (128, 0)


def asked_of(
    tmp_path: Path, target: str, *, gap_ns: int = 100_000, rows: int = 2000, **config: Any
) -> RunVerdict:
    """Replay reads of 64 KiB, `gap_ns` apart, on `target`.

    Return the verdict, which the first line says, too.
    """
    writes = [row("write", 2, i, 65536) for i in range(64)]
    reads = [row("read", 2, i % 64, 65536, ts=200_000_000 + i * gap_ns) for i in range(rows)]
    trace = write_trace(tmp_path / "t.parquet", writes + reads)
    finished = replay(
        Replay(
            Config(tiers={"nvme": target}, **config), trace, tmp_path / "run", [], is_forced=True
        )
    )
    found = finished.summary.judgement
    assert found is not None
    assert finished.summary.verdict == found.sentence
    assert run_document(finished).headline.startswith(found.sentence)
    return found


def test_a_throttled_tier_is_the_limit_not_a_short_queue(tmp_path: Path) -> None:
    # 131 MB/s are asked for. The first tier moves 80 MB/s whatever is in flight.
    slow = asked_of(
        tmp_path,
        "sim:bandwidth=80MB,latency=10us",
        gap_ns=500_000,
        rows=1000,
        speed=1.0,
        queue_depth=32,
    )
    assert (slow.cause, slow.has_reached, slow.tier) == (LimitCause.DRIVE, False, "nvme")
    assert slow.sentence.startswith("FELL BEHIND: nvme (SIMULATED) delivered ")
    assert "tier's model" in slow.sentence
    (rate,) = slow.tiers
    assert rate.asked_bytes_per_s is not None
    assert rate.reached_bytes_per_s is not None
    assert rate.reached_bytes_per_s < 90e6
    # 64 writes and, 200 ms later, reads in 500 ms: over these and the gap in which a moment of them
    # lies, 57 ms.
    assert rate.asked_bytes_per_s == pytest.approx(1064 * 65536 / 0.757, rel=0.001)
    # The second takes 2 ms whatever is in flight: one at a time moves 33 MB/s.
    short = asked_of(
        tmp_path, "sim:bandwidth=100GB,latency=2ms", rows=400, speed=1.0, queue_depth=1
    )
    assert (short.cause, short.has_reached) == (LimitCause.QUEUE_LIMIT, False)
    assert "1 (--queue-depth)" in short.sentence


def test_a_load_due_at_once_has_no_rate_and_cannot_fall_behind(tmp_path: Path) -> None:
    # 64 writes and 1,000 reads of 64 KiB, all at once: 70 ms at 1 GB/s.
    writes = [row("write", 2, i, 65536) for i in range(64)]
    trace = write_trace(
        tmp_path / "t.parquet", writes + [row("read", 2, i % 64, 65536) for i in range(1000)]
    )
    config = Config(tiers={"nvme": "sim:bandwidth=1GB,latency=10us"}, speed=1.0, queue_depth=32)
    found = replay(Replay(config, trace, tmp_path / "run", [])).run.summary
    pace, judged = found.pace, found.judgement
    assert pace is not None
    assert judged is not None
    assert (pace.offered_per_s, pace.kept_pace) == (None, False)
    assert (pace.end_late_ns or 0) > 10_000_000
    assert judged.evidence.is_end_late is False
    assert judged.sentence.startswith("nvme (SIMULATED) delivered ")
    assert "at once" in judged.sentence
    assert "more than 1 ms" in judged.sentence


@pytest.mark.parametrize(
    ("depth", "cause", "gain"),
    [(1, "queue", 1), (4, "queue", 1), (8, "drive", 0), (32, "drive", 0)],
)
def test_a_drive_model_is_the_limit_if_depth_adds_nothing(
    tmp_path: Path, depth: int, cause: str, gain: int
) -> None:
    def saturated_at_8(_size: int, depth: int, _share: float, _op: int) -> float:
        return 100_000 * max(1.0, depth / 8)

    write_drive(tmp_path / "drive.json", mean_ns=saturated_at_8)
    found = asked_of(
        tmp_path, f"sim:{tmp_path / 'drive.json'}", queue_depth=depth, io_bytes=64 << 10
    )
    assert found.cause is (LimitCause.DRIVE if cause == "drive" else LimitCause.QUEUE_LIMIT)
    assert found.evidence.doubling_gain == pytest.approx(gain, abs=0.05)
    said = "tier's model" if cause == "drive" else f"{depth} (--queue-depth)"
    assert shows(found.sentence, f"queue depth {depth}: … {said}")
    assert ("twice" in found.sentence) is (depth > 1)


def test_a_stated_bandwidth_limits_and_a_latency_needs_depth(
    tmp_path: Path,
) -> None:
    # 64 KiB take 65.5 µs at 1 GB/s, and then 80 µs: two in flight are too few, eight are more than
    # enough.
    slow = asked_of(tmp_path, "sim:bandwidth=1GB,latency=80us", queue_depth=8)
    assert slow.cause is LimitCause.DRIVE
    assert "tier's model" in slow.sentence
    assert "0.0 % more" in slow.sentence
    # 0.655 µs and then 2 ms: eight in flight keep the server busy for 0.3 %.
    far = asked_of(tmp_path, "sim:bandwidth=100GB,latency=2ms", queue_depth=8)
    assert far.cause is LimitCause.QUEUE_LIMIT
    assert far.evidence.doubling_gain == pytest.approx(1)
    # By hand: 1 MB is 1 ms of the server and 1 ms of latency; a direction each, half of the load is
    # half of the time.
    tier = SimulatedTier(
        "t",
        Service(read_bytes_per_s=10**9, write_bytes_per_s=10**9, latency_ns=10**6, source="test"),
    )
    assert [tier.gain(10**6, 4096, 1.0, so_many) for so_many in (1, 2, 4)] == [1, 0, 0]
    assert [tier.gain(10**6, 4096, 0.5, so_many) for so_many in (1, 2, 4)] == [1, 1, 0]


def test_a_tier_without_times_leaves_the_replayer(tmp_path: Path) -> None:
    found = asked_of(tmp_path, "null", rows=20_000)
    assert (found.cause, found.has_reached) == (LimitCause.REPLAYER, None)
    assert found.sentence.startswith("nvme (SIMULATED) reached ")
    assert "queue depth 8: the replayer" in found.sentence


def test_what_is_in_flight_is_the_service_times_over_the_run(tmp_path: Path) -> None:
    # Writes at once, then reads of 1 ms that come 10 ms apart: idle time is no time in flight.
    sparse = "sim:bandwidth=1GB,latency=1ms"
    found = asked_of(tmp_path, sparse, gap_ns=10 * NS_PER_MS, rows=50, speed=1.0)
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    ops = (
        read_table(tmp_path / "run" / "ops.parquet", OPS)
        .select(["submitted_ns", "completed_ns"])
        .to_pylist()
    )
    served_ns = sum(op["completed_ns"] - op["submitted_ns"] for op in ops)
    assert found.evidence.in_flight_mean == pytest.approx(served_ns / run["summary"]["wall_ns"])
    # One write of 8 I/Os, and none behind it: nothing is left that could wait for it.
    trace = write_trace(tmp_path / "one.parquet", [row("write", 2, 0, 8 << 20)])
    (tmp_path / "scratch").mkdir()
    config = Config(tiers={"nvme": str(tmp_path / "scratch")}, queue_depth=64)
    alone = replay(Replay(config, trace, tmp_path / "one", [])).summary.judgement
    assert (alone.evidence.blocked_share, alone.cause is LimitCause.DEPENDENCIES) == (0, False)


@pytest.mark.parametrize(("busy_ns", "is_known"), [(1000, True), (3600 * NS_PER_S, False)])
def test_a_device_that_others_keep_busy_tells_nothing_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy_ns: int, is_known: bool
) -> None:
    moved = DeviceIo(read_bytes=0, written_bytes=0, device_ns=busy_ns, busy_ns=busy_ns)
    monkeypatch.setattr("kvreplay.run.replay.moved_between", lambda _start, _end: moved)
    (tmp_path / "scratch").mkdir()
    found = asked_of(tmp_path, str(tmp_path / "scratch"), rows=50, speed=1.0).evidence
    assert (found.device_busy_share is not None, found.device_queue_mean is not None) == (
        is_known,
        is_known,
    )


def test_warm_up_of_threads_and_devices_is_not_counted() -> None:
    def part(left_out: int) -> float:
        run = {"left_out": left_out, "counted_sent": 10, "from_ns": 75}
        return counted_share(
            cast("Any", SimpleNamespace(run=[run])), cast("Any", SimpleNamespace(wall_ns=100))
        )

    assert (part(0), part(30)) == (1, 0.25)


def test_a_chain_of_requests_is_the_traces_limit(tmp_path: Path) -> None:
    rows = [row("write", 2, 1, 65536)]
    # Every read waits for the write before it, which waits for the read before.
    rows += [row(("read", "write")[i % 2], 2, 1, 65536) for i in range(300)]
    trace = write_trace(tmp_path / "t.parquet", rows)
    # Long enough that the start and the end are little of it on a busy machine.
    config = Config(tiers={"nvme": "sim:bandwidth=100GB,latency=4ms"}, queue_depth=16)
    found = replay(Replay(config, trace, tmp_path / "run", [])).summary.judgement
    assert found is not None
    assert found.cause is LimitCause.DEPENDENCIES
    assert shows(found.sentence, "latency … 4.00 ms")
    assert found.evidence.blocked_share is not None
    assert found.evidence.blocked_share > 0.8


def test_a_drive_that_memory_waits_for_is_the_one_to_speak_of(tmp_path: Path) -> None:
    """Each request reads from the drive, then writes many objects to memory.

    Their response times add up to more.
    """
    rows = []
    for request in range(40):
        at = (request * 10 * NS_PER_MS, request)
        rows.append((at[0], "read", 2, "load", request, 0, 1 << 20, at[1], 0, 0))
        rows += [
            (at[0], "write", 1, "promote", 1000 + request * 9 + i, 0, 65536, at[1], 1, 0)
            for i in range(9)
        ]
    trace = write_trace(tmp_path / "t.parquet", rows)
    tiers = {"cpu": "sim:bandwidth=50GB,latency=1us", "nvme": "sim:bandwidth=50MB,latency=10us"}
    finished = replay(
        Replay(Config(tiers=tiers, speed=1.0, warmup="100ms"), trace, tmp_path / "run", [])
    )
    summary = finished.summary
    found = summary.judgement
    assert found is not None
    assert (found.tier, found.cause) == ("nvme", LimitCause.DRIVE)
    assert found.sentence.startswith("FELL BEHIND: nvme (SIMULATED) delivered ")
    took_ns = summary.wall_ns - summary.warmup.measured_from_ns
    said = f"{summary.operations:,} operations … {format_duration(took_ns)}"
    assert shows(run_document(finished).headline, said)
