"""Block devices: which of them a replay may destroy, and what a drive says of its firmware and health.

What the kernel knows of a device is read first (`examine`) and judged apart from it (`refusal`). At last the
device is opened exclusively, which the kernel refuses while anything else holds it.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from kvreplay.tiers.host import SECTOR_BYTES, block_device, mounts, sys_text
from kvtrace.core.errors import DeviceError
from kvtrace.core.run.run_file import Smart

_MBR_SIGNATURE, _MBR_AT = b"\x55\xaa", 510
_GPT_SIGNATURE, _GPT_AT = b"EFI PART", (512, 4096)
_LOOKED_AT_BYTES = 8192


@dataclass(frozen=True, slots=True)
class BlockDevice:
    """What is known of a block device."""

    name: str
    """The kernel's, such as nvme1n1."""
    size_bytes: int
    is_read_only: bool = False
    partitions: tuple[str, ...] = ()
    holders: tuple[str, ...] = ()
    """Devices built on it or its partitions: LVM, RAID, encryption."""
    mounted_at: tuple[str, ...] = ()
    """Mount points of it or its partitions."""
    is_swap: bool = False
    is_root_disk: bool = False
    """Whether / lies on it, on a part of it, or on the disk it is a part of."""
    table: str | None = None
    """The partition table or boot sector at its start."""


def examine(path: Path, sysfs: Path = Path("/sys"), proc: Path = Path("/proc")) -> BlockDevice:
    """Return what the kernel tells of the block device at `path`; what it holds is not read."""
    number = _number(path.stat().st_rdev)
    at = (sysfs / "dev/block" / number).resolve()
    if not at.is_dir():
        raise DeviceError(f"{path}: the kernel tells nothing of this device ({at} is absent)")
    parts = _partitions(at)
    ours = {number} | {text for part in parts if (text := sys_text(at / part / "dev"))}
    disk = at if (at / "queue").is_dir() else at.parent
    return BlockDevice(
        name=at.name,
        size_bytes=int(sys_text(at / "size") or 0) * SECTOR_BYTES,
        is_read_only=sys_text(at / "ro") == "1",
        partitions=parts,
        holders=tuple(sorted(h for part in (at, *(at / p for p in parts)) for h in _entries(part / "holders"))),
        mounted_at=tuple(m.point for m in mounts(proc) if m.device in ours),
        is_swap=any(s in ours for s in _swaps(proc)),
        is_root_disk=disk.name in _disks_below_root(sysfs),
    )


def logical_block_bytes(path: Path) -> int:
    """Return the unit in which the block device at `path` is addressed; 512 where the kernel does not tell."""
    disk = block_device(path)
    return int((disk and sys_text(disk / "queue/logical_block_size")) or SECTOR_BYTES)


def _number(device: int) -> str:
    return f"{os.major(device)}:{os.minor(device)}"


def _entries(directory: Path) -> list[str]:
    return [entry.name for entry in directory.iterdir()] if directory.is_dir() else []


def _partitions(at: Path) -> tuple[str, ...]:
    return tuple(sorted(entry.name for entry in at.iterdir() if (entry / "partition").is_file()))


def _swaps(proc: Path) -> list[str]:
    found = []
    for line in (sys_text(proc / "swaps") or "").splitlines()[1:]:
        path = Path(line.split()[0])
        if path.is_block_device():
            found.append(_number(path.stat().st_rdev))
    return found


def _disks_below_root(sysfs: Path) -> set[str]:
    """Return the names of all disks that / lies on, through RAID and the like."""
    found: set[str] = set()
    waiting = [(sysfs / "dev/block" / _number(Path("/").stat().st_dev)).resolve()]
    while waiting:
        at = waiting.pop()
        if not at.is_dir():
            continue
        found.add((at if (at / "queue").is_dir() else at.parent).name)
        waiting += [(at / "slaves" / name).resolve() for name in _entries(at / "slaves")]
    return found


