"""What a run says of devices whose behaviour is known.

Too slow for what is asked, throttled, limited, in memory.
"""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import run_cli, write_trace
from phrases import shows

from kvreplay.plan.replay_config import Config
from kvreplay.run.replay import Replay, replay
from kvreplay.run.run_document import run_document
from kvreplay.tiers.host import throttles
from kvtrace.core.run.figures import LimitCause, RunVerdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.core.run.run_file import RunFile

MIB = 1 << 20
MS = 1_000_000
THROTTLE_BYTES = 50_000_000
V1 = Path("/sys/fs/cgroup/blkio")
V2 = Path("/sys/fs/cgroup")


def row(op: str, tier: int, obj: int, length: int, *, ts: int = 0, offset: int = 0) -> Any:
    return (ts, op, tier, "load", obj, offset, length, None, None, 0)


def reads(length: int, *, per_s: float, seconds: float, objects: int = 64) -> list[Any]:
    """Return reads of objects that are written half a second before."""
    written = [row("write", 2, i, length) for i in range(objects)]
    count = int(per_s * seconds)
    return written + [
        row("read", 2, i % objects, length, ts=500 * MS + int(i * 1e9 / per_s))
        for i in range(count)
    ]


def replayed(
    tmp_path: Path, rows: list[Any], target: object, *, tier: str = "nvme", **config: Any
) -> RunFile:
    trace = write_trace(tmp_path / "t.parquet", rows)
    done = replay(
        Replay(
            Config(tiers={tier: str(target)}, **config), trace, tmp_path / "run", [], is_forced=True
        )
    )
    assert run_document(done).headline.startswith(done.summary.verdict)
    return done.run


def judged(run: RunFile) -> RunVerdict:
    assert run.summary.judgement is not None
    return run.summary.judgement


