"""Claims on the storage that a replay may overwrite.

A replay overwrites empty directories, files of its own, and block devices that nothing uses.

In a directory all objects lie in one scratch folder with a marker file. By the marker a later run
knows the leftovers of a killed one; a lock on it keeps two runs apart, and only files of ours are
removed. A preallocated file or device begins with a header: it says that it is ours, and how far it
has been written, which need not be done again.

What the kernel knows of a block device is read first (`examine`) and judged apart from it
(`refusal`). At last the device is opened exclusively, which the kernel refuses while anything else
holds it. `smart` is what a drive reports of itself.
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
    mounts,
    numbered,
)
from kvreplay.tiers.tier import DIRECTORY_NAME, FILE_NAME
from kvtrace.core.errors import DeviceError
from kvtrace.core.files import sys_text
from kvtrace.core.run.run_file import Smart

MARKER = "KVREPLAY"
_OTHER_FILES = frozenset({"probe.kv", "precondition.kv"})
_MARKER_TEXT = (
    b"Written by kvreplay: everything in this directory is its own and will be deleted.\n"
)


@dataclass(frozen=True, slots=True)
class Claim:
    """A target directory that is ours until `release`."""

    scratch: Path
    lock: int
    """The open descriptor of the marker, which holds the lock."""
    found_leftovers: int
    """Files of an earlier, killed or kept run that were removed."""


def check_file(path: Path) -> None:
    """Raise DeviceError, saying what would do, unless `path` is a file of ours or may become one."""
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
    """Open the file at `path` for this run alone, making it if it is not there.

    Return its descriptor.

    DeviceError if it is not ours, another run holds it, or it cannot be opened so.
    """
    check_file(path)
    is_new = not path.exists()
    # One that another program makes meanwhile is not ours.
    making = os.O_CREAT | os.O_EXCL if is_new else 0
    try:
        fd = os.open(path, os.O_RDWR | making | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)
    except OSError as error:
        if is_new and error.errno != errno.EEXIST:
            # The kernel makes the file before it finds that O_DIRECT does not go.
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
    """From the start on, all of it has been written since it was allocated or discarded."""


def encode_header(header: Header, block_bytes: int) -> bytes:
    """Return `header` as a block of `block_bytes`; a checksum over all of it ends it."""
    body = (_OURS + msgspec.json.encode(header) + b"\n").ljust(block_bytes - _CRC_BYTES, b"\0")
    return body + zlib.crc32(body).to_bytes(_CRC_BYTES, "little")


def read_header(path: Path) -> Header | None:
    """Return the header of the file at `path`; None if it has none of ours."""
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
    """Lock `path` for this run and remove what an earlier run of ours left there, unless that is
    not to be cleaned.

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
    """Return the sizes of the object files below `scratch` that an earlier run left, by their
    paths.
    """
    return {
        str(path): path.stat().st_size
        for path in scratch.rglob("*")
        if FILE_NAME.fullmatch(path.name)
    }


def clean(scratch: Path) -> int:
    """Remove our object files and subdirectories of `scratch`, nothing else.

    Return how many files went.
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


def release(held: Claim, *, is_kept: bool) -> None:
    """Remove our files unless `is_kept`, then give up the lock; files that are not ours stay."""
    try:
        if not is_kept:
            clean(held.scratch)
            if [entry.name for entry in os.scandir(held.scratch)] == [MARKER]:
                (held.scratch / MARKER).unlink()
                held.scratch.rmdir()
    except FileNotFoundError:
        # Someone removed the directory under us: nothing of ours is left there.
        return
    finally:
        os.close(held.lock)


_MAGIC = (
    *(("gpt", at, b"EFI PART") for at in (512, 4096)),
    ("dos", 510, b"\x55\xaa"),
    *(("LVM2_member", at, b"LABELONE") for at in (0, 512, 1024, 1536)),
    ("crypto_LUKS", 0, b"LUKS\xba\xbe"),
    *(("linux_raid_member", at, b"\xfc\x4e\x2b\xa9") for at in (0, 4096)),
    ("bcache", 4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"),
    ("swap", 4086, b"SWAPSPACE2"),
    ("xfs", 0, b"XFSB"),
    ("ext4", 1080, b"\x53\xef"),
    ("btrfs", 65600, b"_BHRfS_M"),
)
"""Signatures that are recognized without util-linux.

