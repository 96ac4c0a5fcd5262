"""Host memory: mappings begin at huge pages, and what the kernel gave is said."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rings import SEED, needs_uring

from kvreplay.data.buffers import (
    FIRST_BYTES,
    HUGE_PAGE_BYTES,
    Arena,
    Moved,
    arenas,
    growing,
    huge_bytes,
    map_aligned,
    small_page_bytes,
    touch,
)
from kvreplay.data.words import Fresh
from kvreplay.engine.choose import ThreadEngine, UringEngine
from kvreplay.engine.job import Job, Record
from kvreplay.plan.plan import READ, WRITE, build_plan
from kvreplay.tiers.extents import ExtentTier
from kvreplay.tiers.ram import RamTier
from kvreplay.tiers.tier import Holding, StorageOptions

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
@pytest.mark.parametrize(("size", "pages"), [(5, 3), (1, 1)])
def test_all_of_a_mapping_lies_on_huge_pages(size: int, pages: int) -> None:
    # A buffer of 1 MiB alone, too: in 4 KiB pages a device takes it in parts, which halved its speed.
    mapping, first = map_aligned(size * MIB)
    memory = np.frombuffer(mapping, np.uint8)[first : first + size * MIB]
    memory[::4096] = 1
    found = huge_bytes(memory.ctypes.data)
    assert found is not None
    if not found:
        pytest.skip("the kernel has no huge page to give")
    assert found == pages * HUGE_PAGE_BYTES


@needs_huge_pages
def test_the_engines_buffers_lie_on_them() -> None:
    arena = Arena(3, MIB)
    found = huge_bytes(arena.places[0][0])
    assert found in (0, 2 * MIB, 4 * MIB)
    small = small_page_bytes([arena])
    assert small is not None
    assert small == max(0, 3 * MIB - (found or 0))


def test_buffers_that_were_not_asked_to_lie_on_huge_pages_do_not() -> None:
    arena = Arena(3, MIB)
    base = arena.places[0][0] // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
    size = ctypes.c_size_t(2 * HUGE_PAGE_BYTES)
    # Given back, and touched again as small pages.
    assert ctypes.CDLL(None).madvise(ctypes.c_void_p(base), size, mmap.MADV_NOHUGEPAGE) == 0
    assert ctypes.CDLL(None).madvise(ctypes.c_void_p(base), size, mmap.MADV_DONTNEED) == 0
    touch(arena.places[0][0], 3 * MIB)
    assert small_page_bytes([arena]) == 3 * MIB


def resident_bytes(arena: Arena) -> int:
    """Return how much of an arena the kernel has given memory to."""
    pages = (ctypes.c_ubyte * (arena.nbytes // mmap.PAGESIZE))()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(arena.places[0][0]), ctypes.c_size_t(arena.nbytes), pages) == 0
    return sum(page & 1 for page in pages) * mmap.PAGESIZE


def test_buffers_that_grow_are_touched_before_as_many_are_in_use() -> None:
    arena = Arena(512, MIB, is_growing=True)
    assert (arena.first, arena.is_whole) == (FIRST_BYTES // MIB, False)
    # Whole huge pages, and no more.
    assert FIRST_BYTES <= resident_bytes(arena) <= FIRST_BYTES + HUGE_PAGE_BYTES
    arena.views[0][:4] = arena.views[100][:4] = b"kept"
    arena.keep_ahead(arena.first // 2)
    assert resident_bytes(arena) <= FIRST_BYTES + 2 * HUGE_PAGE_BYTES
    arena.keep_ahead(70)
    assert 140 * MIB <= resident_bytes(arena) <= 144 * MIB
    assert bytes(arena.views[0][:4]) == bytes(arena.views[100][:4]) == b"kept"
    arena.keep_ahead(400)
    assert arena.is_whole
    assert resident_bytes(arena) >= 512 * MIB
    assert Arena(8, MIB).is_whole


@given(
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 10_000)), min_size=1, max_size=9),
    st.sampled_from([512, 4096]),
)
def test_rows_fill_no_more_buffers_than_is_said(rows: list[tuple[int, int]], slot_bytes: int) -> None:
    filled = sum((start + length - 1) // slot_bytes - start // slot_bytes + 1 for start, length in rows)
    assert filled <= Moved(len(rows), sum(length for _, length in rows)).most(slot_bytes)


@pytest.mark.parametrize("is_growing", [False, True])
def test_buffers_that_no_row_fills_are_not_touched(is_growing: bool) -> None:
    # A save of 100 MiB, before which a marker is read.
    asked = Moved(1, 4096), Moved(4, 100 * MIB)
    reads, writes = arenas(64, MIB, is_growing=is_growing, asked=asked)
    assert (reads.touched, writes.touched) == (2, 108)
    assert resident_bytes(reads) <= 2 * MIB + HUGE_PAGE_BYTES
    assert reads.is_whole
    depths: list[int] = []
    with growing((reads, writes), lambda: (2, 4), depths.append):
        pass
    # Writes may all the same be as many in flight as at any time.
    assert depths == [64]
    assert reads.touched == 2
    none, _ = arenas(64, MIB, asked=(Moved(0, 0), Moved(1, 1)))
    assert none.touched == 1


@pytest.mark.parametrize("make", [ThreadEngine, pytest.param(UringEngine, marks=needs_uring)])
@pytest.mark.parametrize("count", [20, 200])
def test_an_engine_uses_as_many_buffers_as_are_in_flight_and_says_so(tmp_path: Path, make: Any, count: int) -> None:
    tier = ExtentTier("nvme", tmp_path / "space", StorageOptions(is_direct=False))
    tier.expect(Holding([count * MIB]))
    tier.open(count * MIB)
    engine = make(128, MIB, is_growing=True)
    assert engine.buffer_used_bytes is None
    fill = np.zeros(count, np.int64)
    try:
        for op in (WRITE, READ):
            rows = {
                **dict.fromkeys(("ts_ns", "tier", "offset_bytes"), fill),
                **dict.fromkeys(("request_id", "stage"), fill - 1),
                "row": np.arange(count),
                "object_id": np.arange(count),
                "op": fill + op,
                "length_bytes": fill + MIB,
            }
            plan = build_plan(rows, [4096], Path("t"))
            record = Record.empty(count, is_open_loop=False)
            driven = engine.drive(Job(plan, None, [tier], record, Fresh.of(SEED)), lambda: None, lambda _: None)
            assert (driven.failure, driven.completed) == (None, count)
    finally:
        tier.close()
    reads, writes = engine.arenas
    assert reads.used is not None
    assert writes.used is not None
    assert 1 <= reads.used <= count
    assert 1 <= writes.used <= count
    assert engine.buffer_used_bytes == (reads.used + writes.used) * MIB < engine.buffer_bytes
    # None was in use that was not touched before, and no more than twice as many were touched.
    assert reads.used <= reads.touched <= max(reads.first, 2 * reads.used)
    assert resident_bytes(reads) <= reads.touched * MIB + HUGE_PAGE_BYTES


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
