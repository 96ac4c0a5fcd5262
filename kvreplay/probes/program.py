"""The BPF programs: compiled for this kernel, with BTF offsets and the filter as macros, and attached."""

from __future__ import annotations

import os
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvreplay.probes.available import BTF, check_available, tracefs
from kvreplay.probes.devices import Disk, above, zone_shift
from kvtrace.core.errors import ConfigError, ProbeUnavailable

COMM_BYTES = 16
"""Of a process's name in the kernel, its ending zero included."""
EVENT_PAGES = 4096
"""Of the ring buffer: at 80 bytes an event, 0.2 million events until they are read."""
_STRUCTURES = {
    *("request", "request_queue", "gendisk", "bio", "bvec_iter", "block_device"),
    *("task_struct", "files_struct", "fdtable", "file", "inode", "super_block"),
}
_FIELDS = {
    "RQ_QUEUE": "request.q",
    "RQ_FLAGS": "request.cmd_flags",
    "RQ_BYTES": "request.__data_len",
    "RQ_SECTOR": "request.__sector",
    "RQ_START": "request.start_time_ns",
    "QUEUE_DISK": "request_queue.disk",
    "DISK_MAJOR": "gendisk.major",
    "DISK_MINOR": "gendisk.first_minor",
    "BIO_FLAGS": "bio.bi_opf",
    "BIO_BDEV": "bio.bi_bdev",
    "BDEV_DISK": "block_device.bd_disk",
    "TASK_GROUP_LEADER": "task_struct.group_leader",
    "TASK_REAL_PARENT": "task_struct.real_parent",
    "TASK_PID": "task_struct.pid",
    "TASK_COMM": "task_struct.comm",
    "TASK_FILES": "task_struct.files",
    "FILES_FDT": "files_struct.fdt",
    "FDT_MAX": "fdtable.max_fds",
    "FDT_FD": "fdtable.fd",
    "FILE_INODE": "file.f_inode",
    "INODE_MODE": "inode.i_mode",
    "INODE_RDEV": "inode.i_rdev",
    "INODE_SB": "inode.i_sb",
    "SUPER_MAGIC": "super_block.s_magic",
    "SUPER_DEV": "super_block.s_dev",
}
_TRACEPOINTS = {
    "HAS_IO_START": ("block/block_io_start sector",),
    "HAS_SYSCALLS": ("syscalls/sys_enter_pread64 fd",),
    "HAS_AIO": ("syscalls/sys_enter_io_submit nr",),
    "HAS_URING": ("io_uring/io_uring_submit_req req", "io_uring/io_uring_complete req"),
    "HAS_URING_SQE": ("io_uring/io_uring_submit_sqe req", "io_uring/io_uring_complete req"),
}
"""What only some kernels have, tracepoints with a field each, by the macro that says so; the last is before 6.4."""
SOURCES = ("filter.bpf.c", "common.bpf.c", "block.bpf.c", "app.bpf.c")


@dataclass(frozen=True, slots=True)
class Filter:
    """Whose I/O, and on which disks, is probed; None means all."""

    comm: str | None = None
    pid: int | None = None
    disks: list[Disk] = field(default_factory=list)
    cgroup: Path | None = None

    def check(self) -> None:
        """Raise ConfigError if no process can pass."""
        if sum(x is not None for x in (self.comm, self.pid, self.cgroup)) > 1:
            raise ConfigError("--comm, --pid and --cgroup: name one of them")
        if self.cgroup is not None:
            find_cgroup(self.cgroup)
        if self.comm is not None and not 0 < len(self.comm.encode()) < COMM_BYTES:
            raise ConfigError(
                f"--comm {self.comm!r}: a process's name has 1 to {COMM_BYTES - 1} bytes; see /proc/PID/comm"
            )
        if self.pid is not None and not Path(f"/proc/{self.pid}").is_dir():
            raise ConfigError(f"--pid {self.pid}: there is no such process")

    def macros(self) -> dict[str, int]:
        """Return the filter as macros of the C programs."""
        values = {"OWN_PID": os.getpid()}
        if self.cgroup is not None:
            found = find_cgroup(self.cgroup)
            values |= {"WANTED_CGROUP": found.number, "WANTED_CGROUP_LEVEL": found.level}
        if self.pid is not None:
            values["WANTED_PID"] = self.pid
        if self.comm is not None:
            name = self.comm.encode()
            wanted, mask = name.ljust(COMM_BYTES, b"\0"), (b"\xff" * (len(name) + 1)).ljust(COMM_BYTES, b"\0")
            for half, part in (("LOW", slice(0, 8)), ("HIGH", slice(8, 16))):
                values[f"WANTED_COMM_{half}"] = int.from_bytes(wanted[part], "little")
                values[f"WANTED_COMM_MASK_{half}"] = int.from_bytes(mask[part], "little")
        if self.disks:
            values["DEVICE_FILTER"] = 1
        return values


