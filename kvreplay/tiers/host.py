"""Facts about the machine for run.json; null where the system does not report them."""

from __future__ import annotations

import os
import platform
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import Any

from kvtrace.core.mounts import Mount, block_directory, control_groups, mounts, numbered
from kvtrace.core.run.run_file import DeviceIo
from kvtrace.core.system_files import sys_text

SECTOR_BYTES = 512
_NS_PER_MS = 10**6
FILESYSTEMS_IN_MEMORY = frozenset({"tmpfs", "devtmpfs", "ramfs", "hugetlbfs"})
_MEMORY_DISKS = {"ram": "a RAM disk", "zram": "compressed memory", "nullb": "a null block device"}
_MAX_LAYERS = 16


LIBRARIES = ("dgen-py", "numpy", "pyarrow")
"""Libraries that affect a run's data and tables; run.json has their versions."""


def host_facts() -> dict[str, Any]:
    """Return name, processor, memory, kernel, Python and libraries of this machine."""
    cpu = (line.partition(":") for line in (sys_text(Path("/proc/cpuinfo")) or "").splitlines())
    return {
        "hostname": platform.node(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu_model": next(
            (value.strip() for name, _, value in cpu if name.strip() in ("model name", "Model")),
            None,
        ),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "libraries": {name: _version(name) for name in LIBRARIES},
    }


def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


def sys_number(path: Path) -> int | None:
    """Return the whole number in a small system file; None if there is none."""
    text = sys_text(path)
    return int(text) if text and text.isdecimal() else None


def filesystem_facts(target: Path) -> dict[str, Any]:
    """Return the filesystem that holds `target`, its mount options, and the device beneath.

    Values are null where there is no such thing.
    """
    mount = None if target.is_block_device() else _mount_of(target.resolve())
    block, disk = _block_directory(target), block_device(target)
    sectors = None if disk is None else sys_number(disk / "size")
    return {
        "filesystem": mount and mount.kind,
        "mount_point": mount and mount.point,
        "mount_options": mount and mount.options,
        "device": block and block.name,
        "device_model": disk and sys_text(disk / "device" / "model"),
        "device_bytes": None if sectors is None else sectors * SECTOR_BYTES,
        "scheduler": disk and active_scheduler(sys_text(disk / "queue" / "scheduler")),
        "memory_beneath": in_memory(target),
        "is_drive_beneath": is_on_drive(target),
        "device_firmware": disk and firmware_of(disk),
    }


def firmware_of(disk: Path) -> str | None:
    """Return the firmware revision of the disk that /sys describes at `disk`.

    None if the kernel does not report it.
    """
    return next(
        (text for name in ("firmware_rev", "rev") if (text := sys_text(disk / "device" / name))),
        None,
    )


def active_scheduler(text: str | None) -> str | None:
    """Return the active scheduler, the word in brackets or the only one.

    `none [mq-deadline]` is mq-deadline.
    """
    if text is None:
        return None
    return text.partition("[")[2].partition("]")[0] or text or None


def _mount_of(path: Path) -> Mount | None:
    above = [m for m in mounts() if path == Path(m.point) or Path(m.point) in path.parents]
    # If two filesystems are mounted at one point, the later one hides the earlier one.
    return (
        max(enumerate(above), key=lambda pair: (len(pair[1].point), pair[0]))[1] if above else None
    )


def in_memory(target: Path) -> str | None:
    """Return the layers by which `target` lies in memory, such as `loop0 over tmpfs`.

    None if it does not, as far as the system shows.
    """
    return next((text for is_memory, text in _layers(target, _MAX_LAYERS) if is_memory), None)


def is_on_drive(target: Path) -> bool:
    """Return whether `target` is or lies on block devices only, and none of them is memory."""
    return all(is_memory is False for is_memory, _ in _layers(target, _MAX_LAYERS))


def layers(target: Path) -> str:
    """Return the devices beneath `target`, down to its drives: `md0 over nvme0n1, md0 over nvme1n1`."""
    return ", ".join(text for _, text in _layers(target, _MAX_LAYERS))


