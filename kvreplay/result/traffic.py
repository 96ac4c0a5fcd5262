"""What devices moved against what was asked of them: figures of a drive that did not do the work are none of its own.

Reads of holes and of caches beneath O_DIRECT move too little; other programs and filesystems that copy, too much.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvreplay.config.setting import Setting
from kvreplay.native.rows import READ, WRITE
from kvreplay.result.counted.operations import CountedOperations
from kvreplay.tiers.claims import is_of_root
from kvreplay.tiers.host import device_number
from kvreplay.tiers.objects import ObjectTier
from kvreplay.tiers.tier import StorageTier
from kvtrace.core.run.run_file import DeviceIo
from kvtrace.core.units import format_bytes

WARNING = "WARNING: "
"""How a note begins that belongs to the first lines of a run."""
LEAST, MOST = 0.95, 1.10
_FEW_BYTES = 1 << 20
_OTHERS_BYTES = 16 << 20
"""More than this must be beyond MOST: journals and inodes of a short run are no fault."""
_TOO_LITTLE = {
    "read": "likely causes: holes, a cache beneath O_DIRECT, or compression by a layer beneath",
    "write": "likely causes: a layer beneath that caches, compresses or deduplicates",
}
_TOO_MUCH = {
    "read": "likely causes: another program, or larger blocks or read-ahead of a layer beneath",
    "write": "likely causes: another program, or a journal, copies or parity of a layer beneath",
}


@dataclass(slots=True)
class Traffic:
    """What was asked of one device, and what it moved by its own counters."""

    drives: list[str]
    is_alone: bool
    """Whether nobody else is likely to use the device."""
    asked: dict[str, int]
    moved: dict[str, int | None]

    def warnings(self) -> Iterator[str]:
        """Yield what is wrong between the two, and why that may be."""
        for op, asked in self.asked.items():
            moved = self.moved[op]
            if moved is None or asked < _FEW_BYTES:
                continue
            ratio = moved / asked
            why = _TOO_LITTLE[op] if ratio < LEAST else _TOO_MUCH[op]
            if ratio < LEAST or (self.is_alone and moved > MOST * asked + _OTHERS_BYTES):
                yield (
                    f"{WARNING}the device beneath {', '.join(self.drives)} moved {format_bytes(moved)} for the "
                    f"{format_bytes(asked)} of its {op}s ({ratio:.2f} of it); {why}"
                )


def traffic_warnings(setting: Setting, found: CountedOperations, moved: dict[str, DeviceIo]) -> list[str]:
    """Return the warnings of all devices; none for buffered I/O, which the page cache answers rightly.

    And what object stores refused or failed.
    """
    refused = [WARNING + text for t in setting.tiers if isinstance(t, ObjectTier) for text in t.warnings()]
    if setting.config.is_buffered:
        return refused
    return refused + [text for device in _by_device(found, moved).values() for text in device.warnings()]


def _by_device(found: CountedOperations, moved: dict[str, DeviceIo]) -> dict[int, Traffic]:
    """Return the traffic of each device; drives on one device are one."""
    by: dict[int, Traffic] = {}
    for index, tier in enumerate(found.tiers):
        if not isinstance(tier, StorageTier):
            continue
        for at, drive in enumerate(tier.drives):
            counted = moved.get(drive.name)
            path = Path(drive.target)
            if counted is None or not path.exists():
                continue
            new = Traffic(
                [],
                not is_of_root(path),
                dict.fromkeys(_TOO_LITTLE, 0),
                {"read": counted.read_bytes, "write": counted.written_bytes},
            )
            device = by.setdefault(device_number(path), new)
            device.drives.append(drive.name)
            number = at if len(found.places.within(index)) > 1 else None
            for name, code in (("read", READ), ("write", WRITE)):
                device.asked[name] += found.total("asked_bytes", found.at(index, code, number))
    return by
