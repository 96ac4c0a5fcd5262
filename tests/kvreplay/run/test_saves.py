"""Saves and restores in a replay.

Bounded memory, the page cache, and figures that the operations confirm.
"""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Row, run_cli, write_trace
from phrases import pattern, shows
from rings import REFUSED
from whole import read_table

from kvreplay.engine import native_engine as engine
from kvreplay.engine.limits import check, with_depth
from kvreplay.plan.replay_config import POOL_BYTES, Config
from kvreplay.run import replay as run
from kvreplay.run.replay import Replay, replay
from kvreplay.tiers.files import FileTier
from kvreplay.tiers.tier import StorageOptions
from kvtrace.core.document.run_chapters import checkpoint_sentence
from kvtrace.core.errors import ConfigError
from kvtrace.core.run.run_file import read_run
from kvtrace.core.schema import OPS

MIB = 1 << 20
MS = 1_000_000
ENGINES = ["threads", *([] if REFUSED else ["uring"])]


def mixed(path: Path) -> Path:
    """Write a trace of users' reads and writes, and of two saves and a restore among them."""
    rows: list[Row] = []
    for at in range(300):
        op = "read" if at % 3 == 2 else "write"
        rows.append(
            (at * MS, op, 2, "load" if op == "read" else "store", at // 3, 0, 64 << 10, at, 0, 0)
        )
    for number, (ts, kind) in enumerate(((50, "save"), (150, "save"), (220, "restore"))):
        request, op = 300 + number, "write" if kind == "save" else "read"
        objects = range(200 + 2 * min(number, 1), 202 + 2 * min(number, 1))
        rows += [(ts * MS, op, 2, kind, obj, 0, 20 * MIB, request, 0, 0) for obj in objects]
        rows.append((ts * MS, "write", 2, kind, 250, 0, 4096, request, 1, 0))
    return write_trace(path, sorted(rows, key=lambda row: row[0]), tiers=None or _tiers())


def _tiers():
    from kvtrace.core.metadata import TierFacts

    return [TierFacts("gpu"), TierFacts("cpu"), TierFacts("nvme")]


@pytest.mark.parametrize("speed", [None, 1.0])
def test_figures_of_checkpoints_are_those_of_their_operations(tmp_path, speed):
    trace = mixed(tmp_path / "t.parquet")
    (tmp_path / "d").mkdir()
    config = Config(tiers={"nvme": str(tmp_path / "d")}, is_buffered=True, speed=speed)
    found = replay(Replay(config, trace, tmp_path / "run", ["kvreplay"])).run
    ops = read_table(tmp_path / "run" / "ops.parquet", OPS).to_pylist()
    saved = found.checkpoints
    assert [(c.kind, c.request_id) for c in saved.each] == [
        ("save", 300),
        ("save", 301),
        ("restore", 302),
    ]
    spans = []
    for one in saved.each:
        own = [op for op in ops if op["request_id"] == one.request_id]
        began, ended = min(op["submitted_ns"] for op in own), max(op["completed_ns"] for op in own)
        spans.append((began, ended))
        due = None if speed is None else min(op["scheduled_ns"] for op in own)
        assert (one.submitted_ns, one.completed_ns, one.scheduled_ns) == (began, ended, due)
        assert (one.duration_ns, one.stall_ns) == (
            ended - began,
            ended - (began if due is None else due),
        )
        assert one.bytes == 40 * MIB + 4096
        assert one.bandwidth_bytes_per_s == pytest.approx(one.bytes * 1e9 / one.duration_ns)
        assert (one.operations, one.unfinished) == (3, 0)
    assert [(k.kind, k.count, k.bytes) for k in saved.kinds] == [
        ("save", 2, 2 * (40 * MIB + 4096)), ("restore", 1, 40 * MIB + 4096),
    ]  # fmt: skip
    assert saved.stall_share == pytest.approx(
        sum(c.stall_ns for c in saved.each) / found.summary.wall_ns
    )
    busy = {ns for began, ended in spans for ns in (began, ended)}
    assert min(ended - began for began, ended in spans) <= saved.busy_ns <= max(busy) - min(busy)
    users = [op for op in ops if op["request_id"] < 300]
    for beside in saved.beside:
        times: dict[bool, list[int]] = {True: [], False: []}
        for op in users:
            if op["op"] == beside.op:
                start = op["submitted_ns"] if speed is None else op["scheduled_ns"]
                is_during = any(
                    start < ended and op["completed_ns"] > began for began, ended in spans
                )
                times[is_during].append(op["completed_ns"] - start)
        for is_during, of in ((True, beside.during), (False, beside.without)):
            assert of.count == len(times[is_during])
            assert of.max_ns == (max(times[is_during]) if times[is_during] else None)
    assert {b.op for b in saved.beside} == {"read", "write"}
    # Users' requests alone: a save is none of theirs.
    assert found.requests.requests == 300


def test_what_others_saw_of_checkpoints_is_said_first(tmp_path):
    trace = mixed(tmp_path / "t.parquet")
    (tmp_path / "d").mkdir()
    target = ["--tier", f"nvme={tmp_path / 'd'}", "--buffered", "-o", tmp_path / "run"]
    shown = run_cli("kvreplay", "run", trace, *target).stdout
    said = checkpoint_sentence(read_run(tmp_path / "run").checkpoints)
    assert shown.startswith(said)
    assert "Others beside checkpoints" in shown
    assert "Saves and restores" in shown
    report = run_cli("kvdistill", "report", tmp_path / "run").stdout
    assert shows(report.split("\n\n")[0], said)
    assert "Each save and restore" in report


def test_without_others_the_answer_is_how_long_it_took(tmp_path):
    few = ["--ranks", "2", "--every", "1s", "--duration", "2s", "--set", "parameters=500000"]
    run_cli("kvtrace", "gen", "--preset", "checkpoint", *few, "-o", tmp_path / "c.parquet")
    (tmp_path / "d").mkdir()
    target = ["--tier", f"nvme={tmp_path / 'd'}", "--buffered", "-o", tmp_path / "run"]
    assert run_cli("kvreplay", "run", tmp_path / "c.parquet", *target).stdout.startswith(
        "2 saves in "
    )
    saved = read_run(tmp_path / "run").checkpoints
    assert saved.beside == []
    # In a closed loop the second save waits for the first one's end.
    assert saved.each[1].submitted_ns >= saved.each[0].completed_ns


def test_a_run_without_checkpoints_has_none(tmp_path):
    trace = write_trace(tmp_path / "t.parquet", [(0, "write", 2, "store", 0, 0, 4096, 0, 0, 0)])
    (tmp_path / "d").mkdir()
    config = Config(tiers={"nvme": str(tmp_path / "d")}, is_buffered=True)
    assert replay(Replay(config, trace, tmp_path / "run", ["kvreplay"])).run.checkpoints is None


@pytest.mark.star
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("length", [4096, 5 * MIB])
def test_pages_are_dropped_when_a_file_is_closed(tmp_path, engine, length):
    resident = {}
    for advice in ("none", "sequential", "dontneed"):
        directory = tmp_path / f"{advice}"
        directory.mkdir()
        rows = [
            (0, "write", 2, "store", 0, 0, length, 0, 0, 0),
            (0, "read", 2, "load", 0, 0, length, 0, 1, 0),
        ]
        trace = write_trace(tmp_path / "t.parquet", rows)
        config = Config(
            tiers={"nvme": str(directory)},
            is_buffered=True,
            fsync="close",
            advice=advice,
            engine=engine,
            is_kept=True,
        )
        found = replay(Replay(config, trace, tmp_path / "run", ["kvreplay"], is_forced=True)).run
        assert found.tiers["nvme"]["fadvise"] == advice
        assert found.summary.errors == 0
        resident[advice] = _resident_bytes(next(directory.rglob("*.kv")))
    if not resident["none"]:
        pytest.skip("this filesystem keeps nothing in the page cache")
    assert resident == {"none": length, "sequential": length, "dontneed": 0}


def _resident_bytes(path: Path) -> int:
    """Return how much of a file lies in the page cache."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as pages:  # fmt: skip
        count = len(pages) // mmap.PAGESIZE
        found = (ctypes.c_ubyte * count)()
        address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        if ctypes.CDLL(None, use_errno=True).mincore(
            ctypes.c_void_p(address), ctypes.c_size_t(len(pages)), found
        ):
            raise OSError(ctypes.get_errno(), "mincore")
        return sum(flag & 1 for flag in found) * mmap.PAGESIZE


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"advice": "dontneed"}, "add buffered"),
        ({"advice": "dontneed", "is_buffered": True}, "add fsync close"),
        ({"advice": "often", "is_buffered": True}, "none … sequential … dontneed"),
        ({"pool": 1_000_000}, "pool=1.00 MB: … 1 MiB"),
        ({"pool": 104_000_000, "queue_depth": 100}, "pool=104 MB: 100 I/Os"),
        ({"checkpoint_depth": 0}, "checkpoint_depth=0"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path, settings, message):
    with pytest.raises(ConfigError, match=pattern(message)):
        check(Config(tiers={"nvme": str(tmp_path)}, **settings))


def test_advice_is_for_files_alone(tmp_path):
    trace = write_trace(tmp_path / "t.parquet", [(0, "write", 2, "store", 0, 0, 4096, 0, 0, 0)])
    config = Config(
        tiers={"nvme": str(tmp_path / "space.dat")},
        is_buffered=True,
        fsync="close",
        advice="dontneed",
    )
    with pytest.raises(ConfigError, match="directory targets"):
        replay(Replay(config, trace, tmp_path / "run", ["kvreplay"]))


def test_a_pool_bounds_the_depth_where_none_is_asked_for(tmp_path):
    tier = [FileTier("nvme", tmp_path, StorageOptions())]
    depths = {}
    for name, is_pooled, settings in (
        ("as ever", False, {"speed": 1.0}),
        ("checkpoints", True, {"speed": 1.0}),
        ("asked", False, {"speed": 1.0, "pool": 200_000_000}),
        ("closed", True, {}),
        ("closed, small", True, {"pool": 4_200_000}),
        ("said", True, {"speed": 1.0, "queue_depth": 300}),
    ):
        config = Config(tiers={"nvme": str(tmp_path)}, **settings)
        found, why = with_depth(config, tier, [0], is_pooled=is_pooled)
        depths[name] = found.queue_depth
        bound = config.pool or (POOL_BYTES if is_pooled and "queue_depth" not in settings else None)
        if bound is not None:
            assert found.depth * found.io_bytes <= bound
            assert (why == "--queue-depth") == ("queue_depth" in settings)
    assert (
        depths["as ever"]
        > depths["asked"]
        > depths["checkpoints"]
        > depths["closed"]
        > depths["closed, small"]
        >= 1
    )
    assert depths["said"] == 300


def _peak_bytes(arguments: list[str]) -> int:
    """Return the most memory that a replay in a process of its own had resident."""
    # Not of getrusage, which begins with what the parent had.
    program = (
        "import atexit, sys\n"
        "from pathlib import Path\n"
        "atexit.register(lambda: print(Path('/proc/self/status').read_text(), file=sys.stderr))\n"
        "from kvreplay.cli import main\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path.cwd(),
    )
    assert done.returncode == 0, done.stderr
    return 1024 * int(done.stderr.rsplit("VmHWM:", 1)[1].split()[0])


@pytest.mark.parametrize("speed", [None, 1.0])
def test_buffers_that_a_run_cannot_fill_are_not_touched(tmp_path, monkeypatch, speed):
    engines = []

    def choose(*args, **kwargs):
        engines.append(engine.choose(*args, **kwargs))
        return engines[-1]

    monkeypatch.setattr(run, "choose", choose)
    rows = [(0, "write", 2, "save", obj, 0, 20 * MIB, 0, 0, 0) for obj in range(3)]
    trace = write_trace(tmp_path / "t.parquet", rows, tiers=_tiers())
    (tmp_path / "d").mkdir()
    config = Config(tiers={"nvme": str(tmp_path / "d")}, is_buffered=True, speed=speed)
    replay(Replay(config, trace, tmp_path / "run", ["kvreplay"]))
    (chosen,) = engines
    # Three objects of 20 MiB, each of which may begin within an I/O; and no read.
    arena = chosen.arena
    assert arena.touched == min(66, arena.count)
    assert (arena.count > 66) is (speed is not None)


@pytest.mark.full
@pytest.mark.parametrize("speed", [[], ["--speed", "1"]])
def test_memory_does_not_follow_the_size_of_a_checkpoint(tmp_path, speed):
    peaks = []
    for parameters in (20_000_000, 100_000_000):
        trace = tmp_path / f"{parameters}.parquet"
        few = [
            "--ranks",
            "4",
            "--every",
            "1s",
            "--duration",
            "1s",
            "--set",
            f"parameters={parameters}",
        ]
        run_cli("kvtrace", "gen", "--preset", "checkpoint", *few, "-o", trace)
        (tmp_path / "d").mkdir(exist_ok=True)
        arguments = [
            "run",
            str(trace),
            "--tier",
            f"nvme={tmp_path / 'd'}",
            "-o",
            str(tmp_path / "run"),
            "--force",
        ]
        peaks.append(_peak_bytes([*arguments, *speed]))
    # 1.4 GB against 280 MB, which both fill all buffers; those that nothing can fill are not
    # touched.
    assert peaks[1] < min(peaks[0] + 48 * MIB, 400_000_000), peaks
