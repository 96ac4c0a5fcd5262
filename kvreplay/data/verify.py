"""`--verify`: what the engine found of the blocks that it checked, and where each bad one lies.

Every block of 4 KiB that is written is stamped, every block that is read is checked (`native/data.c`): tag of the run,
object, offset, version, and a checksum of the whole block. What a read must find follows from the trace alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from kvreplay.data.source import BLOCK_BYTES
from kvreplay.native.rows import REPLAY
from kvtrace.core.run.run_file import BadBlock, BlockFault, Verification
from kvtrace.core.schema import OBJECTS
from kvtrace.core.tables import objects_path, open_table

MAX_LOCATED = 100_000
"""Bad blocks that run.json lists; more, which would take more than 100 MB, are only counted."""
_FAULTS = (None, BlockFault.DAMAGED, BlockFault.FOREIGN, BlockFault.STALE, BlockFault.MISPLACED)
"""By the numbers of replay.h."""


class NamedTier(Protocol):
    """A tier that reads come from; one of files has `path(object_id)`, too."""

    name: str


class Verifier:
    """What the engine's threads find, in memory that they write."""

    def __init__(self) -> None:
        """Have room for MAX_LOCATED bad blocks, which takes memory as they come."""
        self.blocks: Any = (REPLAY.struct("BadBlock") * MAX_LOCATED)()

    def located(self, count: int, tiers: Sequence[NamedTier | None]) -> list[BadBlock]:
        """Return the first `count` bad blocks that were found, as far as there was room."""
        return [_located(self.blocks[at], tiers) for at in range(min(count, MAX_LOCATED))]

    def result(
        self, tiers: Sequence[NamedTier | None], checked: int, unwritten: int, faults: Iterable[int], check_ns: int
    ) -> Verification:
        """Return what was found: `faults` are counts by the numbers of replay.h."""
        by_fault = {fault.value: n for fault, n in zip(_FAULTS, faults, strict=True) if fault is not None and n}
        corrupt = sum(by_fault.values())
        return Verification(
            block_bytes=BLOCK_BYTES,
            checked_blocks=checked,
            unwritten_blocks=unwritten,
            corrupt_blocks=corrupt,
            by_fault=dict(sorted(by_fault.items())),
            located=self.located(corrupt, tiers),
            check_ns=check_ns,
        )


def _located(bad: Any, tiers: Sequence[NamedTier | None]) -> BadBlock:
    tier, fault = tiers[bad.tier], _FAULTS[bad.fault]
    assert tier is not None, "planned rows have a tier"
    assert fault is not None, "a bad block has a fault"
    path = getattr(tier, "path", None)
    is_known = fault in (BlockFault.STALE, BlockFault.MISPLACED)
    found = {"object_id": bad.found_object, "offset_bytes": bad.found_offset_bytes, "version": bad.found_version}
    return BadBlock(
        fault=fault,
        row=bad.row,
        tier=tier.name,
        object_id=bad.object,
        file=path(bad.object) if path else None,
        offset_bytes=bad.offset_bytes,
        expected_version=bad.expected,
        found=found if is_known else None,
    )


def named(found: Verification | None, trace: Path) -> Verification | None:
    """Return `found` with the names that the objects table beside `trace` gives."""
    import numpy as np

    if found is None:
        return None
    table = objects_path(trace)
    if not found.located or not table.is_file():
        return found
    wanted = np.unique([bad.object_id for bad in found.located])
    keys: dict[int, str] = {}
    for batch in open_table(table, OBJECTS).batches(["object_id", "key"]):
        at = np.flatnonzero(np.isin(batch.column("object_id").to_numpy(), wanted))
        part = batch.take(at)
        keys |= dict(zip(part.column("object_id").to_pylist(), part.column("key").to_pylist(), strict=True))
    located = [msgspec.structs.replace(bad, key=keys.get(bad.object_id)) for bad in found.located]
    return msgspec.structs.replace(found, located=located)


def describe(bad: BadBlock) -> str:
    """Return one line that names a bad block: what is wrong, where, and what lies there instead."""
    name = f"object {bad.object_id}" + (f" ({bad.key})" if bad.key else "")
    place = f"tier {bad.tier}, {name}, offset {bad.offset_bytes}" + (f", file {bad.file}" if bad.file else "")
    if bad.found is None:
        why = {
            BlockFault.DAMAGED: "its checksum does not hold: torn or changed",
            BlockFault.FOREIGN: "not written by this run",
        }[bad.fault]
        return f"{bad.fault} block: {place}: {why}"
    f = bad.found
    return (
        f"{bad.fault} block: {place}: version {bad.expected_version} expected, found object {f['object_id']}, "
        f"offset {f['offset_bytes']}, version {f['version']}"
    )