def load(wanted: Filter, *, has_events: bool) -> tuple[Any, Btf]:
    """Return the compiled and attached programs, and the kernel's types.

    Raises:
        ProbeUnavailable: this machine cannot run them.

    """
    bcc = check_available()
    btf = read_btf(BTF, _STRUCTURES, "__REQ_")
    macros = {name: btf.offset(path) for name, path in _FIELDS.items()} | wanted.macros()
    macros["BIO_BYTES_AT"] = btf.offset("bio.bi_iter") + btf.offset("bvec_iter.bi_size")
    macros |= dict.fromkeys(tracepoints(), 1)
    macros["ZONE_SHIFT"] = zone_shift(wanted.disks)
    if has_events:
        macros |= {"EVENTS": 1, "EVENT_PAGES": EVENT_PAGES}
    here = Path(__file__).parent
    text = "".join((here / name).read_text(encoding="utf-8") for name in SOURCES)
    flags = [f"-D{name}={value}{'ULL' if value >> 31 else ''}" for name, value in macros.items()]
    with _quiet_compiler() as complaints:
        try:
            programs = bcc.BPF(text=text, cflags=[*flags, "-Wno-everything"])
        except Exception as error:  # noqa: BLE001 - BCC raises nothing narrower
            raise ProbeUnavailable(f"the probes do not load on this kernel: {error}: {complaints()}") from None
    for table, numbers in (("devices", [d.number for d in wanted.disks]), ("file_devices", above(wanted.disks))):
        if numbers and (table == "devices" or "HAS_SYSCALLS" in macros):
            for number in numbers:
                programs[table][programs[table].Key(number)] = programs[table].Leaf(1)
    return programs, btf


def start(programs: Any) -> int:
    """Start counting in the attached `programs`; return the time on the monotonic clock."""
    now = time.monotonic_ns()
    programs["origin"][programs["origin"].Key(0)] = programs["origin"].Leaf(now)
    return now


def stop(programs: Any) -> None:
    """Stop counting in the attached `programs`."""
    programs["origin"][programs["origin"].Key(0)] = programs["origin"].Leaf(0)


def tracepoints() -> set[str]:
    """Return which macros of `_TRACEPOINTS` this kernel's tracepoints define."""
    events = tracefs() / "events"
    return {macro for macro, needed in _TRACEPOINTS.items() if all(_has(events, *each.split()) for each in needed)}


def _has(events: Path, tracepoint: str, field_name: str) -> bool:
    format_ = events / tracepoint / "format"
    return format_.is_file() and f" {field_name};" in format_.read_text(encoding="ascii")


@contextmanager
def _quiet_compiler() -> Iterator[Any]:
    """Keep what the compiler writes to our stderr; yield a function that gives its first error."""
    with tempfile.TemporaryFile() as kept:
        ours = os.dup(2)
        os.dup2(kept.fileno(), 2)

        def first_error() -> str:
            kept.seek(0)
            lines = kept.read().decode(errors="replace").splitlines()
            return next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "no reason given")

        try:
            yield first_error
        finally:
            os.dup2(ours, 2)
            os.close(ours)


MAGIC = 0xEB9F
_HEADER = struct.Struct("<HBBIIIII")
_TYPE = struct.Struct("<III")
_STRUCT, _UNION, _ENUM = 4, 5, 6
_FIXED_BYTES = {1: 4, 3: 12, 14: 4, 17: 4}
"""What follows a type: integers, arrays, variables, declaration tags."""
_MEMBER_BYTES = {_STRUCT: 12, _UNION: 12, _ENUM: 8, 13: 8, 15: 12, 19: 12}
"""What follows a type for each member: structures, unions, enumerations, prototypes, sections."""
_BITFIELD_OFFSET = 0xFFFFFF


