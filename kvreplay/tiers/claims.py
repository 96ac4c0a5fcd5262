"""Claims on the storage that a replay may overwrite.

A replay overwrites empty directories, files of its own, and block devices that nothing uses.

In a directory all objects lie in one scratch folder with a marker file. The marker lets a later run
recognize the leftovers of a killed one, and a lock on it keeps two runs apart. Only files of ours
are removed. A preallocated file or device begins with a header. It says that the target is ours,
and how many of its bytes have been written already.

`examine` reads the kernel's description of a block device, and `refusal` decides from that alone
whether it may be overwritten. Then the device is opened exclusively, which the kernel refuses while
anything else holds it. `smart` reads a drive's SMART data.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import subprocess
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from kvreplay.plan.target_safety import SCRATCH, check_target, is_system_path
from kvreplay.tiers.directio import refused
from kvreplay.tiers.host import (
    SECTOR_BYTES,
    block_device,
    devices_beneath,
    disk_of,
)
from kvreplay.tiers.tier import DIRECTORY_NAME, FILE_NAME
from kvtrace.core.errors import DeviceError
from kvtrace.core.mounts import block_directory, mounts, numbered
from kvtrace.core.parameters import named
from kvtrace.core.run.run_file import Smart
from kvtrace.core.system_files import sys_text

MARKER = "KVREPLAY"
_OTHER_FILES = frozenset({"probe.kv", "precondition.kv"})
_MARKER_TEXT = (
    b"Written by kvreplay: everything in this directory is its own and will be deleted.\n"
)


@dataclass(frozen=True, slots=True)
class Claim:
    """A target directory that this run has locked until `release`."""

    scratch: Path
    lock: int
    """The open descriptor of the marker, which holds the lock."""
    found_leftovers: int
    """Number of files of an earlier, killed or kept run that were removed."""


def check_file(path: Path) -> None:
    """Raise DeviceError, with a remedy, unless `path` is a file of ours or may become one."""
    parent = path.parent
    if not parent.is_dir():
        raise DeviceError(f"{parent}: no such directory; create it first (mkdir {parent})")
    if str(parent.resolve()) == "/" or is_system_path(parent.resolve()):
        raise DeviceError(
            f"{path} lies in a system path; name a file in a directory made for the replay"
        )
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise DeviceError(f"{path} is not a regular file; name a new one")
    if path.exists() and read_header(path) is None:
        raise DeviceError(
            f"{path} is not kvreplay's (it does not begin as its files do); name a new file"
        )
    if not os.access(path if path.exists() else parent, os.W_OK):
        raise DeviceError(f"{path}: no permission to write there")


def claim_file(path: Path, flags: int) -> int:
    """Open the file at `path` for this run alone, creating it if it does not exist.

    Return its descriptor.

    DeviceError if it is not ours, another run holds it, or it cannot be opened with `flags`.
    """
    check_file(path)
    is_new = not path.exists()
    # A file that another program creates meanwhile is not ours.
    creation = os.O_CREAT | os.O_EXCL if is_new else 0
    try:
        fd = os.open(path, os.O_RDWR | creation | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)
    except OSError as error:
        if is_new and error.errno != errno.EEXIST:
            # The kernel creates the file before it finds that O_DIRECT is not supported.
            path.unlink(missing_ok=True)
        raise refused(str(path), error) from None
    if not _is_locked(fd, path):
        raise DeviceError(f"{path} is in use by another kvreplay; wait for it or name another file")
    return fd


def _is_locked(fd: int, path: Path) -> bool:
    """Lock the open file `path`; return False, with `fd` closed, if another run holds it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The run before us may have removed the file between our open and our lock.
        is_ours = path.exists() and os.fstat(fd).st_ino == path.stat().st_ino
    except BlockingIOError:
        is_ours = False
    except OSError as error:
        os.close(fd)
        raise DeviceError(f"{path}: cannot be locked: {error.strerror}") from None
    if not is_ours:
        os.close(fd)
    return is_ours


_OURS = b"Written by kvreplay: this file or device is its own and will be overwritten.\n"
_CRC_BYTES = 4
HEADER_BYTES = 4096
"""Length of a file's header; that of a device is at least one of its blocks."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The header block of a preallocated target."""

    filled_bytes: int
    """Bytes from the start on that have been written since they were allocated or discarded."""


