"""The C programs made ready for this kernel: BTF offsets and the filter as macros, then compiled and attached."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvreplay.probes.available import BTF, check_available, tracefs
from kvreplay.probes.btf import Btf, read_btf
from kvreplay.probes.cgroup import find_cgroup
from kvreplay.probes.devices import above, zone_shift
from kvtrace.core.errors import ConfigError, ProbeUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvreplay.probes.devices import Disk

COMM_BYTES = 16
"""Of a process's name in the kernel, its ending zero included."""
EVENT_PAGES = 4096
"""Of the ring buffer: at 80 bytes an event, 0.2 million events until they are read."""
_STRUCTURES = frozenset(
    {"request", "request_queue", "gendisk", "bio", "bvec_iter", "block_device", "task_struct", "files_struct",
     "fdtable", "file", "inode", "super_block"}
)  # fmt: skip
_FIELDS = {
    "RQ_QUEUE": "request.q", "RQ_FLAGS": "request.cmd_flags", "RQ_BYTES": "request.__data_len",
    "RQ_SECTOR": "request.__sector", "RQ_START": "request.start_time_ns", "QUEUE_DISK": "request_queue.disk",
    "DISK_MAJOR": "gendisk.major", "DISK_MINOR": "gendisk.first_minor", "BIO_FLAGS": "bio.bi_opf",
    "BIO_BDEV": "bio.bi_bdev", "BDEV_DISK": "block_device.bd_disk", "TASK_GROUP_LEADER": "task_struct.group_leader",
    "TASK_REAL_PARENT": "task_struct.real_parent", "TASK_PID": "task_struct.pid", "TASK_COMM": "task_struct.comm",
    "TASK_FILES": "task_struct.files", "FILES_FDT": "files_struct.fdt", "FDT_MAX": "fdtable.max_fds",
    "FDT_FD": "fdtable.fd", "FILE_INODE": "file.f_inode", "INODE_MODE": "inode.i_mode", "INODE_RDEV": "inode.i_rdev",
    "INODE_SB": "inode.i_sb", "SUPER_MAGIC": "super_block.s_magic", "SUPER_DEV": "super_block.s_dev",
}  # fmt: skip
_TRACEPOINTS = {
    "HAS_IO_START": ("block/block_io_start sector", ), "HAS_SYSCALLS": ("syscalls/sys_enter_pread64 fd", ),
    "HAS_AIO": ("syscalls/sys_enter_io_submit nr", ),
    "HAS_URING": ("io_uring/io_uring_submit_req req", "io_uring/io_uring_complete req"),
    "HAS_URING_SQE": ("io_uring/io_uring_submit_sqe req", "io_uring/io_uring_complete req"),
}  # fmt: skip
"""What only some kernels have, tracepoints with a field each, by the macro that says so; the last is before 6.4."""
SOURCES = ("filter.bpf.c", "common.bpf.c", "block.bpf.c", "app.bpf.c")


@dataclass(frozen=True, slots=True)
class Filter:
    """Whose I/O, and on which disks; everything where nothing is said."""

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
        """Return what the C programs need to know of it."""
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
    """Let the attached `programs` count from now on; return that time of the monotonic clock."""
    now = time.monotonic_ns()
    programs["origin"][programs["origin"].Key(0)] = programs["origin"].Leaf(now)
    return now


def stop(programs: Any) -> None:
    """Let the attached `programs` count nothing new."""
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
