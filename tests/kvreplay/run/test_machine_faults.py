"""What a machine does to a run that goes on: each fault is one error, and what was measured stays."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import run_process, write_trace
from rings import PlainFiles
from whole import read_table

from kvreplay.plan.replay_config import Config
from kvreplay.run.replay import FinishedRun, Replay, replay
from kvreplay.tiers.extents import ExtentTier
from kvreplay.tiers.files import FileTier
from kvreplay.tiers.tier import StorageOptions, Tier
from kvtrace.core.errors import DeviceError
from kvtrace.core.schema import OPS

IO = 16_384
MIB = 1 << 20


def mount(point: Path, size: int) -> None:
    point.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(point)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """Mount a filesystem of 16 MiB in memory."""
    point = tmp_path / "mounted"
    mount(point, 16 * MIB)
    yield point
    subprocess.run(["mount", "-o", "remount,rw", point], check=False)
    subprocess.run(["umount", point], check=True)


class Trigger(PlainFiles):
    """Files beside the tier that is tested: to open one does something to that."""

    def __init__(self, folder: Path, act: Callable[[], object]) -> None:
        super().__init__("cpu", folder, StorageOptions(is_buffered=True))
        self._act = act

    def begin(self, op: int, object_id: int) -> int:
        self._act()
        return super().begin(op, object_id)


def run_with(
    tmp_path: Path, tier: Tier, target: Path, act: Callable[[], object], last: str
) -> tuple[FinishedRun, list[dict[str, Any]]]:
    """Write and read an object, do `act`, and then do `last` to it."""
    steps = [("write", 2), ("read", 2), ("write", 1), (last, 2)]
    rows = [
        (0, op, index, "load", 0, 0, 4 * IO, 1, stage, 0) for stage, (op, index) in enumerate(steps)
    ]
    trace = write_trace(tmp_path / "t.parquet", rows)
    (tmp_path / "beside").mkdir()
    beside = Trigger(tmp_path / "beside", act)
    targets = {"nvme": str(target), "cpu": str(tmp_path / "beside")}
    config = Config(tiers=targets, io_bytes=IO, engine="threads", is_buffered=True)
    done = replay(Replay(config, trace, tmp_path / "run", []), tiers=[None, beside, tier])
    return done, read_table(tmp_path / "run" / "ops.parquet", OPS).to_pylist()


@pytest.mark.root
def test_a_filesystem_that_turns_read_only_fails_the_next_write(tmp_path, mounted):
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is not installed (apt-get install e2fsprogs)")
    image, point = mounted / "image", tmp_path / "ext4"
    with image.open("wb") as file:
        file.truncate(12 * MIB)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    point.mkdir()
    loop = subprocess.run(
        ["losetup", "--find", "--show", image], check=True, capture_output=True, text=True
    ).stdout.strip()
    try:
        options = ["-o", "errors=remount-ro"]
        if subprocess.run(["mount", "-t", "ext4", *options, loop, point], check=False).returncode:
            pytest.skip("ext4 cannot be mounted here")
        trigger = Path("/sys/fs/ext4") / Path(loop).name / "trigger_fs_error"
        if not trigger.exists():
            pytest.skip("the kernel cannot be told to find an error of ext4")
        (point / "d").mkdir()
        tier = FileTier("nvme", point / "d", StorageOptions(is_buffered=True))
        act = partial(trigger.write_text, "a test", encoding="ascii")
        done, ops = run_with(tmp_path, tier, point / "d", act, "write")
        assert isinstance(done.error, DeviceError)
        assert "Read-only" in str(done.error)
        assert [op["outcome"] for op in ops] == ["ok", "ok", "ok", "error"]
    finally:
        subprocess.run(["umount", point], check=False)
        subprocess.run(["losetup", "--detach", loop], check=True)


@pytest.mark.root
def test_a_file_cut_short_in_a_run_is_a_short_read(tmp_path, mounted):
    path = mounted / "space.dat"
    tier = ExtentTier("nvme", path, StorageOptions(is_buffered=True))
    done, ops = run_with(tmp_path, tier, path, lambda: os.truncate(path, 0), "read")
    assert isinstance(done.error, DeviceError)
    assert "short read" in str(done.error)
    assert [op["outcome"] for op in ops] == ["ok", "ok", "ok", "short"]


@pytest.mark.root
def test_a_full_output_is_one_error(tmp_path):
    output = tmp_path / "out"
    mount(output, 64 << 10)
    try:
        rows = [(i * 1000, "write", 2, "store", i, 0, 4096, i, 0, 0) for i in range(20_000)]
        trace = write_trace(tmp_path / "t.parquet", rows)
        command = ["run", trace, "--tier", "nvme=ram", "-o", output / "run"]
        done = run_process("kvreplay", *command, check=False)
        assert done.returncode == 4
        assert "No space" in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr
    finally:
        subprocess.run(["umount", output], check=True)


@pytest.mark.root
def test_a_full_shared_memory_stops_no_run(tmp_path):
    rows = [(i * 1000, "write", 2, "store", i, 0, 4096, i, 0, 0) for i in range(100)]
    trace = write_trace(tmp_path / "t.parquet", rows)
    (tmp_path / "d").mkdir()
    command = f"{sys.executable} -m kvreplay.cli run {trace} --tier nvme=d --buffered -o run"
    script = f"mount -t tmpfs -o size=64k tmpfs /dev/shm && dd if=/dev/zero of=/dev/shm/full 2>/dev/null; {command}"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare failed" in done.stderr or "permission denied" in done.stderr:
        pytest.skip("no mount namespaces here")
    assert done.returncode == 0, done.stderr


@pytest.mark.root
def test_a_program_without_privileges_is_refused_in_one_line(tmp_path):
    if subprocess.run(["setpriv", "--version"], check=False, capture_output=True).returncode:
        pytest.skip("setpriv is not installed")
    rows = [(i * 1000, "write", 2, "store", i, 0, 4096, i, 0, 0) for i in range(10)]
    trace = write_trace(tmp_path / "t.parquet", rows)
    for name in ("d", "closed"):
        (tmp_path / name).mkdir()
    without = [
        "setpriv",
        "--bounding-set=-all",
        "--inh-caps=-all",
        sys.executable,
        "-m",
        "kvreplay.cli",
    ]
    without += ["run", str(trace), "--buffered"]
    whole = subprocess.run(
        [*without, "--tier", "nvme=d", "-o", "run"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert whole.returncode == 0, whole.stderr
    (tmp_path / "closed").chmod(0o500)
    for options in (
        ["--tier", "nvme=closed", "-o", "run2"],
        ["--tier", "nvme=d", "-o", "closed/run"],
    ):
        done = subprocess.run(
            [*without, *options], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 4, done.stderr
        assert "ermission" in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr


def device_mapper_reason() -> str | None:
    """Return why there are no mapped devices that fail, or None if there are."""
    if "device-mapper" not in Path("/proc/misc").read_text(encoding="ascii"):
        return "the kernel has no device mapper (dm-mod)"
    done = subprocess.run(["dmsetup", "targets"], check=False, capture_output=True, text=True)
    lacking = [name for name in ("error", "flakey") if name not in done.stdout]
    return f"the device mapper has no target {', '.join(lacking)}" if lacking else None


@pytest.mark.root
@pytest.mark.parametrize("table", ["error", "flakey"])
def test_a_device_that_fails_in_a_run_is_one_error(tmp_path, mounted, table):
    if (reason := device_mapper_reason()) is not None:
        pytest.skip(reason)
    image, name = mounted / "image", f"kvreplay-{os.getpid()}-{table}"
    with image.open("wb") as file:
        file.truncate(12 * MIB)
    loop = subprocess.run(
        ["losetup", "--find", "--show", image], check=True, capture_output=True, text=True
    ).stdout.strip()
    sectors = 12 * MIB // 512
    failing = f"0 {sectors} error" if table == "error" else f"0 {sectors} flakey {loop} 0 0 3600"
    try:
        subprocess.run(
            ["dmsetup", "create", name, "--table", f"0 {sectors} linear {loop} 0"], check=True
        )

        def fail() -> None:
            subprocess.run(["dmsetup", "load", name, "--table", failing], check=True)
            for action in ("suspend", "resume"):
                subprocess.run(["dmsetup", action, name], check=True)

        path = Path("/dev/mapper") / name
        tier = ExtentTier("nvme", path, StorageOptions(is_destroying=True))
        done, ops = run_with(tmp_path, tier, path, fail, "write")
        assert isinstance(done.error, DeviceError)
        assert [op["outcome"] for op in ops] == ["ok", "ok", "ok", "error"]
    finally:
        subprocess.run(["dmsetup", "remove", "--retry", name], check=False)
        subprocess.run(["losetup", "--detach", loop], check=True)
