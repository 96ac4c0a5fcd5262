"""Raw block devices.

Every refusal from what the kernel tells, and real replays on a loop device.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import write_trace
from loop_devices import loop_device, losetup
from phrases import shows
from rings import PlainFiles

from kvreplay.engine.native_engine import refusal as ring_refusal
from kvreplay.plan.replay_config import Config
from kvreplay.run.replay import FinishedRun, Replay, replay
from kvreplay.tiers import claims
from kvreplay.tiers.claims import BlockDevice, examine, read_header, refusal, signatures
from kvtrace.core.errors import DeviceError
from kvtrace.core.mounts import mounts

if TYPE_CHECKING:
    from collections.abc import Iterator

IO = 16384
SIZE = 64 << 20
FREE = BlockDevice(name="nvme1n1", size_bytes=1 << 40)
PATH = Path("/dev/nvme1n1")


def test_a_free_device_is_taken_only_if_its_data_may_be_lost() -> None:
    assert refusal(FREE, PATH, is_destroying=True) is None
    assert shows(refusal(FREE, PATH, is_destroying=False), "/dev/nvme1n1 (nvme1n1): … destroy_data")


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"is_root_disk": True}, "root filesystem"),
        (
            {"mounted_at": ("/mnt/a", "/mnt/b")},
            "/mnt/a, /mnt/b … umount /mnt/a",
        ),
        ({"is_swap": True}, "swap"),
        ({"holders": ("dm-0",)}, "dm-0"),
        ({"partitions": ("nvme1n1p1",)}, "nvme1n1p1"),
        (
            {"signatures": ("ext4", "dos")},
            "overwritten=ext4,dos",
        ),
        (
            {"writers": ("postgres (pid 7)",)},
            "postgres (pid 7)",
        ),
        ({"is_read_only": True}, "read-only"),
        ({"size_bytes": 0}, "no medium"),
    ],
)
def test_a_device_in_use_is_refused_even_if_data_may_be_lost(
    facts: dict[str, Any], message: str
) -> None:
    device = BlockDevice(**({"name": "nvme1n1", "size_bytes": 1 << 40} | facts))
    assert shows((refusal(device, PATH, is_destroying=True) or ""), message)


def test_only_signatures_that_are_named_may_be_lost() -> None:
    device = BlockDevice(name="nvme1n1", size_bytes=1 << 40, signatures=("ext4", "dos"))
    assert "holds ext4, dos" in (
        refusal(device, PATH, is_destroying=True, overwritten="ext4") or ""
    )
    assert refusal(device, PATH, is_destroying=True, overwritten="dos,ext4") is None
    assert "add destroy_data" in (
        refusal(device, PATH, is_destroying=False, overwritten="dos,ext4") or ""
    )


def write_files(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_what_the_kernel_tells_of_a_device_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk 8:0 with partitions 8:1, mounted, and 8:2, under dm-0.

    / lies on dm-0, so on this disk too.
    """
    sysfs, proc = tmp_path / "sys", tmp_path / "proc"
    write_files(
        sysfs / "devices/sda",
        {
            "dev": "8:0",
            "size": "2048",
            "ro": "0",
            "queue/rotational": "0",
            "sda1/dev": "8:1",
            "sda1/partition": "1",
            "sda2/dev": "8:2",
            "sda2/partition": "2",
            "sda2/holders/dm-0": "",
        },
    )
    write_files(
        sysfs / "devices/dm-0", {"dev": "253:0", "size": "1024", "ro": "1", "queue/rotational": "0"}
    )
    write_files(
        sysfs / "block",
        {"loop3/loop/backing_file": f"{PATH}\n", "loop4/loop/backing_file": "/a/file\n"},
    )
    (sysfs / "dev/block").mkdir(parents=True)
    (sysfs / "dev/block/8:0").symlink_to(sysfs / "devices/sda")
    (sysfs / "dev/block/253:0").symlink_to(sysfs / "devices/dm-0")
    (sysfs / "devices/dm-0/slaves").mkdir()
    (sysfs / "devices/dm-0/slaves/sda2").symlink_to(sysfs / "devices/sda/sda2")
    write_files(
        proc,
        {
            "self/mountinfo": "21 1 8:1 / /mnt/a\\040b rw,noatime - ext4 /dev/sda1 rw,discard\n",
            "swaps": "Filename Type Size Used Priority\n",
        },
    )
    stats = {PATH: 8 << 8, Path("/"): 253 << 8}
    real = Path.stat

    def stat(self: Path, **kwargs: Any) -> Any:
        if self not in stats:
            return real(self, **kwargs)
        return type(
            "Stat", (), {"st_rdev": stats[self], "st_dev": stats[self], "st_mode": 0o060600}
        )()

    monkeypatch.setattr(Path, "stat", stat)
    assert examine(PATH, sysfs, proc) == BlockDevice(
        name="sda",
        size_bytes=1 << 20,
        partitions=("sda1", "sda2"),
        holders=("dm-0", "loop3"),
        mounted_at=("/mnt/a b",),
        is_root_disk=True,
    )
    (found,) = mounts(proc)
    assert (found.device, found.kind, found.options) == ("8:1", "ext4", "rw,noatime,discard")