def _layers(target: Path, max_layers: int) -> Iterator[tuple[bool | None, str]]:
    """Yield each lowest layer beneath `target`: whether it is memory, and its name.

    The first value is None for a layer that is neither a block device nor memory as far as the
    system shows, such as a network filesystem.
    """
    if max_layers == 0 or not target.exists():
        yield None, "a layer that is not visible from here"
        return
    if target.is_block_device():
        yield from _disk_layers(_block_directory(target), max_layers)
        return
    mount = _mount_of(target.resolve())
    if mount is not None and mount.kind in FILESYSTEMS_IN_MEMORY:
        yield True, mount.kind
        return
    options = mount.options.split(",") if mount else []
    upper = next(
        (option.partition("=")[2] for option in options if option.startswith("upperdir=")), ""
    )
    if upper:
        yield from _over("overlay", _layers(Path(upper), max_layers - 1))
        return
    block = _block_directory(target)
    if block is None and mount is not None:
        block = block_directory(mount.device)
    yield from _disk_layers(block, max_layers)


def _disk_layers(block: Path | None, max_layers: int) -> Iterator[tuple[bool | None, str]]:
    """Yield the same for the block device that /sys describes at `block`."""
    if block is None or max_layers == 0:
        yield None, "no block device"
        return
    disk, backing, below = disk_of(block), _backing_file(block), slaves(block)
    if backing is not None:
        yield from _over(disk.name, _layers(backing, max_layers - 1))
    elif below:
        for lower in below:
            yield from _over(block.name, _disk_layers(lower, max_layers - 1))
    else:
        kind = _MEMORY_DISKS.get(disk.name.rstrip("0123456789"))
        yield kind is not None, f"{disk.name}, {kind}" if kind else disk.name


def _over(
    name: str, layers: Iterator[tuple[bool | None, str]]
) -> Iterator[tuple[bool | None, str]]:
    yield from ((is_memory, f"{name} over {text}") for is_memory, text in layers)


def block_device(target: Path) -> Path | None:
    """Return the directory in /sys of the disk beneath `target`; None if it is not visible."""
    block = _block_directory(target)
    return None if block is None else disk_of(block)


def disk_of(block: Path) -> Path:
    """Return the directory in /sys of the disk that `block` is, or is a partition of.

    `block` is the directory in /sys of a block device.
    """
    # A partition has no queue of its own; its disk, the directory above, has.
    return block if (block / "queue").is_dir() else block.parent


def slaves(block: Path) -> list[Path]:
    """Return the directories in /sys of the block devices that `block` is built on, as dm and md
    are.
    """
    # A partition, such as md0p1, has none of its own.
    below = disk_of(block) / "slaves"
    return sorted(link.resolve() for link in below.iterdir()) if below.is_dir() else []


def _backing_file(block: Path) -> Path | None:
    """Return the file beneath a loop device; None for another device."""
    text = sys_text(disk_of(block) / "loop/backing_file")
    return None if text is None else Path(text)


def devices_beneath(
    block: Path | None, max_layers: int = _MAX_LAYERS, *, has_loops: bool = True
) -> Iterator[Path | None]:
    """Yield the directories in /sys of `block` and of the block devices beneath it.

    They are found through partitions, dm, md and, with `has_loops`, the files of loop devices.
    None stands for a device that is not visible. A caller leaves out loops if it counts requests:
    a loop device issues requests of its own, and the kernel's requests to its file are others.
    """
    yield block
    if block is not None:
        file = _backing_file(block) if has_loops else None
        below = (
            slaves(block) if file is None else [_block_directory(file) if file.exists() else None]
        )
        for lower in below:
            yield from (
                devices_beneath(lower, max_layers - 1, has_loops=has_loops)
                if max_layers
                else [None]
            )


def device_number(target: Path) -> str:
    """Return the number of the device that `target` is or lies on."""
    status = target.stat()
    return numbered(status.st_rdev if stat.S_ISBLK(status.st_mode) else status.st_dev)


def _block_directory(target: Path) -> Path | None:
    return block_directory(device_number(target))


def numa_node(target: Path) -> int | None:
    """Return the NUMA node that the drives beneath `target` are attached to.

    None if it is unknown, or if they are attached to several.
    """
    return node_of(_block_directory(target) if target.exists() else None)