def encode_header(header: Header, block_bytes: int) -> bytes:
    """Return `header` as a block of `block_bytes` that ends with a checksum."""
    body = (_OURS + msgspec.json.encode(header) + b"\n").ljust(block_bytes - _CRC_BYTES, b"\0")
    return body + zlib.crc32(body).to_bytes(_CRC_BYTES, "little")


def read_header(path: Path) -> Header | None:
    """Return the header of the file at `path`; None if it does not begin with one of ours."""
    try:
        with path.open("rb") as file:
            return decode_header(file.read(HEADER_BYTES))
    except OSError:
        return None


def decode_header(block: bytes) -> Header | None:
    """Return the header in `block`; None if it is not ours, or changed since."""
    body, crc = block[:-_CRC_BYTES], block[-_CRC_BYTES:]
    if not body.startswith(_OURS) or zlib.crc32(body) != int.from_bytes(crc, "little"):
        return None
    try:
        return msgspec.json.decode(body[len(_OURS) :].rstrip(b"\0"), type=Header)
    except msgspec.MsgspecError:
        return None


def claim(path: Path, *, is_cleaned: bool = True) -> Claim:
    """Lock `path` for this run, and with `is_cleaned` remove the files that an earlier run left.

    DeviceError if the path is unsafe, another run holds it, or its scratch directory is not ours.
    """
    scratch = check_target(path) / SCRATCH
    marker = scratch / MARKER
    try:
        if scratch.is_symlink() or (scratch.exists() and not scratch.is_dir()):
            raise DeviceError(
                f"{scratch} is not a directory of kvreplay; remove it or name another directory"
            )
        if scratch.is_dir() and not marker.is_file() and any(scratch.iterdir()):
            raise DeviceError(
                f"{scratch} has no marker file {MARKER}, so it is not kvreplay's; remove it"
                " yourself"
            )
        scratch.mkdir(exist_ok=True)
        lock = os.open(marker, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise DeviceError(f"{scratch}: {error.strerror}") from None
    if not _is_locked(lock, marker):
        raise DeviceError(
            f"{path} is in use by another kvreplay; wait for it or name another directory"
        )
    try:
        os.pwrite(lock, _MARKER_TEXT, 0)
        leftovers = clean(scratch) if is_cleaned else 0
    except OSError as error:
        os.close(lock)
        raise DeviceError(f"{scratch}: {error.strerror}") from None
    return Claim(scratch, lock, leftovers)


def left_files(scratch: Path) -> dict[str, int]:
    """Return the sizes of the object files that an earlier run left below `scratch`, by path."""
    return {
        str(path): path.stat().st_size
        for path in scratch.rglob("*")
        if FILE_NAME.fullmatch(path.name)
    }


def clean(scratch: Path) -> int:
    """Remove our object files and subdirectories of `scratch`, nothing else.

    Return the number of files removed.
    """
    removed = 0
    for entry in list(os.scandir(scratch)):
        if entry.is_dir(follow_symlinks=False) and DIRECTORY_NAME.fullmatch(entry.name):
            removed += clean(Path(entry.path))
            if not any(Path(entry.path).iterdir()):
                Path(entry.path).rmdir()
        elif entry.is_file(follow_symlinks=False) and (
            FILE_NAME.fullmatch(entry.name) or entry.name in _OTHER_FILES
        ):
            os.unlink(entry.path)  # noqa: PTH108 - millions of them
            removed += 1
    return removed


def release(claimed: Claim, *, is_kept: bool) -> None:
    """Remove our files unless `is_kept`, then release the lock; files that are not ours stay."""
    try:
        if not is_kept:
            clean(claimed.scratch)
            if [entry.name for entry in os.scandir(claimed.scratch)] == [MARKER]:
                (claimed.scratch / MARKER).unlink()
                claimed.scratch.rmdir()
    except FileNotFoundError:
        # Another program removed the directory meanwhile, so nothing of ours is left there.
        return
    finally:
        os.close(claimed.lock)


_MAGIC = (
    *(("gpt", offset, b"EFI PART") for offset in (512, 4096)),
    ("dos", 510, b"\x55\xaa"),
    *(("LVM2_member", offset, b"LABELONE") for offset in (0, 512, 1024, 1536)),
    ("crypto_LUKS", 0, b"LUKS\xba\xbe"),
    *(("linux_raid_member", offset, b"\xfc\x4e\x2b\xa9") for offset in (0, 4096)),
    ("bcache", 4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"),
    ("swap", 4086, b"SWAPSPACE2"),
    ("xfs", 0, b"XFSB"),
    ("ext4", 1080, b"\x53\xef"),
    ("btrfs", 65600, b"_BHRfS_M"),
)
"""Signatures that are recognized without util-linux.

Each has libblkid's name, its offset and its bytes.
"""
_SIGNATURE_AREA_BYTES = 128 << 10
_TIMEOUT_S = 10
_WRITER_CHECKS, _CHECK_INTERVAL_S = 5, 0.1
"""Repeated checks whether a device is still open for writing."""
_AMBIVALENT = 8
"""blkid's exit status."""
_NO_DEVICE = ("socket:", "pipe:", "anon_inode:", "/memfd:")


@dataclass(frozen=True, slots=True)
class BlockDevice:
    """A block device, as the kernel and its signatures describe it."""

    name: str
    """The kernel's, such as nvme1n1."""
    size_bytes: int
    is_read_only: bool = False
    partitions: tuple[str, ...] = ()
    holders: tuple[str, ...] = ()
    """Devices built on it or its partitions: LVM, RAID, encryption, loop devices."""
    mounted_at: tuple[str, ...] = ()
    """Mount points of it or its partitions."""
    is_swap: bool = False
    is_root_disk: bool = False
    """Whether / lies on it, on one of its partitions, or on the disk that it is a partition of."""
    writers: tuple[str, ...] = ()
    """Other processes that hold it, its partitions or its disk open for writing.

    Only those that we have permission to see.
    """
    signatures: tuple[str, ...] = ()
    """The partition tables, filesystems, volumes and swap on it, by libblkid's names."""


def examine(path: Path, sysfs: Path = Path("/sys"), proc: Path = Path("/proc")) -> BlockDevice:
    """Return the kernel's description of the block device at `path`; its content is not read."""
    number = numbered(path.stat().st_rdev)
    block = (sysfs / "dev/block" / number).resolve()
    if not block.is_dir():
        raise DeviceError(f"{path}: the kernel does not describe this device ({block} is absent)")
    partitions = tuple(
        sorted(entry.name for entry in block.iterdir() if (entry / "partition").is_file())
    )
    # Device numbers of the device and its partitions.
    numbers = {number} | {text for name in partitions if (text := sys_text(block / name / "dev"))}
    disk = disk_of(block)
    swaps = [Path(line.split()[0]) for line in (sys_text(proc / "swaps") or "").splitlines()[1:]]
    holders = (
        holder.name
        for directory in (block, *(block / name for name in partitions))
        for holder in (directory / "holders").glob("*")
    )
    # The kernel does not list a loop device among the holders of the device beneath it.
    backing_files = {
        entry.parts[-3]: Path(sys_text(entry) or "")
        for entry in sysfs.glob("block/loop*/loop/backing_file")
    }
    loops = (
        loop
        for loop, file in backing_files.items()
        if file.is_block_device() and numbered(file.stat().st_rdev) in numbers
    )
    return BlockDevice(
        name=block.name,
        size_bytes=int(sys_text(block / "size") or 0) * SECTOR_BYTES,
        is_read_only=sys_text(block / "ro") == "1",
        partitions=partitions,
        holders=tuple(sorted([*holders, *loops])),
        mounted_at=tuple(mount.point for mount in mounts(proc) if mount.device in numbers),
        is_swap=any(
            numbered(path.stat().st_rdev) in numbers for path in swaps if path.is_block_device()
        ),
        is_root_disk=disk.name in _disks_below_root(sysfs),
        writers=_lasting_writers(numbers | {sys_text(disk / "dev") or number}, proc),
    )


def _lasting_writers(numbers: set[str], proc: Path) -> tuple[str, ...]:
    """Return the processes that keep one of the devices open for writing.

    Udev and losetup close it after a moment, so they do not count.
    """
    writers = set(_writers(numbers, proc))
    for _ in range(_WRITER_CHECKS):
        if writers:
            time.sleep(_CHECK_INTERVAL_S)
            writers &= set(_writers(numbers, proc))
    return tuple(sorted(writers))


def _writers(numbers: set[str], proc: Path) -> Iterator[str]:
    """Yield each other process that has one of the block devices `numbers` open for writing.

    Opening the device with O_EXCL would not reveal such processes.
    """
    for process in proc.iterdir():
        if not process.name.isdecimal() or int(process.name) == os.getpid():
            continue
        try:
            is_writer = any(
                _is_writing(process, fd.name, numbers) for fd in (process / "fd").iterdir()
            )
        except OSError:
            # The process ended, or it is another user's.
            continue
        if is_writer:
            yield f"{sys_text(process / 'comm') or 'a process'} (pid {process.name})"


def _is_writing(process: Path, fd: str, numbers: set[str]) -> bool:
    try:
        if str((process / "fd" / fd).readlink()).startswith(_NO_DEVICE):
            return False
        status = (process / "fd" / fd).stat()
        if not stat.S_ISBLK(status.st_mode) or numbered(status.st_rdev) not in numbers:
            return False
        lines = (process / "fdinfo" / fd).read_text().splitlines()
    except OSError:
        return False
    flags = next(
        (int(line.split()[1], 8) for line in lines if line.startswith("flags:")), os.O_RDONLY
    )
    return flags & os.O_ACCMODE != os.O_RDONLY


def _disks_below_root(sysfs: Path) -> set[str]:
    """Return the names of all disks that / lies on, through RAID and the like."""
    root_device = block_directory(numbered(Path("/").stat().st_dev), sysfs)
    return {disk_of(block).name for block in devices_beneath(root_device) if block is not None}


def is_of_root(target: Path) -> bool:
    """Return whether `target` shares a disk with the root filesystem, which other programs use."""
    disk = block_device(target)
    return disk is None or disk.name in _disks_below_root(Path("/sys"))


def refusal(
    device: BlockDevice, path: Path, *, is_destroying: bool, overwritten: str | None = None
) -> str | None:
    """Return why a replay may not write to `device`, and the remedy; None if it may.

    `overwritten` lists the signatures that may be overwritten, separated by commas.
    """
    protected = [name for name in device.signatures if name not in (overwritten or "").split(",")]
    names = ",".join(device.signatures)
    signed = (
        f"holds {names.replace(',', ', ')}; name another device, remove it first (wipefs --all"
        f" {path}), or add {named('overwritten', names)} to overwrite it"
    )
    unmount = f"unmount it first (umount {device.mounted_at[0]})" if device.mounted_at else ""
    wipe = f"name a partition, or remove it first (wipefs --all {path})"
    checks = (
        (
            device.is_root_disk,
            "the system's root filesystem lies on this disk; name another device",
        ),
        (bool(device.mounted_at), f"mounted at {', '.join(device.mounted_at)}; {unmount}"),
        (device.is_swap, f"used for swap; name another device, or swapoff {path} first"),
        (
            bool(device.holders),
            f"other devices are built on it ({', '.join(device.holders)}); name one of them",
        ),
        (bool(device.partitions), f"partitioned ({', '.join(device.partitions)}); {wipe}"),
        (
            bool(device.writers),
            f"held open for writing by {', '.join(device.writers)}; end that first",
        ),
        (bool(protected), signed),
        (device.is_read_only, "read-only; name another device"),
        (device.size_bytes == 0, "empty: no medium or no file behind it"),
        (
            not is_destroying,
            f"the replay overwrites all data on this device; add {named('destroy_data')} to allow that",
        ),
    )
    return next(
        (f"{path} ({device.name}): {reason}" for applies, reason in checks if applies), None
    )


def claim_device(
    path: Path, flags: int, *, is_destroying: bool, overwritten: str | None = None
) -> tuple[int, BlockDevice]:
    """Open the block device at `path` for this run alone; return its descriptor and description.

    `overwritten` is as in `refusal`.

    DeviceError if it may not be written, or another user holds it.
    """
    device = check_device(path, is_destroying=is_destroying, overwritten=overwritten)
    try:
        fd = os.open(path, os.O_RDWR | os.O_EXCL | os.O_CLOEXEC | flags)
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise DeviceError(
                f"{path} is in use: a mount, a RAID, another replay or the like holds it (lsblk"
                f" {path})"
            ) from None
        raise DeviceError(f"{path}: cannot be opened for direct I/O ({error.strerror})") from None
    if not stat.S_ISBLK(os.fstat(fd).st_mode):
        os.close(fd)
        raise DeviceError(f"{path} is no longer a block device")
    return fd, device


def check_device(path: Path, *, is_destroying: bool, overwritten: str | None = None) -> BlockDevice:
    """Return the description of the block device at `path`.

    DeviceError, with the reason from `refusal`, if it may not be written.
    """
    device = examine(path)
    reason = refusal(device, path, is_destroying=is_destroying)
    if reason is None:
        device = replace(device, signatures=signatures(path))
        reason = refusal(device, path, is_destroying=is_destroying, overwritten=overwritten)
    if reason is not None:
        raise DeviceError(reason)
    return device


def signatures(path: Path) -> tuple[str, ...]:
    """Return the names of all signatures on the device at `path`.

    They come from wipefs, else from blkid, else from our own table of signatures.

    DeviceError if the device cannot be read.
    """
    try:
        with path.open("rb") as device:
            start = device.read(_SIGNATURE_AREA_BYTES)
    except OSError as error:
        raise DeviceError(
            f"{path}: cannot be read ({error.strerror}); a block device needs root"
        ) from None
    for name, arguments, list_names in (
        ("wipefs", ["--json"], _wipefs_names),
        ("blkid", ["-p", "-o", "export"], _types),
    ):
        program = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
        if program is not None and (names := list_names([program, *arguments, str(path)])):
            return tuple(dict.fromkeys(names))
    return tuple(
        dict.fromkeys(
            name for name, offset, magic in _MAGIC if start[offset : offset + len(magic)] == magic
        )
    )


def _wipefs_names(command: list[str]) -> list[str]:
    """Return the signatures that `wipefs --json` lists."""
    answer, _ = _answer(command)
    entries = (answer or {}).get("signatures")
    if not isinstance(entries, list):
        return []
    return [str(entry.get("type")) for entry in entries if isinstance(entry, dict)]


def _types(command: list[str]) -> list[str]:
    """Return the signatures that `blkid -p` lists.

    For a device with several filesystems it reports only that the result is ambivalent.
    """
    try:
        process = subprocess.run(  # noqa: S603 - fixed names
            command, capture_output=True, timeout=_TIMEOUT_S, check=False, text=True
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    if process.returncode == _AMBIVALENT:
        return ["ambivalent"]
    return [
        line.partition("=")[2]
        for line in process.stdout.splitlines()
        if line.startswith(("TYPE=", "PTTYPE="))
    ]


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
        answer, reason = _answer([program, *arguments])
        if answer is None:
            continue
        keys = ("nvme_smart_health_information_log", "ata_smart_attributes")
        values = (
            answer if name == "nvme" else next((answer[key] for key in keys if key in answer), None)
        )
        if values is not None:
            return Smart(values=values, source=name, reason=None)
        messages = [str(m.get("string")) for m in answer.get("smartctl", {}).get("messages", [])]
        reason = f"smartctl: {'; '.join(messages) or 'the drive has no SMART data'}"
    return Smart(values=None, source=None, reason=reason)


def _answer(command: list[str]) -> tuple[dict[str, Any] | None, str]:
    """Return the JSON object that `command` prints, or None and the reason why there is none."""
    try:
        process = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)  # noqa: S603 - fixed names
        return msgspec.json.decode(process.stdout, type=dict[str, Any]), ""
    except (OSError, subprocess.TimeoutExpired, msgspec.DecodeError) as error:
        return None, f"{command[0].rsplit('/', maxsplit=1)[-1]} gave nothing: {str(error)[:100]}"
