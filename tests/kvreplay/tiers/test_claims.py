"""Which targets are refused, and that nothing but our own files is ever removed."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from conftest import write_trace

from kvreplay.plan.replay_config import Config
from kvreplay.run.replay import Replay, replay
from kvreplay.tiers import directio, ram
from kvreplay.tiers.claims import MARKER, SCRATCH, check_target, claim, release
from kvtrace.core.errors import ConfigError, DeviceError


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/etc",
        "/usr",
        "/usr/share",
        "/boot",
        "/proc",
        "/sys",
        "/dev",
        "/var",
        "/var/lib",
        "/root",
        "/home",
        "/tmp",
        "/dev/shm",
    ],
)
def test_system_paths_are_refused(path: str) -> None:
    if not Path(path).is_dir():
        pytest.skip(f"{path} is absent here")
    with pytest.raises(DeviceError, match="system path"):
        check_target(Path(path))


def test_what_a_check_of_the_filesystem_found_is_no_target(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    assert check_target(tmp_path) == tmp_path, "it may lie in one"
    with pytest.raises(DeviceError, match="system path"):
        check_target(tmp_path / "lost+found")


def test_a_link_to_a_system_path_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to("/etc")
    with pytest.raises(DeviceError, match="system path"):
        check_target(tmp_path / "data")


def test_the_home_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(DeviceError, match="system path"):
        check_target(tmp_path)


def test_what_is_no_empty_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="mkdir"):
        check_target(tmp_path / "absent")
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(DeviceError, match="a directory"):
        check_target(file)
    with pytest.raises(DeviceError, match=r"not empty \(file\)"):
        check_target(tmp_path)


def test_a_block_device_is_refused_by_name() -> None:
    devices = [p for p in Path("/dev").iterdir() if p.is_block_device()]
    if not devices:
        pytest.skip("no block device here")
    with pytest.raises(DeviceError, match="block device"):
        check_target(devices[0])


def test_a_fresh_filesystem_with_lost_and_found_is_taken(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    assert check_target(tmp_path) == tmp_path.resolve()


def test_a_scratch_directory_without_our_marker_is_refused(tmp_path: Path) -> None:
    (tmp_path / SCRATCH / "00").mkdir(parents=True)
    with pytest.raises(DeviceError, match="marker file"):
        claim(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    (other / SCRATCH).symlink_to(tmp_path)
    with pytest.raises(DeviceError, match="not a directory"):
        claim(other)


def test_two_claims_exclude_each_other(tmp_path: Path) -> None:
    held = claim(tmp_path)
    with pytest.raises(DeviceError, match="another kvreplay"):
        claim(tmp_path)
    release(held, is_kept=False)
    release(claim(tmp_path), is_kept=False)
    assert list(tmp_path.iterdir()) == []


def test_only_our_files_are_removed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / f"{1:016x}.kv").write_text("not ours")
    target = tmp_path / "target"
    target.mkdir()
    held = claim(target)
    ours = held.scratch / "0f"
    ours.mkdir()
    (ours / f"{5:016x}.kv").write_text("ours")
    (ours / "notes.txt").write_text("someone's")
    (held.scratch / "ab").symlink_to(outside)
    release(held, is_kept=False)
    assert sorted(p.name for p in held.scratch.rglob("*")) == ["0f", MARKER, "ab", "notes.txt"]
    assert (outside / f"{1:016x}.kv").read_text() == "not ours"


@pytest.mark.first(stray=1)
@pytest.mark.parametrize("stray", ["0f/notes.txt", "notes.txt", "0f/deep/er/x", "other/x"])
def test_a_stray_file_in_our_leftovers_blocks_no_run(tmp_path: Path, stray: str) -> None:
    target = tmp_path / "drive"
    file = target / SCRATCH / stray
    file.parent.mkdir(parents=True)
    (target / SCRATCH / MARKER).touch()
    file.write_text("someone's")
    config = Config(tiers={"nvme": str(target)}, is_buffered=True)
    for _ in range(2):
        finished = replay(
            Replay(config, trace_of(tmp_path, 2, 4096), tmp_path / "run", [], is_forced=True)
        )
        assert finished.error is None
        assert file.read_text() == "someone's"


@pytest.mark.parametrize("content", [b"", b"x", b"x" * 8192])
def test_a_file_that_we_did_not_make_is_not_ours(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "space.dat"
    file.write_bytes(content)
    with pytest.raises(DeviceError, match="kvreplay's"):
        replay(
            Replay(
                Config(tiers={"nvme": str(file)}, is_buffered=True),
                trace_of(tmp_path, 2, 4096),
                tmp_path / "run",
                [],
            )
        )
    assert file.read_bytes() == content


def test_a_vanished_directory_is_no_second_fault(tmp_path: Path) -> None:
    held = claim(tmp_path)
    (held.scratch / MARKER).unlink()
    held.scratch.rmdir()
    release(held, is_kept=False)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(held.lock)


def trace_of(tmp_path: Path, tier: int, length: int) -> Path:
    return write_trace(
        tmp_path / "t.parquet", [(0, "write", tier, "store", 0, 0, length, None, None, 0)]
    )


def test_too_little_space_names_both_figures_and_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "drive"
    target.mkdir()
    trace = trace_of(tmp_path, 2, 1 << 49)
    with pytest.raises(
        DeviceError,
        match=r"563 TB.*limit",
    ):
        replay(Replay(Config(tiers={"nvme": str(target)}), trace, tmp_path / "run", []))
    assert list(target.iterdir()) == []


def test_too_little_memory_names_both_figures(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, 1, 1 << 50)
    with pytest.raises(
        DeviceError,
        match=r"tiers=.*cpu.*1\.13 PB",
    ):
        replay(Replay(Config(tiers={"cpu": "ram"}), trace, tmp_path / "run", []))


def test_tiers_in_one_memory_must_fit_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 1 << 20
    rows = [(0, "write", tier, "store", 0, 0, size, None, None, 0) for tier in (0, 1)]
    trace = write_trace(tmp_path / "t.parquet", rows)
    monkeypatch.setattr(ram, "available_bytes", lambda: ram.SINK_BYTES + size)
    replay(Replay(Config(tiers={"cpu": "ram"}), trace, tmp_path / "one", []))
    with pytest.raises(DeviceError, match="limit"):
        replay(Replay(Config(tiers={"cpu": "ram", "gpu": "ram"}), trace, tmp_path / "two", []))


def test_a_filesystem_without_direct_io_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refusing(path: Any, flags: int, *rest: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(path, flags, *rest)

    target = tmp_path / "drive"
    target.mkdir()
    trace = trace_of(tmp_path, 2, 4096)
    monkeypatch.setattr(os, "open", refusing)
    with pytest.raises(
        DeviceError,
        match=r"O_DIRECT \(Invalid argument\).*--buffered",
    ):
        replay(Replay(Config(tiers={"nvme": str(target)}), trace, tmp_path / "run", []))
    assert list(target.iterdir()) == []
    replay(
        Replay(Config(tiers={"nvme": str(target)}, is_buffered=True), trace, tmp_path / "run", [])
    )


def test_direct_io_that_the_kernel_does_not_support_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directio, "statx_alignment", lambda _fd: (0, 0))
    with pytest.raises(DeviceError, match="use --buffered"):
        directio.probe(tmp_path, "here")
    assert list(tmp_path.iterdir()) == []


def test_one_directory_cannot_be_two_tiers_nor_hold_the_result(tmp_path: Path) -> None:
    target = tmp_path / "drive"
    target.mkdir()
    trace = trace_of(tmp_path, 2, 4096)
    with pytest.raises(ConfigError, match="tier cpu"):
        replay(
            Replay(
                Config(tiers={"cpu": str(target), "nvme": str(target)}), trace, tmp_path / "run", []
            )
        )
    with pytest.raises(ConfigError, match=r"inside.*tier nvme"):
        replay(Replay(Config(tiers={"nvme": str(target)}), trace, target / "run", []))
