"""The assignment of drives to io_urings.

One that the submitting thread enters, or several with their own.

A thread that orders and one that enters the kernel cost two switches an I/O more than one that does
both: several are for drives that together do more than one processor can submit.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from kvreplay.tiers.host import device_number, node_cpus, numa_node
from kvreplay.tiers.tier import Tier
from kvtrace.core.errors import ConfigError
from kvtrace.core.parameters import named

AUTO = "auto"
MAX_SUBMITTERS = 64


@dataclass(frozen=True, slots=True)
class OfTier:
    """The rings that a tier's I/O goes through."""

    first: tuple[int, ...] = (0,)
    """Index of the first ring of each drive."""
    counts: tuple[int, ...] = (1,)
    """Number of rings of each drive; the object's id selects one of them."""
    step: int = 1
    """Difference between the indexes of two successive rings of a drive."""


@dataclass(frozen=True, slots=True)
class Share:
    """The rings of a job and their tiers; by default, one ring serves all tiers."""

    because: str
    of_tiers: tuple[OfTier, ...] = ()
    targets: tuple[tuple[str, ...], ...] = ((),)
    """Names of the drives that each ring serves."""
    refused: str | None = None
    """The reason why there are fewer rings than requested; None if there are as many."""

    @property
    def rings(self) -> int:
        """The number of rings; with one, the submitting thread enters the kernel itself."""
        return len(self.targets)

    def node(self, ring: int) -> int | None:
        """Return the NUMA node of the ring's drives.

        None if it is unknown, or they are on several nodes.
        """
        nodes = {numa_node(Path(target)) for target in self.targets[ring]}
        return nodes.pop() if len(nodes) == 1 else None

    def cpus(self, ring: int) -> set[int] | None:
        """Return the processors near the ring's drives that this process may use.

        None if all are equally near.
        """
        node = self.node(ring)
        near = None if node is None else node_cpus(node)
        return None if near is None else near & os.sched_getaffinity(0) or None


def check_submitters(text: str) -> int | None:
    """Parse `--submitters`: return a number, or None for auto; ConfigError otherwise."""
    if text == AUTO:
        return None
    if text.isascii() and text.isdecimal() and 1 <= int(text) <= MAX_SUBMITTERS:
        return int(text)
    raise ConfigError(f"{named('submitters', text)}: give 1 to {MAX_SUBMITTERS}, or {AUTO}")


def share(tiers: Sequence[Tier | None], ring_count: int | None) -> Share:
    """Assign the drives of `tiers` to `ring_count` rings.

    None stands for one ring per drive, as far as there are processors.
    """
    if ring_count == 1:
        return Share("--submitters 1")
    drives = [
        drive for tier in tiers if tier is not None and tier.has_ring for drive in tier.drives
    ]
    devices: list[object] = [
        device_number(p) if (p := Path(drive.target)).exists() else p for drive in drives
    ]
    kinds = list(dict.fromkeys(devices))
    count, because = ring_count, f"--submitters {ring_count}"
    if count is None:
        spare = len(os.sched_getaffinity(0)) - 1
        count = min(len(kinds), spare, MAX_SUBMITTERS)
        because = (
            f"{AUTO}: {len(kinds)} drives, and {spare} processors besides that of the scheduling"
            " thread"
        )
    if not drives:
        no_ring_reason = "no tier has files or devices that a ring reads and writes"
        return Share(because, refused=None if ring_count is None else no_ring_reason)
    if count <= 1:
        return Share(because)
    # Drives on one device share a ring, unless there are enough rings.
    of_drive = (
        [kinds.index(device) for device in devices]
        if len(kinds) >= count
        else list(range(len(drives)))
    )
    return _distribute(tiers, of_drive, count, because)


def _distribute(
    tiers: Sequence[Tier | None], of_drive: list[int], count: int, because: str
) -> Share:
    """Distribute `count` rings over the drives, numbered by `of_drive`.

    With more drives than rings, a ring serves every n'th drive; with more rings than drives,
    several rings serve one drive.
    """
    step, numbers = max(of_drive) + 1, iter(of_drive)
    targets: list[list[str]] = [[] for _ in range(count)]
    of_tiers = []
    for tier in tiers:
        if tier is None or not tier.has_ring:
            of_tiers.append(OfTier())
            continue
        rings = [
            list(range(first_ring, count, step)) or [first_ring % count]
            for first_ring in islice(numbers, len(tier.drives))
        ]
        for drive, drive_rings in zip(tier.drives, rings, strict=True):
            for ring in drive_rings:
                targets[ring].append(drive.target)
        of_tiers.append(
            OfTier(tuple(drive_rings[0] for drive_rings in rings), tuple(map(len, rings)), step)
        )
    return Share(because, tuple(of_tiers), tuple(map(tuple, targets)))
