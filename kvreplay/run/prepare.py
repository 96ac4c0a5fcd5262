"""The storage of a replay before anything is measured: claimed, written full, its health and counters read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kvreplay.config.config import Precondition
from kvreplay.config.setting import Setting
from kvreplay.native.rows import DELETE
from kvreplay.plan.contents import Fill
from kvreplay.run.precondition import precondition
from kvreplay.tiers.claims import smart
from kvreplay.tiers.extents import ExtentTier
from kvreplay.tiers.host import DeviceCounters, device_counters
from kvreplay.tiers.tier import Holding, PlannedTier, StorageTier, Tier, drives_of
from kvtrace.core.run.run_file import DeviceIo, Preconditioned, Smart

Show = Callable[[str, int], Any]
Interrupted = Callable[[], str | None]


def open_tiers(setting: Setting, stack: ExitStack) -> None:
    """Open all tiers, which `stack` closes; DeviceError if one refuses or the peak does not fit."""
    residency = setting.window.residency
    spaces = [_spaces(tier) for tier in setting.tiers]
    need: dict[object, int] = {}
    for of_tier, peaks in zip(spaces, residency.drive_peak_bytes, strict=True):
        for space, peak in zip(of_tier, peaks, strict=True):
            # Tiers that share a filesystem, or memory, must fit together.
            need[space] = need.get(space, 0) + peak
    for index, tier in enumerate(setting.tiers):
        if tier is None:
            continue
        together = [need[space] for space in spaces[index]]
        if isinstance(tier, PlannedTier):
            tier.expect(
                Holding(
                    residency.drive_peak_bytes[index], residency.grown[index], _ahead_bytes(setting, index), together
                )
            )
        stack.callback(tier.close)
        tier.open(max(together))


def _spaces(tier: Tier | None) -> list[object]:
    if not isinstance(tier, StorageTier):
        return [None if tier is None else tier.target]
    return [_space(Path(drive.target)) for drive in tier.drives]


def _space(path: Path) -> object:
    if path.is_block_device():
        return path.resolve()
    holder = path if path.exists() else path.parent
    return holder.stat().st_dev if holder.exists() else str(path)


def _ahead_bytes(setting: Setting, tier: int) -> int:
    """Return the most that writes can be ahead of deletes before them: what is in flight.

    But no more than the deletes free: without any there is nothing to be ahead of.
    """
    kinds, depth = setting.window.facts.kinds[tier], setting.config.depth
    deletes, longest = int(kinds["rows"][DELETE]), int(kinds["end_bytes"].max())
    return min(deletes, depth + 1) * longest


def precondition_all(setting: Setting, fill: Fill, interrupted: Interrupted, show: Show) -> list[Preconditioned]:
    """Write the drives full as `--precondition` says."""
    config, done = setting.config, []
    if config.precondition is None:
        return []
    peaks = setting.window.residency.drive_peak_bytes
    pairs = [
        (drive, peak)
        for tier, of_tier in zip(setting.tiers, peaks, strict=True)
        if isinstance(tier, StorageTier)
        for drive, peak in zip(tier.drives, of_tier, strict=True)
        if peak
    ]
    for stream, (drive, peak) in enumerate(pairs):
        with show(f"preconditioning {drive.name}", 2 * peak) as progress:
            found, region = precondition(
                drive,
                peak,
                Precondition(config.precondition),
                config.io_bytes,
                config.depth,
                fill,
                stream,
                interrupted=interrupted,
                progress=progress,
            )
        if isinstance(drive, ExtentTier) and found.is_whole:
            drive.note_written(region)
        done.append(found)
    return done


def read_smart(setting: Setting) -> dict[str, Smart]:
    """Read the SMART data of all drives, by name."""
    return {drive.name: smart(Path(drive.target)) for drive in drives_of(setting.tiers)}


def read_devices(setting: Setting) -> dict[str, DeviceCounters | None]:
    """Return what the device beneath each drive has done so far, by the drive's name; None if unseen."""
    return {drive.name: device_counters(Path(drive.target)) for drive in drives_of(setting.tiers)}


def device_io(before: dict[str, DeviceCounters | None], after: dict[str, DeviceCounters | None]) -> dict[str, DeviceIo]:
    """Return what devices did between two readings; null where one is missing."""
    result = {}
    for name, start in before.items():
        end = after[name]
        done = [b - a for a, b in zip(start, end, strict=True)] if start is not None and end is not None else [None] * 4
        result[name] = DeviceIo(read_bytes=done[0], written_bytes=done[1], device_ns=done[2], busy_ns=done[3])
    return result