@pytest.mark.parametrize(
    ("at", "content", "expected"),
    [
        (510, b"\x55\xaa", ("dos",)),
        (512, b"EFI PART", ("gpt",)),
        (4096, b"EFI PART", ("gpt",)),
        (512, b"LABELONE", ("LVM2_member",)),
        (0, b"LUKS\xba\xbe", ("crypto_LUKS",)),
        (4096, b"\xfc\x4e\x2b\xa9", ("linux_raid_member",)),
        (65600, b"_BHRfS_M", ("btrfs",)),
        (4120, bytes.fromhex("c68573f64e1a45ca8265f57f48ba6d81"), ("bcache",)),
        (0, b"nothing", ()),
    ],
)
def test_signatures_are_recognized_without_util_linux(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at: int,
    content: bytes,
    expected: tuple[str, ...],
) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_a, **_k: None)
    start = bytearray(1 << 20)
    start[at : at + len(content)] = content
    (tmp_path / "d").write_bytes(start)
    assert signatures(tmp_path / "d") == expected


def test_wipefs_names_all_signatures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "wipefs"
    answer = '{"signatures": [{"type": "ext4"}, {"type": "gpt"}, {"type": "gpt"}]}'
    tool.write_text(f"#!/bin/sh\necho '{answer}'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "d").write_bytes(b"nothing that we know")
    assert signatures(tmp_path / "d") == ("ext4", "gpt")


@pytest.mark.root
def test_the_systems_own_disk_is_refused() -> None:
    number = Path("/").stat().st_dev
    name = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    device = Path("/dev") / name.resolve().name
    if not device.is_block_device():
        pytest.skip("/ lies on no block device that is seen here")
    with pytest.raises(DeviceError, match="root filesystem"):
        claims.claim_device(device, 0, is_destroying=True)


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Path]:
    """A loop device over a sparse file; needs root."""
    with loop_device(tmp_path / "backing", SIZE) as device:
        yield device


def row(op: str, obj: int, length: int = IO, ts: int = 0) -> Any:
    return (ts, op, 2, "load", obj, 0, length, None, None, 0)


def run(tmp_path: Path, rows: list[Any], target: object, **options: Any) -> FinishedRun:
    trace = write_trace(tmp_path / "t.parquet", rows)
    config = Config(tiers={"nvme": str(target)}, io_bytes=IO, **({"is_destroying": True} | options))
    return replay(Replay(config, trace, tmp_path / "run", [], is_forced=True))


ROWS = [
    row("read", 0),
    *[r for i in range(1, 40) for r in (row("write", i, 3 * IO), row("read", i, 3 * IO))],
    *[row("delete", i) for i in range(1, 40, 2)],
    *[row("write", i) for i in range(40, 60)],
    *[row("read", i) for i in range(40, 60)],
]