def skip_if_crowded(found: RunVerdict) -> None:
    """Skip a test of a device that needs processors if others had them and the verdict says so."""
    if found.cause is LimitCause.PROCESSOR:
        assert (found.evidence.processor_share or 0.0) >= 0.25
        # The device had nothing to do meanwhile.
        assert found.evidence.device_busy_share is not None
        assert found.evidence.device_busy_share < 0.9
        pytest.skip(
            "other processes left the loop device too little of the processors, and the verdict"
            " says so"
        )


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs; needs root."""
    at = tmp_path / "memory"
    at.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", at], check=False, capture_output=True
    )
    if done.returncode:
        pytest.skip(f"tmpfs cannot be mounted: {done.stderr.decode().strip()}")
    yield at
    subprocess.run(["umount", "--lazy", at], check=True)


@pytest.fixture
def loop(memory: Path) -> Iterator[Path]:
    """A loop device over tmpfs; needs root."""
    backing = memory / "backing"
    with backing.open("wb") as file:
        file.truncate(128 << 20)
    done = subprocess.run(
        ["losetup", "--find", "--show", backing], check=False, capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"no loop device: {done.stderr.strip()}")
    device = Path(done.stdout.strip())
    requests = queue_of(device, "nr_requests").read_text()
    yield device
    # The kernel keeps it for whoever gets this device next.
    with suppress(OSError):
        queue_of(device, "nr_requests").write_text(requests)
    subprocess.run(["losetup", "--detach", device], check=False)


def queue_of(loop: Path, name: str) -> Path:
    return Path("/sys/block") / loop.name / "queue" / name


@pytest.fixture
def throttled(loop: Path) -> Iterator[str]:
    """Let this process read THROTTLE_BYTES a second of the device.

    Yields how the kernel says it.
    """
    number = (Path("/sys/block") / loop.name / "dev").read_text().strip()
    v1, v2 = V1 / f"kvreplay-{os.getpid()}", V2 / f"kvreplay-{os.getpid()}"
    if (V1 / "blkio.throttle.read_bps_device").exists():
        group, name, text = v1, "blkio.throttle.read_bps_device", f"{number} {THROTTLE_BYTES}"
        said = f"{name} {text} of {group}"
    elif (
        "io" in (V2 / "cgroup.subtree_control").read_text().split()
        if (V2 / "cgroup.subtree_control").exists()
        else 0
    ):
        group, name, text = v2, "io.max", f"{number} rbps={THROTTLE_BYTES}"
        said = f"io.max rbps={THROTTLE_BYTES} of {group}"
    else:
        pytest.skip("no control group here throttles I/O")
    before = next(
        line.split(":", 2)[2]
        for line in Path("/proc/self/cgroup").read_text().splitlines()
        if ("blkio" in line.split(":")[1].split(",")) == (group is v1)
        and (group is v1 or line.startswith("0::"))
    )
    group.mkdir()
    try:
        (group / name).write_text(text)
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield said
    finally:
        (group.parent / before.lstrip("/") / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


@pytest.mark.root
@pytest.mark.full
@pytest.mark.parametrize("requests", [None, 4])
def test_a_device_that_cannot_is_the_limit(
    tmp_path: Path, loop: Path, requests: int | None
) -> None:
    # 20 GB/s of reads of 128 KiB: a loop device copies with one processor. What is in flight fits
    # the buffers that a run begins with, so that none is waited for on a busy machine.
    if requests is not None:
        try:
            queue_of(loop, "nr_requests").write_text(str(requests))
        except OSError as error:
            pytest.skip(f"the device's queue cannot be made short: {error}")
    rows = reads(MIB // 8, per_s=160_000, seconds=0.4)
    run = replayed(tmp_path, rows, loop, speed=1.0, is_destroying=True, io_bytes=MIB // 8)
    found = judged(run)
    assert found.has_reached is False
    assert found.sentence.startswith("FELL BEHIND: nvme delivered ")
    skip_if_crowded(found)
    assert found.cause is LimitCause.DRIVE
    assert "device in memory" in found.sentence
    if requests is not None:
        assert shows(found.sentence, " takes 4")


@pytest.mark.root
@pytest.mark.full
def test_a_queue_depth_that_bound_is_named(tmp_path: Path, loop: Path) -> None:
    rows = reads(MIB, per_s=20_000, seconds=0.4)
    run = replayed(tmp_path, rows, loop, speed=1.0, is_destroying=True, queue_depth=2)
    found = judged(run)
    skip_if_crowded(found)
    assert found.cause is LimitCause.QUEUE_LIMIT
    assert "2 (--queue-depth)" in found.sentence
    assert "of 2" in found.sentence
    assert found.evidence.held_share is not None
    assert found.evidence.held_share > 0.5
    closed = [(0, *each[1:]) for each in rows]
    found = judged(replayed(tmp_path, closed, loop, is_destroying=True, queue_depth=2))
    skip_if_crowded(found)
    assert found.cause is LimitCause.QUEUE_LIMIT
    assert "--queue-depths" in found.sentence


@pytest.mark.root
@pytest.mark.full
@pytest.mark.parametrize("speed", [1.0, None])
def test_a_throttle_above_the_device_is_told(
    tmp_path: Path, loop: Path, throttled: str, speed: float | None
) -> None:
    assert [limit.where for limit in throttles(loop)] == [throttled]
    rows = reads(65536, per_s=2000, seconds=1)
    found = judged(replayed(tmp_path, rows, loop, speed=speed, is_destroying=True))
    skip_if_crowded(found)
    assert (found.cause, found.evidence.throttle) == (LimitCause.THROTTLE, throttled)
    assert f"device in memory ({throttled}" in found.sentence


@pytest.mark.root
def test_tmpfs_is_no_drive(tmp_path: Path, memory: Path) -> None:
    run = replayed(tmp_path, [row("write", 2, i, 65536) for i in range(256)] * 8, memory)
    assert "drive" not in judged(run).sentence
    assert judged(run).evidence.storage == "memory"
    assert run.tiers["nvme"]["is_direct"] is False


def test_the_page_cache_is_no_drive(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    rows = [row("write", 2, i, 65536) for i in range(256)] * 8
    run = replayed(tmp_path, rows, tmp_path / "d", is_buffered=True)
    assert "drive" not in judged(run).sentence
    assert judged(run).evidence.storage == "page cache"
    assert run.tiers["nvme"]["is_direct"] is False


@pytest.mark.full
def test_memory_that_objects_grow_into_is_there_before_the_run(tmp_path: Path) -> None:
    # 3 GB/s in writes at the end of objects that grow, 300 MB in all.
    rows = [
        row("write", 1, i % 2000, 9000, ts=i * 3000, offset=i // 2000 * 9000) for i in range(34_000)
    ]  # fmt: skip
    run = replayed(tmp_path, rows, "ram", tier="cpu", speed=1.0)
    found = judged(run)
    assert found.cause not in (LimitCause.MEMORY, LimitCause.DATA)
    assert found.evidence.touch_share is not None
    assert found.evidence.touch_share < 0.05
    assert "drive" not in found.sentence


def test_a_load_well_within_capacity_does_not_fall_behind(tmp_path: Path) -> None:
    rows = [row("write", 1, i, 65536, ts=i * MS) for i in range(500)]
    trace = write_trace(tmp_path / "t.parquet", rows)
    done = run_cli(
        "kvreplay", "run", trace, "--tier", "cpu=ram", "--speed", "1", "-o", tmp_path / "run"
    )
    # 64 KiB each millisecond.
    assert shows(done.stdout, "cpu … 65.5 MB/s")
    kept = json.loads((tmp_path / "run" / "run.json").read_text())["summary"]
    assert kept["judgement"]["evidence"]["is_end_late"] is False
    assert kept["judgement"]["has_reached"] is (kept["pace"]["on_time_fraction"] >= 0.99)


def test_limits_of_a_group_are_read_as_the_kernel_writes_them(tmp_path: Path) -> None:
    number = _number_beneath(tmp_path)
    if number is None:
        pytest.skip("no block device is seen beneath")
    own, proc = tmp_path / "cg" / "a" / "b", tmp_path / "proc"
    own.mkdir(parents=True)
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text("3:cpu:/\n0::/a/b\n")
    (proc / "self/mountinfo").write_text(f"30 1 0:26 / {tmp_path / 'cg'} rw - cgroup2 cgroup2 rw\n")
    (own / "io.max").write_text(
        f"{number} rbps=1000 wbps=max riops=20 wiops=max\n999:9 rbps=1 wbps=1\n"
    )
    (own.parent / "io.max").write_text(f"{number} rbps=max wbps=3000 riops=max wiops=max\n")
    found = [
        (limit.is_write, limit.is_bytes, limit.per_s, limit.where)
        for limit in throttles(tmp_path, proc)
    ]
    assert found == [
        (False, True, 1000, f"io.max rbps=1000 of {own}"),
        (False, False, 20, f"io.max riops=20 of {own}"),
        (True, True, 3000, f"io.max wbps=3000 of {own.parent}"),
    ]


def _number_beneath(path: Path) -> str | None:
    from kvreplay.tiers.host import block_device

    disk = block_device(path)
    return None if disk is None else (disk / "dev").read_text().strip()
