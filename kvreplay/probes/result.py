"""What the probes found, as `probe.json` holds it; what was not measured is null or absent, never 0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from kvreplay.probes.devices import SECTOR_BYTES, device_name
from kvreplay.probes.layout import CALL_COUNTS, CALLS, COUNTS, DIRECTIONS, KINDS, histogram
from kvreplay.probes.libbpf import Programs
from kvtrace.core.run.probe_file import (
    LAYERS,
    Application,
    BlockFigures,
    Calls,
    DepthCount,
    DirectionFigures,
    Second,
    Sized,
    ZoneCount,
)
from kvtrace.core.units import NS_PER_S

DEFINITIONS = {
    "requests": "what the block layer hands to a disk; one system call or object can take many, merges join several",
    "whose": "who queued the request, whoever issued or completed it; a request merged of several is the first one's",
    "not seen": "dirty pages that the kernel writes back later belong to its own threads, and so not to a process; "
    "requests queued before the probes were attached",
    "q2d": "from when the request was made (block_io_start, or block_rq_insert on older kernels) to its last issue: "
    "plugging, scheduler, and what requeues took; of requests whose completion was seen, so that Q2D and D2C add up to "
    "queue to completion",
    "d2c": "from the last issue to the completion: driver and device",
    "requeued": "from when the driver gave a request back to its next issue, once for each time; part of Q2D",
    "block_sizes": "requests by their bytes when first issued",
    "in_flight_at_dispatch": "requests by how many of those that pass the filter, in any direction, their disk had in "
    "flight when they were first issued, themselves included; 1023 stands for 1023 and more. A request whose "
    "completion was not seen is taken out as soon as the kernel's own state of it says that it has ended",
    "bios": "I/Os as the filesystem or program gave them to the block layer, before splits and merges",
    "splits": "I/Os cut because they were longer than the disk takes",
    "requeues": "issues that the driver gave back; counted once each, the request is counted once",
    "per_second": "what completed, by the second since the start; the last second is cut short by the end",
    "heat": "what was issued, by the stretch of the disk in which a request starts",
    "ends_not_seen": "requests that completed without the kernel running the probe there (some kernels run none while "
    "a process they protect is the current one); rows of blocks.parquet without a completion",
    "application": "calls on regular files and block devices, of the kernel's own file systems none; memory-mapped "
    "access and calls that were under way at the start are not seen; calls that failed count as errors alone; with "
    "--dev only files on these disks",
    "application times": "a system call from its start to its return; asynchronous I/O from io_submit to the "
    "io_getevents that returns it; io_uring from submission to completion, where all synchronizations count as fsync",
    "application read and write": "calls that queued I/O while they waited, and asynchronous ones, which on files "
    "without O_DIRECT may have been answered by the page cache",
    "application read_without_io and write_without_io": "calls that waited and queued no I/O themselves: the data was "
    "in the page cache or a hole, or went to the page cache and is written back later",
    "direct": "calls on files and devices that were opened with O_DIRECT; the others go by way of the page cache",
    "without_io": "calls that queued no I/O themselves: the data was in the page cache, or on its way there",
    "write_to_fsync": "from the return of the last write to a file to the start of its next synchronization",
    "fadvise_to_read": "from the return of the last fadvise64 on a file to the start of its next read",
    "application devices": "with --dev, files on filesystems that lie on these disks; filesystems without a disk of "
    "their own (NFS, FUSE, overlay, btrfs) are then not seen",
    "percentiles": "nearest rank; the middle of a slot at most 1/64 of its value wide, so within 0.8 %; "
    "null with fewer than 1 / (1 - q) requests",
}


def block_figures(
    programs: Programs, counted: np.ndarray, seconds: Mapping[tuple[int, int], tuple[int, int]], shift: int
) -> BlockFigures:
    """Return the figures in the tables of the attached `programs` and in their counts, `counted`.

    `seconds` are requests and bytes by direction and second; zones of the heat map are sectors >> `shift`.
    """
    sizes = sorted((int(k["direction"]), int(k["bytes"]), int(v["value"])) for k, v in programs.entries("sizes"))
    zones = sorted(
        (int(k["direction"]), int(k["dev"]), int(k["zone"]), int(v["requests"]), int(v["bytes"]))
        for k, v in programs.entries("zones")
    )
    gone = Counter(int(r["direction"]) for _, r in programs.entries("requests") if r["is_gone"])
    counts = counted["counts"]["block"].sum(axis=0)
    zone_bytes = SECTOR_BYTES << shift
    directions = {}
    for index, name in enumerate(DIRECTIONS):
        of: dict[str, Any] = dict(zip(COUNTS, counts[index].tolist(), strict=True))
        if not any(of.values()):
            continue
        of["ends_not_seen"] += gone[index]
        of |= {name: histogram(counted[name][index].tolist(), of.pop(f"{name}_sum")) for name in LAYERS}
        directions[name] = DirectionFigures(
            block_sizes=[Sized(size, n) for direction, size, n in sizes if direction == index],
            in_flight_at_dispatch=[
                DepthCount(depth, n) for depth, n in enumerate(counted["depths"][index].tolist()) if n
            ],
            per_second=[
                Second(second * NS_PER_S, *moved) for (of_, second), moved in sorted(seconds.items()) if of_ == index
            ],
            heat=[
                ZoneCount(device_name(dev), zone * zone_bytes, *moved)
                for of_, dev, zone, *moved in zones
                if of_ == index
            ],
            **of,
        )
    in_flight = sum(int(v["value"]) for _, v in programs.entries("in_flight"))
    return BlockFigures(directions=directions, zone_bytes=zone_bytes, in_flight_at_end=in_flight)


_ASYNCHRONOUS = ("io_submit", "io_uring")
_MOVES_NOTHING = ("fsync", "fdatasync")


def application(counted: np.ndarray, unseen: Sequence[str]) -> Application:
    """Return the figures in the programs' counts, `counted`; `unseen` are calls that the kernel does not show."""
    found = {
        name: histogram(counted["app_times"][i].tolist(), int(counted["app_sums"][i])) for i, name in enumerate(KINDS)
    }
    return Application(
        times={name: times for name, times in found.items() if times.count},
        calls=list(_calls(counted["counts"]["app"].sum(axis=0))),
        unseen=list(unseen),
        not_followed=int(counted["app_not_followed"]),
    )


def _calls(counts: np.ndarray) -> Iterator[Calls]:
    for kind, of_kind in zip(KINDS, counts.tolist(), strict=True):
        for call, amounts in zip(CALLS, of_kind, strict=True):
            of: dict[str, int | None] = dict(zip(CALL_COUNTS, amounts, strict=True))
            if not any(amounts):
                continue
            if call in _ASYNCHRONOUS or kind in _MOVES_NOTHING:
                of |= {"without_io": None, "without_io_bytes": None}
            if kind in _MOVES_NOTHING:
                of["bytes"] = None
            yield msgspec.convert({"kind": kind, "call": call, **of}, Calls)