@pytest.mark.star
@pytest.mark.root
@pytest.mark.parametrize("engine", ["threads", "uring"])
@pytest.mark.parametrize("is_discarding", [False, True])
def test_a_replay_on_a_device(tmp_path: Path, loop: Path, engine: str, is_discarding: bool) -> None:
    if engine == "uring" and (why := ring_refusal()) is not None:
        pytest.skip(f"no io_uring: {why}")
    outcome = run(
        tmp_path, ROWS, loop, engine=engine, is_discarding=is_discarding, is_verified=True
    )
    assert outcome.error is None
    assert outcome.run.verification is not None
    assert (outcome.run.verification.corrupt_blocks, outcome.run.verification.unwritten_blocks) == (
        0,
        0,
    )
    facts, moved = outcome.run.tiers["nvme"], outcome.run.device_io["nvme"]
    assert (facts["device"], facts["filesystem"], facts["size_bytes"]) == (loop.name, None, SIZE)
    assert facts["direct_io"]["is_confirmed"] is True
    assert facts["written_first_bytes"] > 0
    read = sum(f.io_bytes or 0 for f in outcome.summary.figures if f.op == "read")
    written = sum(f.io_bytes or 0 for f in outcome.summary.figures if f.op == "write")
    # Every byte comes from the device itself, which nobody else uses.
    assert moved.read_bytes >= read
    assert moved.written_bytes >= written
    again = run(tmp_path, ROWS, loop, engine=engine, is_discarding=is_discarding)
    # What was discarded has to be written anew.
    assert (again.run.tiers["nvme"]["written_first_bytes"] > 0) is is_discarding


@pytest.mark.root
@pytest.mark.parametrize("engine", ["threads", "uring"])
def test_the_device_takes_the_space_once_before_the_replay(
    tmp_path: Path, loop: Path, engine: str
) -> None:
    if engine == "uring" and (why := ring_refusal()) is not None:
        pytest.skip(f"no io_uring: {why}")
    rows = [row("read", i, 10 * IO) for i in range(40)] + [row("write", 99, 5 * IO)]
    counters = Path(f"/sys/block/{loop.name}/stat")

    def written() -> int:
        return int(counters.read_text().split()[6]) * 512

    before = written()
    outcome = run(tmp_path, rows, loop, engine=engine)
    assert outcome.error is None
    facts = outcome.run.tiers["nvme"]
    populated = outcome.run.populated
    assert populated is not None
    assert populated.bytes == 400 * IO
    header = read_header(loop)
    assert header is not None
    space = header.filled_bytes - 4096
    assert space >= 405 * IO * 1.25, "all that was held at once, and a quarter more"
    assert facts["written_first_bytes"] + populated.bytes == space
    # Beside it only the header, a few times.
    assert 0 < written() - before - 5 * IO - space < 10 * 4096


