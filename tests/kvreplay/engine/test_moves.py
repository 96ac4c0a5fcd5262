"""Demotions, promotions and write-through carry their source's data.

The bytes below are those above.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conftest import write_trace

from kvreplay.plan.replay_config import Config
from kvreplay.plan.window import compile_window
from kvreplay.run.replay import Replay, replay
from kvtrace.core.limit import Limit
from kvtrace.core.schema import TRACE
from kvtrace.core.tables import open_table

GPU, CPU, NVME = 0, 1, 2
LENGTH = 3 * 4096


def row(op: str, tier: int, phase: str, obj: int = 0) -> Any:
    return (0, op, tier, phase, obj, 0, LENGTH, None, None, 0)


def versions(tmp_path: Path, stated: list[Any], tiers: tuple[int, ...]) -> list[int]:
    trace = write_trace(tmp_path / "t.parquet", stated)
    loader = compile_window(
        open_table(trace, TRACE), trace, dict.fromkeys(tiers, 4096), Limit()
    ).loader
    rows = loader.begin()
    loader.load()
    found: list[int] = rows.all["version"].tolist()
    return found


DEMOTION = [row("read", CPU, "demote"), row("write", NVME, "demote"), row("delete", CPU, "demote")]


def test_a_copy_has_its_sources_version(tmp_path: Path) -> None:
    rows = [
        row("write", GPU, "prefill"),
        row("write", CPU, "store"),
        *DEMOTION,
        row("read", NVME, "load"),
        row("delete", NVME, "promote"),
        row("write", CPU, "promote"),
        row("write", GPU, "prefill"),
        row("write", CPU, "store"),
        row("write", NVME, "store", obj=1),
    ]
    # A version is the row and 1 of what brought the data; object 1 comes from nowhere that is
    # replayed.
    assert versions(tmp_path, rows, (GPU, CPU, NVME)) == [1, 1, 0, 1, 0, 0, 0, 1, 9, 9, 11]


def test_without_its_source_a_copy_is_new_data(tmp_path: Path) -> None:
    again = [
        row("write", NVME, "store"),
        row("delete", NVME, "evict"),
        row("write", NVME, "demote"),
    ]
    assert versions(tmp_path, again, (NVME,)) == [1, 0, 3]


def test_what_was_there_before_moves_too(tmp_path: Path) -> None:
    assert versions(tmp_path, [*DEMOTION, row("read", NVME, "load")], (CPU, NVME)) == [0, 0, 0, 0]


def files(directory: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.stat().st_size == LENGTH
    }


def test_the_bytes_below_are_those_above(tmp_path: Path) -> None:
    demotions = [row(r[1], r[2], r[3], obj) for obj in (0, 1) for r in DEMOTION[:2]]
    rows = [
        row("write", CPU, "prefill", 0),
        *demotions,
        *(row("read", NVME, "load", obj) for obj in (0, 1)),
    ]
    trace = write_trace(tmp_path / "t.parquet", rows)
    above, below = tmp_path / "above", tmp_path / "below"
    above.mkdir()
    below.mkdir()
    for verified in (True, False):
        config = Config(
            tiers={"cpu": str(above), "nvme": str(below)},
            is_buffered=True,
            is_kept=True,
            is_verified=verified,
        )
        outcome = replay(Replay(config, trace, tmp_path / "run", [], is_forced=True))
        assert outcome.error is None
        # Object 0 was written in the run, object 1 was there before.
        assert len(files(below)) == 2
        assert files(below) == files(above)
        if verified:
            assert outcome.run.verification is not None
            assert (
                outcome.run.verification.corrupt_blocks,
                outcome.run.verification.checked_blocks,
            ) == (0, 4 * 3)
