"""Host memory: mappings begin at huge pages, and what the kernel gave is said."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import numpy as np
import pytest
from conftest import write_trace
from phrases import shows
from rings import ENGINES, content, drive, engine_of, held, memory_of, rows_of, space_in

from kvreplay.plan.buffers import (
    HUGE_PAGE_BYTES,
    REGISTERED_BYTES,
    Arena,
    huge_bytes,
    map_aligned,
    small_page_bytes,
    touch,
)
from kvreplay.plan.replay_config import Config
from kvreplay.plan.row_ring import DELETE, READ, WRITE
from kvreplay.result import summarize
from kvreplay.run.replay import Replay, replay
from kvreplay.tiers.ram import RamTier
from kvreplay.tiers.tier import Holding

MIB = 1 << 20
ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
needs_huge_pages = pytest.mark.skipif(
    not ENABLED.is_file() or "[never]" in ENABLED.read_text(),
    reason="transparent huge pages are off",
)


def test_a_mapping_begins_at_a_huge_page() -> None:
    mapping, first = map_aligned(3 * MIB)
    assert (np.frombuffer(mapping, np.uint8).ctypes.data + first) % HUGE_PAGE_BYTES == 0
    assert len(mapping) - first >= 3 * MIB


@needs_huge_pages
@pytest.mark.parametrize(("size", "pages"), [(5, 3), (1, 1)])
def test_all_of_a_mapping_lies_on_huge_pages(size: int, pages: int) -> None:
    # A buffer of 1 MiB alone, too: in 4 KiB pages a device takes it in parts, which halved its
    # speed.
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
    found = huge_bytes(arena.address)
    assert found in (0, 2 * MIB, 4 * MIB)
    small = small_page_bytes(arena)
    assert small is not None
    assert small == max(0, 3 * MIB - (found or 0))


def test_buffers_are_shorter_than_the_pages_of_some_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mmap, "PAGESIZE", 1 << 16)
    arena = Arena(40, 4096)
    assert (arena.touched, set(arena.view(arena.address, 40 * 4096))) == (40, {0})
    with pytest.raises(ValueError, match=r"multiple.*4096"):
        Arena(1, 1000)


def test_buffers_lie_on_huge_pages_only_if_asked() -> None:
    arena = Arena(3, MIB)
    base = arena.address // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
    size = ctypes.c_size_t(2 * HUGE_PAGE_BYTES)
    # Given back, and touched again as small pages.
    assert ctypes.CDLL(None).madvise(ctypes.c_void_p(base), size, mmap.MADV_NOHUGEPAGE) == 0
    assert ctypes.CDLL(None).madvise(ctypes.c_void_p(base), size, mmap.MADV_DONTNEED) == 0
    touch(arena.address, 3 * MIB)
    assert small_page_bytes(arena) == 3 * MIB


def resident_bytes(arena: Arena) -> int:
    """Return how much of an arena the kernel has given memory to."""
    pages = (ctypes.c_ubyte * (arena.nbytes // mmap.PAGESIZE))()
    assert (
        ctypes.CDLL(None).mincore(
            ctypes.c_void_p(arena.address), ctypes.c_size_t(arena.nbytes), pages
        )
        == 0
    )
    return sum(page & 1 for page in pages) * mmap.PAGESIZE


def test_buffers_are_touched_before_a_run_and_stay_as_they_are() -> None:
    arena = Arena(512, MIB, is_open_loop=True)
    assert (arena.touched, arena.registered) == (512, REGISTERED_BYTES // MIB)
    # Whole huge pages, and no more.
    assert 512 * MIB <= resident_bytes(arena) <= 512 * MIB + HUGE_PAGE_BYTES
    assert Arena(8, MIB, is_open_loop=True).registered == 8
    assert Arena(512, 4096).registered == 512


@pytest.mark.parametrize("is_open_loop", [False, True])
def test_buffers_that_no_row_fills_are_not_touched(*, is_open_loop: bool) -> None:
    arena = Arena(64, MIB, is_open_loop=is_open_loop, max_filled=2)
    assert (arena.touched, arena.registered) == (2, 2)
    assert resident_bytes(arena) <= 2 * MIB + HUGE_PAGE_BYTES
    assert Arena(64, MIB, max_filled=0).touched == 1


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("count", [20, 200])
def test_an_engine_reports_as_many_buffers_as_were_in_flight(
    tmp_path: Path, name: str, count: int
) -> None:
    engine = engine_of(name, 256, MIB, is_open_loop=True)
    assert (engine.arena.used, engine.arena.nbytes) == (None, 256 * MIB)
    with space_in(tmp_path / "space", count * MIB) as tier:
        for op in (WRITE, READ):
            rows = rows_of(
                [{"op": op, "object_id": obj, "length_bytes": MIB} for obj in range(count)]
            )
            driven = drive(engine, rows, [tier])
            assert (driven.failure, driven.completed) == (None, count)
    arena = engine.arena
    assert arena.used is not None
    assert 1 <= arena.used <= count
    assert engine.arena.used * MIB < engine.arena.nbytes
    # The run took no more memory than before it.
    assert arena.used <= arena.touched == 256
    assert 256 * MIB <= resident_bytes(arena) <= 256 * MIB + HUGE_PAGE_BYTES


def test_memory_that_is_not_mapped_has_none() -> None:
    assert huge_bytes(0) is None


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("size", [4096, 3 * MIB + 4096])
def test_an_object_keeps_its_content_as_it_grows(name: str, size: int) -> None:
    tier = RamTier("cpu", 4 * MIB, is_verified=True)
    tier.expect(Holding([size + 4096], {7: size + 4096}))
    tier.open(size)
    stated = [{"op": WRITE, "object_id": 7, "length_bytes": size}]
    stated += [{"op": WRITE, "object_id": 7, "offset_bytes": size, "length_bytes": 4096}]
    rows = rows_of([*stated, {"op": READ, "object_id": 7, "length_bytes": size + 4096}])
    try:
        assert drive(engine_of(name, 4, 64 << 10), rows, [tier]).failure is None
        assert held(tier, 7, size + 4096) == content(7, 1, size) + content(7, 2, 4096, size)
        assert shows(tier.facts()["note"], "DRAM buffers")
        gone = rows_of(
            [{"op": DELETE, "object_id": 7}, {"op": READ, "object_id": 7, "length_bytes": 1}]
        )
        failure = drive(engine_of(name, 4, 64 << 10), gone, [tier]).failure
        assert failure is not None
        assert shows(failure.message, "read … object 7")
    finally:
        tier.close()


def test_memory_beyond_what_was_expected_is_there_too() -> None:
    """Room that deletes left in pieces is not touched again.

    What no one expected is touched when it is first used.
    """
    with memory_of(4096) as tier:
        rows = rows_of(
            [{"op": WRITE, "object_id": obj, "length_bytes": 100_000} for obj in range(50)]
        )
        assert drive(engine_of("threads", 4), rows, [tier]).failure is None
        assert all(held(tier, obj, 100_000) == content(obj, obj + 1, 100_000) for obj in range(50))


def test_huge_pages_are_looked_for_after_the_first_transfer(tmp_path, monkeypatch) -> None:
    looked: list[int | None] = []
    monkeypatch.setattr(summarize, "small_page_bytes", lambda arena: looked.append(arena.used))
    trace = write_trace(
        tmp_path / "t.parquet", [(0, "write", 2, "store", 0, 0, 4096, None, None, 0)]
    )
    (tmp_path / "d").mkdir()
    replay(
        Replay(
            Config(tiers={"nvme": str(tmp_path / "d")}, is_buffered=True),
            trace,
            tmp_path / "run",
            [],
        )
    )
    assert looked == [1]