Each has libblkid's name, its offset and its bytes.
"""
_LOOKED_AT_BYTES = 128 << 10
_TIMEOUT_S = 10
_LOOKS, _BETWEEN_LOOKS_S = 5, 0.1
"""How often it is looked again whether a device is still open for writing."""
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
    """Whether / lies on it, on a part of it, or on the disk it is a part of."""
    writers: tuple[str, ...] = ()
    """Other processes that hold it, its partitions or its disk open for writing, as far as we may
    see.
    """
    signatures: tuple[str, ...] = ()
    """The partition tables, filesystems, volumes and swap on it, by libblkid's names."""


def examine(path: Path, sysfs: Path = Path("/sys"), proc: Path = Path("/proc")) -> BlockDevice:
    """Return the kernel's description of the block device at `path`; its content is not read."""
    number = numbered(path.stat().st_rdev)
    at = (sysfs / "dev/block" / number).resolve()
    if not at.is_dir():
        raise DeviceError(f"{path}: the kernel tells nothing of this device ({at} is absent)")
    parts = tuple(sorted(entry.name for entry in at.iterdir() if (entry / "partition").is_file()))
    ours = {number} | {text for part in parts if (text := sys_text(at / part / "dev"))}
    disk = disk_of(at)
    swaps = [Path(line.split()[0]) for line in (sys_text(proc / "swaps") or "").splitlines()[1:]]
    held = (
        holder.name
        for part in (at, *(at / p for p in parts))
        for holder in (part / "holders").glob("*")
    )
    # The kernel names no loop device among the holders of what it lies on.
    loops = {
        each.parts[-3]: Path(sys_text(each) or "")
        for each in sysfs.glob("block/loop*/loop/backing_file")
    }
    above = (
        h
        for h, file in loops.items()
        if file.is_block_device() and numbered(file.stat().st_rdev) in ours
    )
    return BlockDevice(
        name=at.name,
        size_bytes=int(sys_text(at / "size") or 0) * SECTOR_BYTES,
        is_read_only=sys_text(at / "ro") == "1",
        partitions=parts,
        holders=tuple(sorted([*held, *above])),
        mounted_at=tuple(m.point for m in mounts(proc) if m.device in ours),
        is_swap=any(
            numbered(path.stat().st_rdev) in ours for path in swaps if path.is_block_device()
        ),
        is_root_disk=disk.name in _disks_below_root(sysfs),
        writers=_lasting_writers(ours | {sys_text(disk / "dev") or number}, proc),
    )


def _lasting_writers(numbers: set[str], proc: Path) -> tuple[str, ...]:
    """Return the processes that hold one of the devices open for writing.

    Udev and losetup close it in a moment, so they do not count.
    """
    found = set(_writers(numbers, proc))
    for _ in range(_LOOKS):
        if found:
            time.sleep(_BETWEEN_LOOKS_S)
            found &= set(_writers(numbers, proc))
    return tuple(sorted(found))


def _writers(numbers: set[str], proc: Path) -> Iterator[str]:
    """Yield each other process that has one of the block devices `numbers` open for writing.

    O_EXCL tells none.
    """
    for process in proc.iterdir():
        if not process.name.isdecimal() or int(process.name) == os.getpid():
            continue
        try:
            is_found = any(
                _is_writing(process, fd.name, numbers) for fd in (process / "fd").iterdir()
            )
        except OSError:
            # It ended, or it is another user's.
            continue
        if is_found:
            yield f"{sys_text(process / 'comm') or 'a process'} (pid {process.name})"


def _is_writing(process: Path, fd: str, numbers: set[str]) -> bool:
    try:
        if str((process / "fd" / fd).readlink()).startswith(_NO_DEVICE):
            return False
        found = (process / "fd" / fd).stat()
        if not stat.S_ISBLK(found.st_mode) or numbered(found.st_rdev) not in numbers:
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
    at = (sysfs / "dev/block" / numbered(Path("/").stat().st_dev)).resolve()
    return {
        disk_of(each).name
        for each in devices_beneath(at if at.is_dir() else None)
        if each is not None
    }