def node_of(block: Path | None) -> int | None:
    """Return the same for the block device that /sys describes at `block`."""
    nodes: set[int | None] = set()
    for device in devices_beneath(block):
        if device is None:
            nodes.add(None)
        elif not slaves(device) and _backing_file(device) is None:
            # A disk of several NVMe controllers lies beside links to them, which lie below their
            # PCI devices.
            controllers = [
                link.resolve() for link in disk_of(device).parent.glob("nvme*") if link.is_symlink()
            ]
            for directory in controllers or [disk_of(device)]:
                node = next(
                    (
                        text
                        for ancestor in (directory, *directory.parents)
                        if (text := sys_text(ancestor / "numa_node"))
                    ),
                    "-1",
                )
                nodes.add(int(node) if node.isdecimal() else None)
    return nodes.pop() if len(nodes) == 1 else None


def node_cpus(node: int, nodes: Path = Path("/sys/devices/system/node")) -> set[int] | None:
    """Return the processors of a NUMA node; None if there is no other node."""
    cpu_list = sys_text(nodes / f"node{node}/cpulist")
    if cpu_list is None or len(list(nodes.glob("node[0-9]*"))) < 2:  # noqa: PLR2004 - a single node has all processors
        return None
    cpus: set[int] = set()
    for cpu_range in filter(None, cpu_list.split(",")):
        first, _, last = cpu_range.partition("-")
        cpus |= set(range(int(first), int(last or first) + 1))
    return cpus


def device_counters(target: Path) -> DeviceIo | None:
    """Return the I/O counters of the device beneath `target`, for all programs since boot.

    None if the device is not visible.

    Source: /proc/diskstats (Documentation/admin-guide/iostats.rst): sectors of 512 bytes whatever
    the device, times in milliseconds.
    """
    try:
        device = device_number(target)
    except OSError:
        return None
    for line in (sys_text(Path("/proc/diskstats")) or "").splitlines():
        fields = line.split()
        if ":".join(fields[:2]) == device:
            return DeviceIo(
                read_bytes=int(fields[5]) * SECTOR_BYTES,
                written_bytes=int(fields[9]) * SECTOR_BYTES,
                device_ns=(int(fields[6]) + int(fields[10])) * _NS_PER_MS,
                busy_ns=int(fields[12]) * _NS_PER_MS,
            )
    return None


@dataclass(frozen=True, slots=True)
class Throttle:
    """A limit of a control group on the I/O of its processes to a device."""

    is_write: bool
    is_bytes: bool
    """Whether the limit is in bytes per second; else in I/Os per second."""
    per_s: int
    where: str
    """The line of the limit's file, and the directory of the group."""


def throttles(target: Path, proc: Path = Path("/proc")) -> list[Throttle]:
    """Return the limits of our control group, and of those above it, on the devices beneath
    `target`.

    Groups are left out if this process cannot see their directories.

    Source: Documentation/admin-guide/cgroup-v2.rst (io.max) and cgroup-v1/blkio-controller.rst
    (blkio.throttle.*).
    """
    target_device = _block_directory(target) if target.exists() else None
    numbers = {
        number
        for block in devices_beneath(target_device)
        if block is not None and (number := sys_text(disk_of(block) / "dev"))
    }
    limits_found: list[Throttle] = []
    for group in control_groups("blkio", proc):
        for line in (sys_text(group / "io.max") or "").splitlines():
            number, *limits = line.split()
            for name, _, value in (limit.partition("=") for limit in limits):
                if number in numbers and value.isdecimal():
                    is_write, is_bytes = name.startswith("w"), name.endswith("bps")
                    limits_found.append(
                        Throttle(
                            is_write, is_bytes, int(value), f"io.max {name}={value} of {group}"
                        )
                    )
        for direction, unit in product(("read", "write"), ("bps", "iops")):
            name = f"blkio.throttle.{direction}_{unit}_device"
            for line in (sys_text(group / name) or "").splitlines():
                number, _, value = line.partition(" ")
                if number in numbers and value.isdecimal():
                    where = f"{name} {line} of {group}"
                    limits_found.append(
                        Throttle(direction == "write", unit == "bps", int(value), where)
                    )
    return list(dict.fromkeys(limits_found))


def queue_number(target: Path, name: str) -> int | None:
    """Return the attribute `name`, a number, of the block queue of the disk beneath `target`.

    None if the disk or the attribute is not visible.
    """
    disk = block_device(target) if target.exists() else None
    return None if disk is None else sys_number(disk / "queue" / name)
