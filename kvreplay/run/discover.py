"""The machine report of `kvreplay discover`: hardware, likely disturbances, settings to start from.

`measure_drive` measures a drive for a drive file.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import packages_distributions, version
from pathlib import Path
from time import monotonic_ns
from typing import Any

import msgspec
import numpy as np

from kvreplay.engine.job import Job
from kvreplay.engine.native_engine import EngineName, choose, refusal
from kvreplay.plan.contents import DataSource
from kvreplay.plan.memory_check import check_memory
from kvreplay.plan.replay_config import CLOSED_LOOP_DEPTH
from kvreplay.plan.row_ring import OK, READ, WRITE, RowRing
from kvreplay.plan.target_safety import MEASURED
from kvreplay.probes.libbpf import check_available
from kvreplay.result.figures import MIN_RATIO
from kvreplay.run.replay import Interrupted, Replay, moved_between, quiet_interpreter
from kvreplay.tiers.extents import ExtentTier
from kvreplay.tiers.host import (
    SECTOR_BYTES,
    active_scheduler,
    device_counters,
    firmware_of,
    host_facts,
    sys_number,
)
from kvreplay.tiers.modelled import (
    DRIVE_FILE,
    held_out,
)
from kvreplay.tiers.tier import Holding, StorageOptions
from kvtrace.core.app import noted_signals
from kvtrace.core.document.document import (
    Chapter,
    Document,
    ReportColumn,
    ReportTable,
    Sheet,
    Unit,
    parameters,
    table_of,
)
from kvtrace.core.errors import DeviceError, OutOfMemory, ProbeUnavailable
from kvtrace.core.memory import available_bytes
from kvtrace.core.metrics.distribution import distribution_of
from kvtrace.core.metrics.recorder import OPS
from kvtrace.core.mounts import unescaped
from kvtrace.core.run.drive_file import DriveCell, DriveError, DriveFile, DriveTimes
from kvtrace.core.run.run_file import DeviceIo, seal
from kvtrace.core.system_files import sys_text
from kvtrace.core.units import NS_PER_S, format_bytes, format_count, percent

_TIMEOUT_S = 10
_MEMLOCK_BYTES = 64 << 20
"""The registered buffers of the default settings lock this much memory, rounded up."""
_OPEN_FILES = 4096
_BUSY_LOAD = 0.25
_HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"
_NO_DRIVE = ("loop", "ram", "zram", "sr", "fd", "nbd", "dm-", "md")
_NO_DISK_FS = frozenset(
    {"tmpfs", "ramfs", "overlay", "squashfs", "nfs", "nfs4", "cifs", "9p", "fuse"}
)


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU, as nvidia-smi names it."""

    name: str
    memory_bytes: int | None
    driver: str


class FoundDrive(msgspec.Struct, frozen=True, kw_only=True):
    """A disk; facts that the kernel does not report are null."""

    name: str
    model: str | None
    firmware: str | None
    bytes: int | None
    is_rotational: bool | None
    scheduler: str | None
    queue_requests: int | None
    write_cache: str | None


class Filesystem(msgspec.Struct, frozen=True, kw_only=True):
    """A mounted filesystem on a device."""

    mount_point: str
    device: str
    kind: str
    options: list[str]
    free_bytes: int | None


class Discovery(msgspec.Struct, frozen=True, kw_only=True):
    """The machine, warnings, and recommended settings."""

    host: dict[str, Any]
    governor: str | None
    load_1min: float
    memory_bytes: int | None
    available_bytes: int | None
    swap_used_bytes: int | None
    huge_pages: str | None
    gpus: list[Gpu]
    gpu_reason: str | None
    """The reason why there are none."""
    drives: list[FoundDrive]
    filesystems: list[Filesystem]
    limits: dict[str, int | None]
    """memlock_bytes and open_files (soft); null is unlimited."""
    is_root: bool
    io_uring: str
    """available, or the reason why it is not."""
    programs: dict[str, str | None]
    """Version or path of fio, smartctl, nvme; null if not installed."""
    gpu_libraries: dict[str, str | None]
    """The version of kvikio (--gds); null if not installed."""
    probes: str
    """available, or the reason why it is not."""
    warnings: list[str]
    recommended: dict[str, Any]