@dataclass(frozen=True, slots=True)
class Btf:
    """The structures that were asked for: `offsets["request.bio"]` is in bytes; and all enumerators' values."""

    offsets: dict[str, int]
    enumerators: dict[str, int]

    def offset(self, field: str) -> int:
        """Return where `field` (`structure.member`) lies; ProbeUnavailable if this kernel has none."""
        if field not in self.offsets:
            raise ProbeUnavailable(f"this kernel's BTF has no {field}; the probes need Linux 5.14 or newer")
        return self.offsets[field]


def read_btf(path: Path, structures: set[str], enumerators: str) -> Btf:
    """Return the member offsets of `structures` and the enumerators that start with `enumerators`.

    Raises:
        ProbeUnavailable: the file cannot be read, or is no BTF of this byte order.

    """
    try:
        data = path.read_bytes()
        magic, _version, _flags, header_bytes, type_at, type_bytes, text_at, text_bytes = _HEADER.unpack_from(data)
    except (OSError, struct.error) as error:
        raise ProbeUnavailable(f"{path}: no BTF ({error}); use a kernel built with CONFIG_DEBUG_INFO_BTF") from None
    if magic != MAGIC:
        raise ProbeUnavailable(f"{path} is not BTF of this byte order")
    types = memoryview(data)[header_bytes + type_at : header_bytes + type_at + type_bytes]
    text = data[header_bytes + text_at : header_bytes + text_at + text_bytes]
    return _collect(types, text, structures, enumerators.encode())


def _name(text: bytes, at: int) -> str:
    return text[at : text.index(b"\0", at)].decode()


def _collect(types: memoryview, text: bytes, structures: set[str], prefix: bytes) -> Btf:
    offsets: dict[str, int] = {}
    enumerators: dict[str, int] = {}
    at = 0
    while at < len(types):
        name_at, info, _size = _TYPE.unpack_from(types, at)
        at += _TYPE.size
        kind, members = info >> 24 & 0x1F, info & 0xFFFF
        if kind == _STRUCT and (name := _name(text, name_at)) in structures:
            is_bitfield = bool(info >> 31)
            for member_at in range(at, at + members * 12, 12):
                member, _type, bits = _TYPE.unpack_from(types, member_at)
                bits = bits & _BITFIELD_OFFSET if is_bitfield else bits
                # The first of two definitions of one name wins; a driver's private one comes after.
                offsets.setdefault(f"{name}.{_name(text, member)}", bits // 8)
        elif kind == _ENUM:
            for member_at in range(at, at + members * 8, 8):
                member, value = struct.unpack_from("<Ii", types, member_at)
                if text.startswith(prefix, member):
                    enumerators[_name(text, member)] = value
        at += _FIXED_BYTES.get(kind, 0) + members * _MEMBER_BYTES.get(kind, 0)
    return Btf(offsets, enumerators)


_MOUNTS = Path("/proc/self/mounts")


@dataclass(frozen=True, slots=True)
class Cgroup:
    """A cgroup of version 2."""

    number: int
    """The kernel's id, which is the directory's inode number."""
    level: int
    """How many are above it; the root has none."""


def find_cgroup(path: Path, mounts: Path = _MOUNTS) -> Cgroup:
    """Return the cgroup at `path`: a directory, or one as /proc/PID/cgroup has it after `0::`.

    Raises:
        ConfigError: there is no cgroup of version 2 at `path`.

    """
    lines = [line.split() for line in mounts.read_text(encoding="utf-8").splitlines()]
    roots = [Path(fields[1]) for fields in lines if fields[2] == "cgroup2"]
    if not roots:
        raise ConfigError(f"--cgroup {path}: no cgroup2 is mounted: mount -t cgroup2 none /sys/fs/cgroup")
    root = roots[0]
    directory = path.resolve() if path.is_dir() else root / path.as_posix().lstrip("/")
    if not directory.is_dir() or not directory.is_relative_to(root):
        raise ConfigError(f"--cgroup {path}: no cgroup of version 2; name a directory below {root}")
    return Cgroup(directory.stat().st_ino, len(directory.relative_to(root).parts))
