"""Host memory: mappings begin at huge pages, and what the kernel gave is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvreplay.data.buffers import HUGE_PAGE_BYTES, Arena, huge_bytes, map_aligned
from kvreplay.tiers.ram import RamTier
from kvreplay.tiers.tier import Holding

MIB = 1 << 20
ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
needs_huge_pages = pytest.mark.skipif(
    not ENABLED.is_file() or "[never]" in ENABLED.read_text(), reason="transparent huge pages are off"
)


def test_a_mapping_begins_at_a_huge_page() -> None:
    mapping, first = map_aligned(3 * MIB)
    assert (np.frombuffer(mapping, np.uint8).ctypes.data + first) % HUGE_PAGE_BYTES == 0
    assert len(mapping) - first >= 3 * MIB


@needs_huge_pages
def test_whole_huge_pages_are_used_and_no_more() -> None:
    mapping, first = map_aligned(5 * MIB)
    memory = np.frombuffer(mapping, np.uint8)[first : first + 5 * MIB]
    memory[::4096] = 1
    # The third page would reach beyond the end, so its part stays on small ones. The kernel may have no page to give.
    assert huge_bytes(memory.ctypes.data) in (0, 2 * MIB, 4 * MIB)


@needs_huge_pages
def test_the_engines_buffers_lie_on_them() -> None:
    arena = Arena(8, MIB)
    assert huge_bytes(arena.places[0][0]) in range(0, 8 * MIB + 1, 2 * MIB)


def test_memory_that_is_not_mapped_has_none() -> None:
    assert huge_bytes(0) is None


@pytest.mark.parametrize("size", [4096, 3 * MIB + 4096])
def test_an_object_keeps_its_content_as_it_grows(size: int) -> None:
    tier = RamTier("cpu", 4 * MIB, is_verified=True)
    tier.expect(Holding([size + 4096], {7: size + 4096}))
    tier.open(size)
    content = np.random.default_rng(1).integers(0, 256, size, np.uint8)
    tier.reserve(7, size)
    tier.write(tier.begin(1, 7), 0, memoryview(content))
    tier.reserve(7, size + 4096)
    back = np.zeros(size, np.uint8)
    assert tier.read(tier.begin(0, 7), 0, memoryview(back)) == size
    assert (back == content).all()
    assert tier.facts()["note"].startswith("copies between DRAM buffers, ")
    tier.delete(7)
    with pytest.raises(FileNotFoundError):
        tier.begin(0, 7)