def discover(root: Path = Path("/")) -> Discovery:
    """Examine this machine; `root` is the folder of proc and sys."""
    pairs = [line.split() for line in (sys_text(root / "proc/meminfo") or "").splitlines()]
    memory = {p[0].rstrip(":"): int(p[1]) * 1024 for p in pairs if len(p) > 1 and p[1].isdigit()}
    gpus, gpu_reason = _gpus()
    installed, probes = packages_distributions(), "available"
    try:
        check_available()
    except ProbeUnavailable as error:
        probes = str(error)
    discovery = Discovery(
        host=host_facts(),
        governor=sys_text(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        load_1min=os.getloadavg()[0],
        memory_bytes=memory.get("MemTotal"),
        available_bytes=available_bytes(),
        swap_used_bytes=memory["SwapTotal"] - memory["SwapFree"] if "SwapFree" in memory else None,
        huge_pages=active_scheduler(sys_text(root / "sys/kernel/mm/transparent_hugepage/enabled")),
        gpus=gpus,
        gpu_reason=gpu_reason,
        drives=_drives(root / "sys/block"),
        filesystems=_filesystems(root),
        limits={
            "memlock_bytes": _limit(resource.RLIMIT_MEMLOCK),
            "open_files": _limit(resource.RLIMIT_NOFILE),
        },
        is_root=os.geteuid() == 0,
        io_uring=refusal() or "available",
        programs={name: shutil.which(name) for name in ("fio", "smartctl", "nvme")},
        # The package's name depends on the CUDA version that it is built for.
        gpu_libraries={
            "kvikio": version(installed["kvikio"][0]) if "kvikio" in installed else None
        },
        probes=probes,
        warnings=[],
        recommended={},
    )
    return msgspec.structs.replace(
        discovery, warnings=warnings(discovery), recommended=recommended(discovery)
    )


def _drives(blocks: Path) -> list[FoundDrive]:
    if not blocks.is_dir():
        return []
    drives = []
    for disk in sorted(blocks.iterdir()):
        sectors = sys_number(disk / "size")
        if disk.name.startswith(_NO_DRIVE) or not sectors:
            continue
        rotational = sys_number(disk / "queue/rotational")
        drives.append(
            FoundDrive(
                name=disk.name,
                model=sys_text(disk / "device/model") or None,
                firmware=firmware_of(disk),
                bytes=sectors * SECTOR_BYTES,
                is_rotational=None if rotational is None else bool(rotational),
                scheduler=active_scheduler(sys_text(disk / "queue/scheduler")),
                queue_requests=sys_number(disk / "queue/nr_requests"),
                write_cache=sys_text(disk / "queue/write_cache"),
            )
        )
    return drives


def _filesystems(root: Path) -> list[Filesystem]:
    by_device: dict[str, Filesystem] = {}
    for line in (sys_text(root / "proc/self/mounts") or "").splitlines():
        device, point, kind, options, *_ = line.split()
        # Bind mounts show the same device again.
        if (
            not device.startswith("/dev/")
            or kind in _NO_DISK_FS
            or device.startswith("/dev/loop")
            or device in by_device
        ):
            continue
        try:
            free = shutil.disk_usage(unescaped(point)).free
        except OSError:
            free = None
        by_device[device] = Filesystem(
            mount_point=unescaped(point),
            device=device,
            kind=kind,
            options=options.split(","),
            free_bytes=free,
        )
    return list(by_device.values())


def _limit(kind: int) -> int | None:
    soft, _hard = resource.getrlimit(kind)
    return None if soft == resource.RLIM_INFINITY else soft


def _gpus() -> tuple[list[Gpu], str | None]:
    if (program := shutil.which("nvidia-smi")) is None:
        return [], "nvidia-smi is not installed"
    query = ["--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        process = subprocess.run(  # noqa: S603 - its own path
            [program, *query], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], f"nvidia-smi: {error}"
    if process.returncode:
        return [], f"nvidia-smi: {' '.join((process.stdout + process.stderr).split())[:100]}"
    rows = [
        [cell.strip() for cell in line.rsplit(",", 2)]
        for line in process.stdout.splitlines()
        if line.count(",") > 1
    ]
    return [
        Gpu(name=name, memory_bytes=int(mib) << 20 if mib.isdigit() else None, driver=driver)
        for name, mib, driver in rows
    ], (None if rows else "nvidia-smi lists none")


def warnings(discovery: Discovery) -> list[str]:
    """Return the conditions that would disturb a run on this machine, each with its remedy."""
    return [*_machine_warnings(discovery), *_storage_warnings(discovery)]


def _machine_warnings(discovery: Discovery) -> Iterator[str]:
    cpus = discovery.host["cpus"] or 1
    if discovery.load_1min > cpus * _BUSY_LOAD:
        yield f"busy: a load of {discovery.load_1min:.2f} on {cpus} processors; stop other programs"
    if discovery.governor not in (None, "performance"):
        yield (
            f"processor governor {discovery.governor} slows short I/Os; set performance (cpupower"
            " frequency-set)"
        )
    if discovery.swap_used_bytes:
        yield (
            f"{format_bytes(discovery.swap_used_bytes)} of swap is in use; a tier in memory may be"
            " swapped out"
        )
    if discovery.huge_pages == "never":
        yield (
            "transparent huge pages are off, so 4 MiB I/Os are split; write madvise to"
            f" {_HUGE_PAGES}"
        )
    memlock, files = discovery.limits["memlock_bytes"], discovery.limits["open_files"]
    # The limit does not apply to root.
    if memlock is not None and memlock < _MEMLOCK_BYTES and not discovery.is_root:
        limit = format_bytes(memlock)
        yield f"memlock limit {limit}: io_uring cannot register its buffers; ulimit -l unlimited"
    if files is not None and files < _OPEN_FILES:
        yield f"open files are limited to {files:,}; ulimit -n {_OPEN_FILES}"
    if discovery.io_uring != "available":
        yield f"no io_uring ({discovery.io_uring}): threads do the I/O, at more processor time"
    if discovery.programs["smartctl"] is None and discovery.programs["nvme"] is None:
        yield "neither smartctl nor nvme is installed: runs record no drive health"


def _storage_warnings(discovery: Discovery) -> Iterator[str]:
    for drive in discovery.drives:
        if drive.is_rotational:
            yield f"{drive.name} calls itself rotational; a virtual disk may be misdescribed"
        if drive.scheduler not in (None, "none"):
            advice = f"echo none > /sys/block/{drive.name}/queue/scheduler"
            yield (
                f"{drive.name} has the I/O scheduler {drive.scheduler}, which reorders and delays:"
                f" {advice}"
            )
    for fs in discovery.filesystems:
        if "discard" in fs.options:
            yield (
                f"{fs.mount_point} is mounted with discard: deletes trim the drive meanwhile; use"
                " fstrim"
            )
        if fs.mount_point == "/" and len(discovery.filesystems) == 1:
            yield "/ is the system's own filesystem: other programs' I/O is in the figures"


def recommended(discovery: Discovery) -> dict[str, object]:
    """Return settings to start from; the sweep finds better ones."""
    queue = [d.queue_requests for d in discovery.drives if d.queue_requests]
    roomiest = max(discovery.filesystems, key=lambda fs: fs.free_bytes or 0, default=None)
    return {
        "engine": "uring" if discovery.io_uring == "available" else "threads",
        "io_bytes": 1 << 20,
        "queue_depth": min(32, *queue) if queue else 8,
        "cpu_tier_bytes": None
        if discovery.available_bytes is None
        else discovery.available_bytes // 2,
        "storage_directory_on": None if roomiest is None else roomiest.mount_point,
        "trials": 3,
        "next": "kvreplay sweep finds the queue depth at which this drive saturates",
    }


# === measurement of a drive ===============================================================================================

ROOFLINE_NS = 60 * NS_PER_S
"""Time limit of the drive measurement, including the writing of its file."""
SIZES, ROOFLINE_DEPTHS, READ_SHARES = (
    (4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20),
    (1, 4, 16, 64),
    (1, 0, 0.7),
)
FILE_BYTES, OBJECT_BYTES = 2 << 30, 4 << 20
"""There are more than twice as many objects as I/Os in flight, because writes of an object wait for
each other.
"""
MAX_BYTES_PER_S, MAX_IOS_PER_S = 20e9, 6e5
"""Rows are planned for at most this rate per cell; a faster drive ends the cell sooner."""
MIN_CELL_NS = 50_000_000
"""Minimum duration of a cell."""


# Long: all steps in order.
def measure_drive(request: Replay, target: Path) -> DriveFile:
    """Measure the drive beneath `target`, all cells within a minute.

    I/O is direct and random, in a file that was written completely before.

    DeviceError if the target may not be used, has no space for the file, or completes nothing for
    --stall-timeout. Interrupted if a signal came.
    """
    started_ns, started, rng = monotonic_ns(), datetime.now(UTC), np.random.default_rng(0)
    grid = [
        (size, depth, share) for size in SIZES for depth in ROOFLINE_DEPTHS for share in READ_SHARES
    ]
    tier, cells = ExtentTier("drive", target / MEASURED, StorageOptions()), []
    tier.expect(Holding([FILE_BYTES]))
    if (free := shutil.disk_usage(target).free) < FILE_BYTES:
        needs = f"a drive is measured on a file of {format_bytes(FILE_BYTES)}"
        raise DeviceError(f"{target}: {needs}, and only {format_bytes(free)} is free; free some")
    with ExitStack() as stack:
        signalled = stack.enter_context(noted_signals())
        stack.callback(tier.close)
        tier.open(FILE_BYTES)
        facts: dict[str, Any] = tier.facts()
        data = DataSource(started_ns)
        progress = stack.enter_context(request.show("measuring the drive", len(grid)))

        def drive(
            size: int, depth: int, columns: dict[str, np.ndarray | int], max_ns: int | None
        ) -> np.ndarray:
            job = Job(
                RowRing.of(columns),
                [tier],
                data,
                stall_ns=request.config.stall_ns,
                runtime_ns=max_ns,
            )
            with quiet_interpreter():
                engine = choose(EngineName.AUTO, [tier], depth, size)
                driven = engine.drive(job, signalled, lambda _done: None)
            if reason := signalled():
                raise Interrupted(
                    f"interrupted by {reason} while the drive was measured; no file was written"
                )
            if driven.failure is not None or driven.stalled is not None:
                if driven.failure is not None:
                    cause = driven.failure.message
                else:
                    cause = f"nothing completed for {request.config.stall}: {driven.stalled}"
                raise DeviceError(f"{target}: {cause}")
            completed: np.ndarray = job.rows.all[job.rows.all["outcome"] == OK]
            return completed

        objects = np.arange(FILE_BYTES // OBJECT_BYTES)
        fill_columns: dict[str, np.ndarray | int] = {
            "op": np.full(len(objects), WRITE),
            "object_id": objects,
            "length_bytes": OBJECT_BYTES,
        }
        drive(1 << 20, CLOSED_LOOP_DEPTH, fill_columns, None)
        for number, (size, depth, share) in enumerate(grid):
            cell_ns = max(
                MIN_CELL_NS, (ROOFLINE_NS - monotonic_ns() + started_ns) // (len(grid) - number)
            )
            count = int(min(MAX_IOS_PER_S, MAX_BYTES_PER_S / size) * cell_ns / NS_PER_S) + depth
            columns: dict[str, np.ndarray | int] = {
                "op": np.where(rng.random(count) < share, READ, WRITE),
                "object_id": rng.permutation(objects)[np.arange(count) % len(objects)],
                "offset_bytes": rng.integers(0, OBJECT_BYTES // size, count) * size,
                "length_bytes": size,
                "version": np.arange(count) + 1,
            }
            before = device_counters(target)
            try:
                check_memory(count, depth * size)
                rows = drive(size, depth, columns, cell_ns)
                cells.append(cell_of(rows, size, depth, share, before, device_counters(target)))
            except OutOfMemory as error:
                cells.append(
                    DriveCell(io_bytes=size, depth=depth, read_share=share, reason=str(error))
                )
            progress(number + 1)
    names = {
        "device": "device",
        "model": "device_model",
        "device_bytes": "device_bytes",
        "filesystem": "filesystem",
    }
    drive_file = DriveFile(
        argv=request.argv,
        started_utc=started.isoformat(),
        kernel=host_facts()["kernel"],
        **{name: facts[fact] for name, fact in names.items()},
        file_bytes=FILE_BYTES,
        cells=cells,
        held_out=held_out(cells),
    )
    return seal(drive_file)


def cell_of(
    rows: np.ndarray,
    size: int,
    depth: int,
    share: float,
    before: DeviceIo | None,
    after: DeviceIo | None,
) -> DriveCell:
    """Return the cell of the I/Os in `rows` (ROW).

    It is null if the device's counters, `before` and `after`, show that the device did not do them.
    """
    counters = moved_between(before, after)
    cell = partial(DriveCell, io_bytes=size, depth=depth, read_share=share)
    for op, device_bytes in enumerate((counters.read_bytes, counters.written_bytes)):
        operation_bytes = int((rows["op"] == op).sum()) * size
        if device_bytes is not None and device_bytes < MIN_RATIO * operation_bytes:
            return cell(
                reason=(
                    f"the device transferred {format_bytes(device_bytes)} of the"
                    f" {format_bytes(operation_bytes)} of its {OPS[op]}s"
                )
            )
    if not len(rows):
        return cell(reason="nothing completed")
    took_ns = rows["completed_ns"] - rows["submitted_ns"]
    span_ns = int(rows["completed_ns"].max() - rows["submitted_ns"].min())
    times = [
        (
            DriveTimes(**msgspec.structs.asdict(distribution_of(took_ns[is_op])))
            if (is_op := rows["op"] == op).any()
            else None
        )
        for op in (READ, WRITE)
    ]
    return cell(
        operations=len(rows),
        bytes_per_s=len(rows) * size * NS_PER_S / span_ns,
        in_flight=float(took_ns.sum()) / span_ns,
        read=times[READ],
        write=times[WRITE],
    )


def drive_table(drive: DriveFile) -> ReportTable:
    """Return the key figures of a drive file: by I/O size, its highest rates and read latencies."""
    rows, depths = [], [cell.depth for cell in drive.cells]
    for size in sorted({cell.io_bytes for cell in drive.cells}):
        size_cells = [cell for cell in drive.cells if cell.io_bytes == size and cell.bytes_per_s]
        best = [
            max((c.bytes_per_s or 0 for c in size_cells if c.read_share == share), default=None)
            for share in READ_SHARES
        ]
        reads = {cell.depth: cell.read for cell in size_cells if cell.read_share == 1}
        alone, deepest = reads.get(min(depths)), reads.get(max(depths))
        times = (alone and alone.p50_ns, alone and alone.p99_ns, deepest and deepest.p99_ns)
        rows.append([size, *best, *times])
    columns = [
        ReportColumn("io_bytes", "I/O", Unit.BYTES),
        ReportColumn("read", "max read", Unit.BYTES_PER_S),
        ReportColumn("write", "max write", Unit.BYTES_PER_S),
        ReportColumn("mixed", "max 70 % read", Unit.BYTES_PER_S),
        ReportColumn("p50", "read p50, depth 1", Unit.NS),
        ReportColumn("p99", "read p99, depth 1", Unit.NS),
        ReportColumn("deep", f"read p99, depth {max(depths)}", Unit.NS),
    ]
    return table_of(f"the drive itself ({DRIVE_FILE})", Sheet.DEVICE, columns, rows)


def error_line(errors: DriveError) -> str:
    """Return the line on the errors of a drive file's own predictions."""
    bandwidth = (
        f"bandwidth off by {percent(errors.bandwidth_median)} (median), at most"
        f" {percent(errors.bandwidth_greatest)}"
    )
    line = f"{DRIVE_FILE} predicts {errors.cells} cells that were held out of its fit: {bandwidth}"
    if errors.p99_median is not None and errors.p99_greatest is not None:
        line += f", p99 {percent(errors.p99_median)}, at most {percent(errors.p99_greatest)}"
    return line


def machine_document(discovery: Discovery) -> Document:
    """Make the document of a machine, which begins with the conditions that disturb a replay."""
    host, limits = discovery.host, discovery.limits
    gpus = ", ".join(f"{g.name} {format_bytes(g.memory_bytes)}" for g in discovery.gpus)
    memlock, files = limits["memlock_bytes"], limits["open_files"]
    facts = {
        "processor": (
            f"{host['cpu_model'] or '-'}, {host['cpus']} CPUs, governor {discovery.governor or '-'}"
        ),
        "kernel": host["kernel"],
        "memory": (
            f"{format_bytes(discovery.memory_bytes)}, {format_bytes(discovery.available_bytes)} available"
        ),
        "huge pages": discovery.huge_pages,
        "GPUs": gpus or f"none: {discovery.gpu_reason}",
        "io_uring": discovery.io_uring,
        "memlock": "unlimited" if memlock is None else format_bytes(memlock),
        "open files": "unlimited" if files is None else format_count(files),
        **{
            name: path or "not installed"
            for name, path in (discovery.programs | discovery.gpu_libraries).items()
        },
        "probes": discovery.probes,
    }
    drive_columns = [
        ReportColumn("name", "drive"),
        ReportColumn("model"),
        ReportColumn("firmware"),
        ReportColumn("bytes", "size", Unit.BYTES),
        ReportColumn("scheduler"),
        ReportColumn("queue_requests", "requests", Unit.COUNT),
    ]
    drives = table_of("Drives", Sheet.DEVICE, drive_columns, discovery.drives)
    filesystem_columns = [
        ReportColumn("mount_point", "mounted at"),
        ReportColumn("device"),
        ReportColumn("kind", "type"),
        ReportColumn("free_bytes", "free", Unit.BYTES),
    ]
    systems = table_of("Filesystems", Sheet.DEVICE, filesystem_columns, discovery.filesystems)
    good = discovery.recommended
    start = (
        f"start from: --engine {good['engine']} --queue-depth {good['queue_depth']} --io-bytes 1MiB"
        f" --trials {good['trials']}, a CPU tier of at most {format_bytes(good['cpu_tier_bytes'])}"
    )
    tables = [parameters("Machine", Sheet.PARAMETERS, facts), drives, systems]
    return Document(
        name="",
        headline="",
        chapters=[Chapter("", tables, [start, good["next"]])],
        warnings=[f"warning: {line}" for line in discovery.warnings],
    )
