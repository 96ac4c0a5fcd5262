"""The BPF programs: made for this kernel by libbpf, told whose I/O counts, and attached."""

from __future__ import annotations

import mmap
import os
import re
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kvreplay.probes.libbpf import CONFIG, SHARED, Backend, CompiledPrograms, Programs, check_available, tracefs
from kvreplay.tiers.host import slaves
from kvtrace.core.errors import ConfigError, DeviceError

MINOR_BITS = 20
"""Of a device number inside the kernel."""
ZONES = 1024
"""Of the map of where a disk is read and written."""
MIN_ZONE_SHIFT = 11
_SYS = Path("/sys")


@dataclass(frozen=True, slots=True)
class Disk:
    """A device whose requests the probes see."""

    name: str
    number: int
    """As the kernel has it: major << 20 | minor."""


def resolve(device: Path, sys: Path = _SYS) -> list[Disk]:
    """Return the disks that serve `device`, the path of a block device.

    Raises:
        DeviceError: there is no such block device, or the system does not describe it.

    """
    try:
        status = device.stat()
    except OSError as error:
        raise DeviceError(f"{device}: {error.strerror}; name a block device such as /dev/nvme0n1") from None
    if not stat.S_ISBLK(status.st_mode):
        raise DeviceError(f"{device} is not a block device; name one such as /dev/nvme0n1")
    return beneath(os.major(status.st_rdev), os.minor(status.st_rdev), sys)


def beneath(major: int, minor: int, sys: Path = _SYS) -> list[Disk]:
    """Return the disks beneath the device of this number, in order of name."""
    entry = sys / "dev" / "block" / f"{major}:{minor}"
    if not entry.exists():
        raise DeviceError(f"{entry} does not exist: the system does not describe device {major}:{minor}")
    found: dict[str, Disk] = {}
    _descend(entry.resolve(), found)
    return [found[name] for name in sorted(found)]


def _descend(block: Path, found: dict[str, Disk]) -> None:
    if (block / "partition").exists():
        block = block.parent
    below = slaves(block)
    for one in below:
        _descend(one, found)
    if not below:
        major, _, minor = (block / "dev").read_text(encoding="ascii").strip().partition(":")
        found[block.name] = Disk(block.name, int(major) << MINOR_BITS | int(minor))


def above(disks: Sequence[Disk], sys: Path = _SYS) -> list[int]:
    """Return the numbers of all devices whose I/O any of `disks` does: itself, partitions, dm and md upon them."""
    wanted = {disk.number for disk in disks}
    found = []
    for entry in sorted((sys / "dev" / "block").iterdir()) if wanted else ():
        major, _, minor = entry.name.partition(":")
        if wanted & {disk.number for disk in beneath(int(major), int(minor), sys)}:
            found.append(int(major) << MINOR_BITS | int(minor))
    return found


