"""What the tests of io_uring share."""

from __future__ import annotations

import pytest

from kvreplay.data.words import Fresh
from kvreplay.engine import ring
from kvreplay.engine.rings.share import OfTier, Share, alone

IO = 16384
REFUSED = ring.refusal()
needs_uring = pytest.mark.skipif(REFUSED is not None, reason=f"no io_uring: {REFUSED}")
SEED = 3


def parted(rings: int, tiers: int = 4) -> Share:
    """Return the share of `rings` rings to which objects of every tier go in turn, by their ids."""
    if rings == 1:
        return alone("asked")
    return Share("asked", (OfTier(None, (0,), (rings,), 1),) * tiers, (("all",),) * rings)


def content(obj: int, version: int, length: int) -> bytes:
    """Return what `Fresh.of(SEED)` writes as the first `length` bytes of a version of an object."""
    expected = bytearray(length)
    Fresh.of(SEED)(memoryview(expected), obj, version, 0)
    return bytes(expected)