def refusal(device: BlockDevice, path: Path, *, is_destroying: bool) -> str | None:
    """Return why a replay may not write to `device`, and what would help; None if it may."""
    unmount = f"unmount it first (umount {device.mounted_at[0]})" if device.mounted_at else ""
    wipe = f"name a partition, or remove it first (wipefs --all {path})"
    checks = (
        (device.is_root_disk, "the system's root filesystem lies on this disk; name another device"),
        (bool(device.mounted_at), f"mounted at {', '.join(device.mounted_at)}; {unmount}"),
        (device.is_swap, f"used for swap; name another device, or swapoff {path} first"),
        (bool(device.holders), f"other devices are built on it ({', '.join(device.holders)}); name one of them"),
        (bool(device.partitions), f"partitioned ({', '.join(device.partitions)}); {wipe}"),
        (device.table is not None, f"holds {device.table}; {wipe}"),
        (device.is_read_only, "read-only; name another device"),
        (device.size_bytes == 0, "empty: no medium or no file behind it"),
        (not is_destroying, "the replay overwrites all that is on this device; say --destroy-data if that is meant"),
    )
    return next((f"{path} ({device.name}): {why}" for is_so, why in checks if is_so), None)


def claim_device(path: Path, flags: int, *, is_destroying: bool) -> tuple[int, BlockDevice]:
    """Open the block device at `path` for this run alone, and return its descriptor and what it is.

    Raises:
        DeviceError: it is not to be written, or something holds it.

    """
    device = examine(path)
    why = refusal(device, path, is_destroying=is_destroying)
    if why is None:
        device = replace(device, table=table(path))
        why = refusal(device, path, is_destroying=is_destroying)
    if why is not None:
        raise DeviceError(why)
    return _open_exclusively(path, flags), device


def table(path: Path) -> str | None:
    """Return the partition table or boot sector that the device at `path` starts with; None if there is none."""
    try:
        with path.open("rb") as device:
            start = device.read(_LOOKED_AT_BYTES)
    except OSError as error:
        raise DeviceError(f"{path}: cannot be read ({error.strerror}); a block device needs root") from None
    if any(start[at : at + len(_GPT_SIGNATURE)] == _GPT_SIGNATURE for at in _GPT_AT):
        return "a GPT partition table"
    if start[_MBR_AT : _MBR_AT + 2] == _MBR_SIGNATURE:
        return "an MBR partition table or a boot sector"
    return None


def _open_exclusively(path: Path, flags: int) -> int:
    try:
        fd = os.open(path, os.O_RDWR | os.O_EXCL | os.O_CLOEXEC | flags)
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise DeviceError(
                f"{path} is in use: a mount, a RAID, another replay or the like holds it (lsblk {path})"
            ) from None
        raise DeviceError(f"{path}: cannot be opened for direct I/O ({error.strerror})") from None
    if not stat.S_ISBLK(os.fstat(fd).st_mode):
        os.close(fd)
        raise DeviceError(f"{path} is no longer a block device")
    return fd


_TIMEOUT_S = 10


def firmware(target: Path) -> str | None:
    """Return the firmware revision of the drive beneath `target`; null where the kernel does not tell."""
    disk = block_device(target)
    if disk is None:
        return None
    return next((text for name in ("firmware_rev", "rev") if (text := sys_text(disk / "device" / name))), None)


def smart(target: Path) -> Smart:
    """Read the SMART data of the drive beneath `target`, by smartctl or nvme-cli."""
    disk = block_device(target) if target.exists() else None
    if disk is None:
        return Smart(values=None, source=None, reason="no block device is seen beneath it")
    tools = (
        ("smartctl", ["--json", "--all", f"/dev/{disk.name}"]),
        ("nvme", ["smart-log", f"/dev/{disk.name}", "--output-format=json"]),
    )
    reason = "neither smartctl nor nvme is installed"
    for name, arguments in tools:
        program = shutil.which(name)
        if program is None:
            continue
        values, reason = _ask([program, *arguments])
        if values is not None:
            return Smart(values=values, source=name, reason=None)
    return Smart(values=None, source=None, reason=reason)


def _ask(command: list[str]) -> tuple[dict[str, Any] | None, str]:
    name = command[0].rsplit("/", maxsplit=1)[-1]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)  # noqa: S603 - fixed names
        answer = msgspec.json.decode(done.stdout, type=dict[str, Any])
    except (OSError, subprocess.TimeoutExpired, msgspec.DecodeError) as error:
        return None, f"{name} gave nothing: {str(error)[:100]}"
    if name == "nvme":
        return answer, ""
    for key in ("nvme_smart_health_information_log", "ata_smart_attributes"):
        if key in answer:
            return answer[key], ""
    messages = [str(m.get("string")) for m in answer.get("smartctl", {}).get("messages", [])]
    return None, f"smartctl: {'; '.join(messages) or 'the drive has no SMART data'}"