@pytest.mark.root
def test_no_read_is_of_a_hole(tmp_path: Path, loop: Path) -> None:
    """Of objects of 1 MiB only the last 64 KiB are ever written."""
    whole, part = 1 << 20, 64 << 10
    rows = [(i, "write", 2, "store", i, whole - part, part, None, None, 0) for i in range(20)]
    rows += [row("read", i, whole, ts=20) for i in range(20)]
    point = tmp_path / "point"
    point.mkdir()
    subprocess.run(["mkfs.ext4", "-qF", loop], check=True)
    if subprocess.run(["mount", loop, point], check=False, capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")
    (point / "d").mkdir()
    try:
        outcome = run(tmp_path, rows, point / "d", is_verified=True)
    finally:
        subprocess.run(["umount", point], check=True)
    assert outcome.error is None
    assert outcome.run.populated is not None
    assert (outcome.run.populated.objects, outcome.run.populated.bytes) == (20, 20 * whole)
    assert outcome.run.verification is not None
    assert (outcome.run.verification.corrupt_blocks, outcome.run.verification.unwritten_blocks) == (
        0,
        0,
    )
    assert 20 * whole <= outcome.run.device_io["nvme"].read_bytes < 22 * whole
    assert not [note for note in outcome.run.notes if note.startswith("WARNING")]


@pytest.mark.root
def test_a_device_that_did_not_move_what_was_asked_is_warned_of(tmp_path: Path, loop: Path) -> None:
    from kvreplay.run.run_document import run_document
    from kvreplay.tiers.extents import ExtentTier
    from kvreplay.tiers.tier import Native, StorageOptions, TierKind

    class Cached(ExtentTier):
        """Writes, and answers reads without the device."""

        has_ring = False

        def native(self) -> Native:
            return Native(TierKind.PYTHON)

        def reserve(self, object_id: int, end: int) -> None:
            assert self.space.reserve(object_id, end) > 0

        def begin(self, _op: int, object_id: int) -> int:
            return self.space.start(object_id)

        def write(self, handle: int, offset: int, data: memoryview) -> None:
            assert os.pwrite(self._fd, data, handle + offset) == len(data)

        def read(self, _handle: int, _offset: int, into: memoryview) -> int:
            return len(into)

        def end(self, _op: int, _handle: int) -> None:
            pass

    rows = [(0, op, 2, "load", 0, 0, 8 << 20, None, None, 0) for op in ("write", "read")]
    trace = write_trace(tmp_path / "t.parquet", rows)
    tier = Cached("nvme", loop, StorageOptions(is_destroying=True))
    config = Config(tiers={"nvme": str(loop)}, engine="threads")
    outcome = replay(Replay(config, trace, tmp_path / "run", []), tiers=[None, None, tier])
    (warning,) = run_document(outcome).warnings
    assert shows(warning, "WARNING: … nvme … 0 B for the 8.39 MB … 0.00")
    assert warning in outcome.run.notes


@pytest.mark.root
def test_two_runs_exclude_each_other_on_a_device(tmp_path: Path, loop: Path) -> None:
    held, _ = claims.claim_device(loop, 0, is_destroying=True)
    try:
        with pytest.raises(DeviceError, match="in use"):
            run(tmp_path, ROWS, loop)
    finally:
        os.close(held)
    assert run(tmp_path, ROWS, loop).error is None


@pytest.mark.root
def test_a_used_filesystem_or_lack_of_permission_is_refused(tmp_path: Path, loop: Path) -> None:
    with pytest.raises(DeviceError, match="destroy_data"):
        run(tmp_path, ROWS, loop, is_destroying=False)
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is not installed")
    subprocess.run(["mkfs.ext4", "-q", loop], check=True)
    point = tmp_path / "mounted"
    point.mkdir()
    if subprocess.run(["mount", loop, point], check=False, capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")
    try:
        with pytest.raises(DeviceError, match=f"mounted at {point}"):
            run(tmp_path, ROWS, loop)
    finally:
        subprocess.run(["umount", point], check=True)


@pytest.mark.root
def test_a_partitioned_device_is_refused(tmp_path: Path, loop: Path) -> None:
    with loop.open("r+b") as device:
        device.seek(510)
        device.write(b"\x55\xaa")
    with pytest.raises(DeviceError, match=r"dos.*wipefs"):
        run(tmp_path, ROWS, loop)


def start_of(device: Path) -> bytes:
    with device.open("rb") as file:
        return file.read(1 << 16)


@pytest.mark.star
@pytest.mark.root
@pytest.mark.parametrize("programs", [("wipefs", "blkid"), ("blkid",), ()])
@pytest.mark.parametrize(
    ("command", "name"),
    [(["mkswap"], "swap"), (["mkfs.ext4", "-qF"], "ext4"), (["mkfs.xfs", "-qf"], "xfs")],
)
def test_a_signature_must_be_named_to_be_lost(
    tmp_path: Path,
    loop: Path,
    monkeypatch: pytest.MonkeyPatch,
    programs: tuple[str, ...],
    command: list[str],
    name: str,
) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    os.truncate(tmp_path / "backing", 512 << 20)
    subprocess.run(["losetup", "--set-capacity", loop], check=True)
    subprocess.run([*command, str(loop)], check=True, capture_output=True)
    before = start_of(loop)
    real = shutil.which
    monkeypatch.setattr(
        shutil, "which", lambda p, *a, **k: real(p, *a, **k) if p in programs else None
    )
    with pytest.raises(DeviceError, match=rf"{name};.*overwritten={name}"):
        run(tmp_path, ROWS, loop)
    assert start_of(loop) == before
    assert run(tmp_path, ROWS, loop, overwritten=name).error is None
    assert run(tmp_path, ROWS, loop).error is None, "what is lost need not be named again"


@pytest.mark.root
def test_a_device_that_another_process_writes_is_refused(tmp_path: Path, loop: Path) -> None:
    """It holds it without O_EXCL, which the kernel lets it share."""
    holder = (
        "import os, sys; os.open(sys.argv[1], int(sys.argv[2])); print(flush=True);"
        " sys.stdin.read()"
    )
    for flags, is_refused in ((os.O_RDWR, True), (os.O_WRONLY, True), (os.O_RDONLY, False)):
        command = [sys.executable, "-c", holder, str(loop), str(flags)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            if is_refused:
                with pytest.raises(DeviceError, match=rf"\(pid {process.pid}\)"):
                    run(tmp_path, ROWS, loop)
            else:
                assert run(tmp_path, ROWS, loop).error is None
            process.communicate()
    assert run(tmp_path, ROWS, loop).error is None


@pytest.mark.root
def test_a_device_beneath_a_loop_device_is_refused(tmp_path: Path, loop: Path) -> None:
    above = losetup("--find", "--show", loop)
    try:
        with pytest.raises(DeviceError, match=rf"\({Path(above).name}\)"):
            run(tmp_path, ROWS, loop)
    finally:
        subprocess.run(["losetup", "--detach", above], check=False)


@pytest.mark.root
def test_the_peak_must_fit_the_device(tmp_path: Path, loop: Path) -> None:
    with pytest.raises(DeviceError, match=r"1\.07 GB.*67\.1 MB"):
        run(tmp_path, [row("write", 0, 1 << 30)], loop)


@pytest.mark.root
def test_preconditioning_takes_the_whole_device(tmp_path: Path, loop: Path) -> None:
    outcome = run(tmp_path, ROWS, loop, precondition="twice")
    (done,) = outcome.run.preconditioned
    assert (done.file_bytes, done.written_bytes) == (SIZE - 4096, 2 * (SIZE - 4096))
    assert outcome.run.tiers["nvme"]["written_first_bytes"] == 0, "it is all written already"


@pytest.mark.root
@pytest.mark.parametrize("engine", ["threads", "uring"])
def test_a_device_error_keeps_what_was_measured(tmp_path: Path, loop: Path, engine: str) -> None:
    """A loop device answers reads behind the end of its file with EIO."""
    if engine == "uring" and (why := ring_refusal()) is not None:
        pytest.skip(f"no io_uring: {why}")
    from kvreplay.tiers.extents import ExtentTier
    from kvreplay.tiers.tier import StorageOptions

    class Shortening(PlainFiles):
        """Files; to write one shortens the file below the loop device."""

        def begin(self, op: int, object_id: int) -> int:
            os.truncate(tmp_path / "backing", 4096)
            return super().begin(op, object_id)

    # Long enough that no read ahead or cache of the file below can answer.
    rows = [
        *[row("write", i, ts=i) for i in range(10)],
        row("read", 3, ts=10),
        (11, "write", 1, "load", 9, 0, IO, None, None, 0),
        row("read", 4, ts=12),
        row("read", 5, ts=13),
    ]
    rows = [(*r[:7], 1, at, 0) for at, r in enumerate(rows)]
    trace = write_trace(tmp_path / "t.parquet", rows)
    (tmp_path / "d").mkdir()
    tier = ExtentTier("nvme", loop, StorageOptions(is_destroying=True))
    beside = Shortening("cpu", tmp_path / "d", StorageOptions(is_buffered=True))
    config = Config(
        tiers={"nvme": str(loop), "cpu": str(tmp_path / "d")}, io_bytes=IO, engine=engine
    )
    outcome = replay(Replay(config, trace, tmp_path / "run", []), tiers=[None, beside, tier])
    assert isinstance(outcome.error, DeviceError)
    assert shows(str(outcome.error), "row 12: read … object 4: … Input/output")
    assert (outcome.run.status, outcome.summary.operations, outcome.summary.not_reached) == (
        "partial",
        12,
        1,
    )
