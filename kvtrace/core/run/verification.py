"""What `--verify` found: how many blocks were checked, and each that held the wrong data."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class BlockFault(StrEnum):
    """What is wrong with a block that was read."""

    DAMAGED = "damaged"
    """Its checksum does not hold: torn, or bytes changed."""
    FOREIGN = "foreign"
    """Not written by this run; zeros among them."""
    MISPLACED = "misplaced"
    """A block of this run that belongs elsewhere."""
    STALE = "stale"
    """The right place, another version."""


class BadBlock(msgspec.Struct, frozen=True, kw_only=True):
    """One bad block and where it was read."""

    fault: BlockFault
    row: int
    """The trace row that read it."""
    tier: str
    object_id: int
    key: str | None = None
    """The object's name, from the trace's objects table; null if that is absent."""
    file: str | None
    """Null where objects are no files."""
    offset_bytes: int
    """Of the block in its object."""
    expected_version: int
    found: dict[str, int] | None
    """What the block says it is; null if its checksum does not hold."""


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """What --verify found."""

    block_bytes: int
    checked_blocks: int
    unwritten_blocks: int
    """Read where the trace never wrote: nothing to check."""
    corrupt_blocks: int
    by_fault: dict[str, int]
    located: list[BadBlock]
    """All, up to 100,000."""
    check_ns: int
    """Thread time that checking took, inside the measured time of the run."""
