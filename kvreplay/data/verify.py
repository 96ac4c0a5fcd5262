"""`--verify`: stamps every 4 KiB block that is written, and checks every block that is read.

A block starts with five words: the run's tag, object, offset, version and a checksum of the whole block. The
tag differs from run to run, so that a lost write cannot hide behind an equal block of an earlier run.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import monotonic_ns
from typing import Any, Protocol

import msgspec

from kvreplay.data.expect import Expected
from kvreplay.data.shaping import BLOCK_BYTES
from kvreplay.plan.plan import Plan
from kvtrace.core.run.verification import BadBlock, BlockFault, Verification
from kvtrace.core.schema import OBJECTS
from kvtrace.core.tables import objects_path, open_table

_WORDS = BLOCK_BYTES // 8
_TAG, _OBJECT, _OFFSET, _VERSION, _SUM = range(5)
MAX_LOCATED = 100_000
"""Bad blocks that run.json lists; more, which would take more than 100 MB, are only counted."""


class NamedTier(Protocol):
    """A tier that reads come from; one of files has `path(object_id)`, too."""

    name: str


@dataclass(frozen=True, slots=True)
class Stamper:
    """Marks the blocks of a buffer."""

    tag: int

    def stamp(self, buffer: memoryview, object_id: int, version: int, offset: int) -> None:
        """Stamp each block of `buffer`: whole blocks, which begin at `offset` of the object."""
        import numpy as np

        blocks = np.frombuffer(buffer, dtype=np.uint64).reshape(-1, _WORDS)
        blocks[:, _TAG], blocks[:, _OBJECT], blocks[:, _SUM] = self.tag, object_id, 0
        blocks[:, _OFFSET] = np.arange(offset, offset + len(buffer), BLOCK_BYTES, dtype=np.uint64)
        blocks[:, _VERSION] = version & (2**64 - 1)
        blocks[:, _SUM] = checksums(blocks)


def new_tag() -> int:
    """Return a tag that no other run has."""
    return int.from_bytes(os.urandom(8), "little")


@cache
def _weights() -> Any:
    import numpy as np

    # Odd, so that no change of one word can vanish; any fixed generator will do.
    return np.random.Generator(np.random.SFC64(0)).integers(0, 2**63, _WORDS, dtype=np.uint64) * np.uint64(
        2
    ) + np.uint64(1)


def checksums(blocks: Any) -> Any:
    """Return uint64 a row of uint64 `blocks`: a sum of mixed words, each with a weight of its own.

    Folding the high half in first keeps equal changes of top bits in two words from cancelling.
    """
    import numpy as np

    mixed = blocks >> np.uint64(32)
    mixed ^= blocks
    mixed *= _weights()
    return mixed.sum(axis=1, dtype=np.uint64)


class Verifier:
    """Checks the blocks that reads return, from many threads, and counts and lists the bad ones."""

    def __init__(self, tag: int, plan: Plan, expected: Expected, tiers: Sequence[NamedTier | None]) -> None:
        """Check reads of `plan` against `expected`; blocks must carry `tag`."""
        self._tag, self._expected, self._tiers = tag, expected, tiers
        self._row, self._tier = memoryview(plan.row), memoryview(plan.tier)
        self._object = memoryview(plan.object_id)
        self._lock = threading.Lock()
        self._checked = self._unwritten = self._check_ns = 0
        self._by_fault: dict[str, int] = {}
        self._located: list[BadBlock] = []

    def check(self, buffer: memoryview, row: int, offset: int) -> str | None:
        """Check the blocks of `buffer`, read at `offset` for row `row` of the plan; return the first fault, or None."""
        import numpy as np

        started = monotonic_ns()
        count = len(buffer) // BLOCK_BYTES
        blocks = np.frombuffer(buffer, dtype=np.uint64, count=count * _WORDS).reshape(-1, _WORDS)
        wanted, is_written = self._expected.versions(row, offset, count)
        found = blocks[:, : _SUM + 1]
        sums = checksums(blocks) - _weights()[_SUM] * (found[:, _SUM] ^ (found[:, _SUM] >> np.uint64(32)))
        places = np.arange(offset, offset + count * BLOCK_BYTES, BLOCK_BYTES, dtype=np.uint64)
        is_good = (
            (sums == found[:, _SUM])
            & (found[:, _TAG] == self._tag)
            & (found[:, _OFFSET] == places)
            & (found[:, _OBJECT] == self._object[row])
            & (found[:, _VERSION].astype(np.int64) == wanted)
        )
        bad = np.flatnonzero(~is_good & is_written)
        lines = [self._locate(row, offset, int(at), blocks[at], sums[at], wanted[at]) for at in bad]
        with self._lock:
            self._checked += int(is_written.sum())
            self._unwritten += count - int(is_written.sum())
            self._check_ns += monotonic_ns() - started
            for line in lines:
                self._by_fault[line.fault] = self._by_fault.get(line.fault, 0) + 1
            self._located += lines[: MAX_LOCATED - len(self._located)]
        if not lines:
            return None
        more = f" and {len(bad) - 1:,} more blocks of this I/O" if len(bad) > 1 else ""
        return f"{describe(lines[0])}{more}"

    def _locate(self, row: int, offset: int, at: int, block: Any, total: Any, wanted: Any) -> BadBlock:
        tag, obj, place, version = (int(block[i]) for i in (_TAG, _OBJECT, _OFFSET, _VERSION))
        version -= (version >> 63) << 64
        here = offset + at * BLOCK_BYTES
        tier = self._tiers[self._tier[row]]
        assert tier is not None, "planned rows have a tier"
        if total != block[_SUM]:
            fault, is_known = BlockFault.DAMAGED, False
        elif tag != self._tag:
            fault, is_known = BlockFault.FOREIGN, False
        else:
            fault = BlockFault.STALE if (obj, place) == (self._object[row], here) else BlockFault.MISPLACED
            is_known = True
        path: Callable[[int], str] | None = getattr(tier, "path", None)
        return BadBlock(
            fault=fault,
            row=self._row[row],
            tier=tier.name,
            object_id=self._object[row],
            file=path(self._object[row]) if path else None,
            offset_bytes=here,
            expected_version=int(wanted),
            found={"object_id": obj, "offset_bytes": place, "version": version} if is_known else None,
        )

    def result(self) -> Verification:
        """Return what was found so far."""
        with self._lock:
            return Verification(
                block_bytes=BLOCK_BYTES,
                checked_blocks=self._checked,
                unwritten_blocks=self._unwritten,
                corrupt_blocks=sum(self._by_fault.values()),
                by_fault=dict(sorted(self._by_fault.items())),
                located=list(self._located),
                check_ns=self._check_ns,
            )


def named(verifier: Verifier | None, trace: Path) -> Verification | None:
    """Return what `verifier` found, with the names that the objects table beside `trace` gives."""
    import numpy as np

    if verifier is None:
        return None
    found = verifier.result()
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