def is_of_root(target: Path) -> bool:
    """Return whether `target` shares a disk with the system's root filesystem, where other programs
    work too.
    """
    disk = block_device(target)
    return disk is None or disk.name in _disks_below_root(Path("/sys"))


def refusal(
    device: BlockDevice, path: Path, *, is_destroying: bool, overwritten: str | None = None
) -> str | None:
    """Return why a replay may not write to `device`, and what would help; None if it may.

    `overwritten` names, with commas between them, the signatures that may be lost.
    """
    kept = [name for name in device.signatures if name not in (overwritten or "").split(",")]
    names = ",".join(device.signatures)
    signed = (
        f"holds {names.replace(',', ', ')}; name another device, remove it first (wipefs --all"
        f" {path}), or add --overwrite-signature {names} to overwrite it"
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
        (bool(kept), signed),
        (device.is_read_only, "read-only; name another device"),
        (device.size_bytes == 0, "empty: no medium or no file behind it"),
        (
            not is_destroying,
            "the replay overwrites all data on this device; add --destroy-data to allow that",
        ),
    )
    return next((f"{path} ({device.name}): {why}" for is_so, why in checks if is_so), None)


def claim_device(
    path: Path, flags: int, *, is_destroying: bool, overwritten: str | None = None
) -> tuple[int, BlockDevice]:
    """Open the block device at `path` for this run alone, and return its descriptor and what it is.

    `overwritten` is as in `refusal`.

    DeviceError if it is not to be written, or something holds it.
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

    DeviceError, as `refusal` says, if it is not to be written.
    """
    device = examine(path)
    why = refusal(device, path, is_destroying=is_destroying)
    if why is None:
        device = replace(device, signatures=signatures(path))
        why = refusal(device, path, is_destroying=is_destroying, overwritten=overwritten)
    if why is not None:
        raise DeviceError(why)
    return device


def signatures(path: Path) -> tuple[str, ...]:
    """Return the names of all signatures on the device at `path`, by wipefs, else blkid, else those
    we know ourselves.

    DeviceError if it cannot be read.
    """
    try:
        with path.open("rb") as device:
            start = device.read(_LOOKED_AT_BYTES)
    except OSError as error:
        raise DeviceError(
            f"{path}: cannot be read ({error.strerror}); a block device needs root"
        ) from None
    for name, arguments, names_in in (
        ("wipefs", ["--json"], _wipefs_names),
        ("blkid", ["-p", "-o", "export"], _types),
    ):
        program = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
        if program is not None and (found := names_in([program, *arguments, str(path)])):
            return tuple(dict.fromkeys(found))
    return tuple(
        dict.fromkeys(name for name, at, magic in _MAGIC if start[at : at + len(magic)] == magic)
    )


def _wipefs_names(command: list[str]) -> list[str]:
    found, _ = _answer(command)
    listed = (found or {}).get("signatures")
    return (
        [str(each.get("type")) for each in listed if isinstance(each, dict)]
        if isinstance(listed, list)
        else []
    )


def _types(command: list[str]) -> list[str]:
    """Return the signatures that `blkid -p` names.

    It gives up on a device with several filesystems, which it calls ambivalent.
    """
    try:
        done = subprocess.run(  # noqa: S603 - fixed names
            command, capture_output=True, timeout=_TIMEOUT_S, check=False, text=True
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    if done.returncode == _AMBIVALENT:
        return ["ambivalent"]
    return [
        line.partition("=")[2]
        for line in done.stdout.splitlines()
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
    """Return the JSON object that `command` prints, or null and why there is none."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)  # noqa: S603 - fixed names
        return msgspec.json.decode(done.stdout, type=dict[str, Any]), ""
    except (OSError, subprocess.TimeoutExpired, msgspec.DecodeError) as error:
        return None, f"{command[0].rsplit('/', maxsplit=1)[-1]} gave nothing: {str(error)[:100]}"