def zone_shift(disks: Sequence[Disk], sys: Path = _SYS) -> int:
    """Return by how many bits a sector is shifted for the zone it lies in: at most ZONES a disk, 1 MiB at least.

    Without `disks`, by the largest of all.
    """
    names = [disk.name for disk in disks] or [entry.name for entry in (sys / "block").iterdir()]
    sizes = [sys / "block" / name / "size" for name in names]
    sectors = max((int(size.read_text(encoding="ascii")) for size in sizes if size.is_file()), default=0)
    return max(MIN_ZONE_SHIFT, (max(sectors - 1, 0) // ZONES).bit_length())


def device_name(number: int, sys: Path = _SYS) -> str:
    """Return the name of the device that the kernel numbers `number`, or its number if it is gone."""
    major, minor = number >> MINOR_BITS, number & (1 << MINOR_BITS) - 1
    entry = sys / "dev" / "block" / f"{major}:{minor}"
    return entry.resolve().name if entry.exists() else f"{major}:{minor}"


COMM_BYTES = 16
"""Of a process's name in the kernel, its ending zero included."""
OBJECT = Path(__file__).parent / "probes.bpf.o"
"""What `make bpf` makes of probes.bpf.c."""
_OLD, _NEW = {"block_rq_insert", "block_rq_issue_first"}, {"block_io_start", "block_rq_issue"}
"""Programs of kernels before 6.5 and of later ones, by whether there is a tracepoint block_io_start."""
_URING = {"uring_submit_req", "uring_submit_sqe", "uring_complete"}
_SUBMITTED = ("io_uring_submit_req", "io_uring_submit_sqe")
"""The first is the name since Linux 6.4."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Whose I/O, and on which disks, is probed; None means all."""

    comm: str | None = None
    pid: int | None = None
    disks: list[Disk] = field(default_factory=list)
    cgroup: Path | None = None
    backend: Backend = Backend.AUTO

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

    def config(self) -> np.ndarray:
        """Return the filter as the programs' `config`."""
        values = np.zeros((), dtype=CONFIG)
        values["own_pid"] = os.getpid()
        values["o_direct"] = os.O_DIRECT
        values["is_device_wanted"] = bool(self.disks)
        values["zone_shift"] = zone_shift(self.disks)
        if self.cgroup is not None:
            found = find_cgroup(self.cgroup)
            values["wanted_cgroup"], values["cgroup_level"] = found.number, found.level
        if self.pid is not None:
            values["wanted_pid"] = self.pid
        if self.comm is not None:
            name = self.comm.encode()
            wanted, mask = name.ljust(COMM_BYTES, b"\0"), (b"\xff" * (len(name) + 1)).ljust(COMM_BYTES, b"\0")
            values["is_comm_wanted"] = True
            for half, part in (("low", slice(0, 8)), ("high", slice(8, 16))):
                values[f"comm_{half}"] = int.from_bytes(wanted[part], "little")
                values[f"comm_mask_{half}"] = int.from_bytes(mask[part], "little")
        return values


def load(wanted: Filter, *, has_events: bool) -> Programs:
    """Return the programs, loaded for this kernel and attached; they count nothing before `start`.

    Raises:
        ProbeUnavailable: this machine cannot run them.

    """
    backend = check_available(wanted.backend)
    events = tracefs() / "events"
    config, places = wanted.config(), uring_places(events)
    config["has_events"] = has_events
    programs = CompiledPrograms(OBJECT.parent) if backend is Backend.BCC else Programs(OBJECT.read_bytes())
    try:
        for name, at in (places or {}).items():
            config[name] = at
        programs.leave_out(missing(programs.sections(), events) | (_URING if places is None else set()))
        if not has_events:
            programs.set_entries("events", mmap.PAGESIZE)
        programs.set_constants(config.tobytes())
        programs.load()
        for table, numbers in (("devices", [d.number for d in wanted.disks]), ("file_devices", above(wanted.disks))):
            for number in numbers:
                programs.put(table, number.to_bytes(4, "little"), (1).to_bytes(4, "little"))
        programs.attach()
    except BaseException:
        programs.close()
        raise
    return programs


def missing(sections: dict[str, str], events: Path) -> set[str]:
    """Return which programs (names, with the tracepoints they are for) have no use on a kernel with these `events`."""
    has_start = (events / "block" / "block_io_start").is_dir()
    left_out = _OLD if has_start else _NEW
    for name, section in sections.items():
        kind, _, tracepoint = section.partition("/")
        if not (events / (tracepoint if kind == "tp" else f"block/{tracepoint}")).is_dir():
            left_out = left_out | {name}
    return left_out


def uring_places(events: Path) -> dict[str, int] | None:
    """Return where io_uring's tracepoints have what we need; null if they have not, so that its calls are not seen."""
    submitted = [at for name in _SUBMITTED if (at := _place(events / "io_uring" / name, "req")) is not None]
    request, result = (_place(events / "io_uring" / "io_uring_complete", name) for name in ("req", "res"))
    if not submitted or request is None or result is None:
        return None
    return {"uring_submitted_at": submitted[0], "uring_req_at": request, "uring_result_at": result}


def _place(tracepoint: Path, field_name: str) -> int | None:
    format_ = tracepoint / "format"
    text = format_.read_text(encoding="ascii") if format_.is_file() else ""
    found = re.search(rf"[ *]{field_name};\s+offset:(\d+);", text)
    return None if found is None else int(found.group(1))


def unseen_calls(events: Path) -> tuple[str, ...] | None:
    """Return which asynchronous calls this kernel's tracepoints do not show; null if they show no calls at all."""
    if not (events / "syscalls" / "sys_enter_pread64").is_dir():
        return None
    seen = {
        "io_submit": (events / "syscalls" / "sys_enter_io_submit").is_dir(),
        "io_uring": uring_places(events) is not None,
    }
    return tuple(call for call, is_seen in seen.items() if not is_seen)


def shared(programs: Programs) -> np.ndarray:
    """Return the live counters of the loaded `programs`."""
    return np.frombuffer(programs.variables(SHARED.itemsize), dtype=SHARED)["values"]


def start(programs: Programs) -> int:
    """Start counting in the attached `programs`; return the time on the monotonic clock."""
    now = time.monotonic_ns()
    shared(programs)["origin_ns"] = now
    return now


def stop(programs: Programs) -> None:
    """Stop counting in the attached `programs`."""
    shared(programs)["origin_ns"] = 0


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
