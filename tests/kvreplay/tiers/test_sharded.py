"""Several drives as one tier, and how objects are named as files."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from conftest import write_trace
from hypothesis import given
from hypothesis import strategies as st
from whole import read_table

from kvreplay.engine.native_engine import refusal
from kvreplay.plan.replay_config import Config
from kvreplay.plan.target_safety import SCRATCH
from kvreplay.run.replay import FinishedRun, Replay, replay
from kvreplay.tiers.claims import MARKER, claim, release
from kvreplay.tiers.tier import (
    BY_ID,
    BY_KEY,
    FileLayout,
    drive_by_id,
    drive_by_key,
    mixed,
    path_function,
    spread,
)
from kvtrace.core.errors import ConfigError, DeviceError, TraceError
from kvtrace.core.schema import OPS, SERIES
from kvtrace.core.tables import objects_path

if TYPE_CHECKING:
    from pathlib import Path

IO = 16384


def row(op: str, obj: int, length: int = 3 * IO, ts: int = 0) -> Any:
    return (ts, op, 2, "load", obj, 0, length, None, None, 0)


ROWS = [
    row("read", 0),
    *[r for i in range(1, 40) for r in (row("write", i), row("read", i))],
    *[row("delete", i) for i in range(1, 40, 3)],
]


@pytest.fixture(params=["threads", "uring"])
def engine(request: pytest.FixtureRequest) -> str:
    if request.param == "uring" and (why := refusal()) is not None:
        pytest.skip(f"no io_uring: {why}")
    return str(request.param)


def run(
    tmp_path: Path, rows: list[Any], target: str, *, has_keys: bool = True, **options: Any
) -> FinishedRun:
    trace = write_trace(tmp_path / "t.parquet", rows)
    if not has_keys:
        objects_path(trace).unlink()
    config = Config(tiers={"nvme": target}, io_bytes=IO, is_buffered=True, **options)
    return replay(Replay(config, trace, tmp_path / "run", [], is_forced=True))


def directories(tmp_path: Path, count: int) -> list[Path]:
    made = [tmp_path / f"drive{i}" for i in range(count)]
    for path in made:
        path.mkdir()
    return made


def test_a_drive_follows_from_the_key_alone(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.parquet", [row("write", i) for i in range(8)])
    # The keys are chunk/000000000000 and on; by hand: printf chunk/000000000000 | b2sum -l 64, as a
    # number, modulo 3.
    assert drive_by_key(trace, 3).tolist() == [2, 0, 1, 2, 2, 2, 2, 2]
    assert set(drive_by_key(trace, 1).tolist()) == {0}


@given(ids=st.integers(0, 3000), drives=st.integers(1, 40), start=st.integers(0, 2000))
def test_neighbours_without_keys_lie_on_different_equal_drives(
    ids: int, drives: int, start: int
) -> None:
    found = drive_by_id(ids, drives).tolist()
    assert len(found) == ids
    assert all(
        sorted(found[at : at + drives]) == list(range(drives))
        for at in range(0, ids - drives + 1, drives)
    )
    counts = Counter(found[start:])
    assert max(counts.values(), default=0) - min((counts[d] for d in range(drives)), default=0) <= 2
    # A longer trace adds objects, and moves none.
    assert drive_by_id(ids + start, drives)[:ids].tolist() == found


@given(drives=st.integers(2, 16), stride=st.integers(1, 100))
def test_without_keys_no_fixed_distance_falls_on_one_drive(drives: int, stride: int) -> None:
    found = Counter(drive_by_id(2000 * stride, drives)[::stride].tolist())
    even, spread_of = 2000 / drives, 6 * (2000 / drives) ** 0.5
    assert all(abs(found[drive] - even) < spread_of for drive in range(drives))


def test_a_drive_follows_from_the_id_where_there_are_no_keys(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.csv.zst", [row("write", i) for i in (0, 4, 2)])
    assert spread(trace, 2)[1] == BY_KEY
    objects_path(trace).unlink()
    # SplitMix64 of 0, 1, 2 is 0xe220a8397b1dcdaf, 0x910a2dec89025cc1, 0x975835de1c9756ce (Vigna's
    # splitmix64.c).
    drive_of, rule = spread(trace, 2)
    assert (drive_of.tolist(), rule) == ([1, 0, 1, 0, 0], BY_ID)


@pytest.mark.star
@pytest.mark.parametrize("has_keys", [True, False])
@pytest.mark.parametrize("suffix", ["", ".dat"])
def test_a_tier_on_several_drives(
    tmp_path: Path, engine: str, suffix: str, *, has_keys: bool
) -> None:
    drives = (
        directories(tmp_path, 3) if not suffix else [tmp_path / f"drive{i}.dat" for i in range(3)]
    )
    target = ",".join(map(str, drives))
    outcome = run(tmp_path, ROWS, target, engine=engine, is_verified=True, has_keys=has_keys)
    drive_of = drive_by_key(tmp_path / "t.parquet", 3) if has_keys else drive_by_id(40, 3)
    assert outcome.error is None
    assert outcome.run.verification is not None
    assert (outcome.run.verification.corrupt_blocks, outcome.run.verification.unwritten_blocks) == (
        0,
        0,
    )
    names = [f"nvme:{d}" for d in drives]
    expected = Counter((names[drive_of[r[4]]], r[1]) for r in ROWS)
    assert {(f.tier, f.op): f.operations for f in outcome.summary.drives} == expected
    assert {f.op: f.operations for f in outcome.summary.figures} == {
        "read": 40,
        "write": 39,
        "delete": 13,
    }
    facts = outcome.run.tiers["nvme"]
    assert facts["placement"] == (BY_KEY if has_keys else BY_ID)
    assert [d["target"] for d in facts["drives"]] == [str(d) for d in drives]
    assert all(d["filesystem"] for d in facts["drives"])
    assert list(outcome.run.device_io) == list(outcome.run.smart) == names
    assert any("one device" in note for note in outcome.run.notes) is (facts["device"] is not None)
    series = read_table(tmp_path / "run" / "series.parquet", SERIES).to_pylist()
    by_drive: Counter[int] = Counter()
    for r in series:
        by_drive[r["drive"]] += r["operations"]
    assert by_drive == Counter(drive_of[r[4]] for r in ROWS)
    assert not suffix or not any(d.exists() for d in drives)
    assert suffix or all(list(d.iterdir()) == [] for d in drives)


def test_drives_that_get_nothing_are_no_fault(tmp_path: Path) -> None:
    drives = directories(tmp_path, 2)
    alone = [(0, "write", 2, "store", 0, 0, 4096, None, None, 0)]
    outcome = run(tmp_path, alone, ",".join(map(str, drives)))
    assert outcome.error is None
    assert (outcome.summary.operations, len(outcome.summary.drives)) == (1, 1)


def test_one_drive_has_no_index(tmp_path: Path) -> None:
    (drive,) = directories(tmp_path, 1)
    outcome = run(tmp_path, ROWS, str(drive))
    assert outcome.summary.drives == []
    assert set(
        read_table(tmp_path / "run" / "series.parquet", SERIES).column("drive").to_pylist()
    ) == {None}


def test_each_drive_holds_its_own_objects(tmp_path: Path) -> None:
    drives = directories(tmp_path, 2)
    run(tmp_path, ROWS[:-13], ",".join(map(str, drives)), is_kept=True)
    found = [{int(p.stem, 16) for p in d.rglob("*.kv")} for d in drives]
    by_key = drive_by_key(tmp_path / "t.parquet", 2)
    assert found == [{i for i in range(40) if by_key[i] == at} for at in (0, 1)]


def test_one_full_or_held_drive_stops_all(tmp_path: Path) -> None:
    drives = directories(tmp_path, 2)
    target = ",".join(map(str, drives))
    held = claim(drives[1])
    with pytest.raises(DeviceError, match=rf"{drives[1]}.*another kvreplay"):
        run(tmp_path, ROWS, target)
    release(held, is_kept=False)
    assert all(list(d.iterdir()) == [] for d in drives)


def test_drives_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    a, b = directories(tmp_path, 2)
    for target, message in (
        (f"{a},{a}", "already"),
        (f"{a},{b / 'x.dat'}", "directories"),
        (f"{a},", "255 paths"),
    ):
        with pytest.raises(ConfigError, match=message):
            run(tmp_path, ROWS, target)
    # The table that the test writes has a row an object, so object 99 is beyond it.
    with pytest.raises(TraceError, match="object 99"):
        run(tmp_path, [*ROWS, row("write", 99)], f"{a},{b}")


def test_layouts_name_files_as_engines_do() -> None:
    digits = f"{mixed(42):016x}"
    paths = {layout: path_function(layout, "/r")(42) for layout in FileLayout}
    assert paths == {
        FileLayout.HASHED: f"/r/{digits[:2]}/000000000000002a.kv",
        FileLayout.FLAT: "/r/000000000000002a.kv",
        FileLayout.VLLM: (
            f"/r/kvreplay_000000000000_r0/{digits[:3]}/{digits[3:5]}_g0/{digits}{'0' * 46}2a.bin"
        ),
        FileLayout.LMCACHE: f"/r/kvreplay@1@0@{digits}@bfloat16.pt",
    }
    assert len({mixed(i) for i in range(10_000)}) == 10_000
    # Neighbours spread: 4,096 objects over 256 directories leave none empty.
    assert len({mixed(i) >> 56 for i in range(4096)}) == 256


@pytest.mark.star
@pytest.mark.parametrize("layout", list(FileLayout))
def test_a_replay_in_each_layout_leaves_nothing(
    tmp_path: Path, engine: str, layout: FileLayout
) -> None:
    (drive,) = directories(tmp_path, 1)
    outcome = run(
        tmp_path,
        ROWS,
        str(drive),
        layout=layout.value,
        engine=engine,
        is_kept=True,
        is_verified=True,
    )
    assert outcome.error is None
    assert {
        o["outcome"] for o in read_table(tmp_path / "run" / "ops.parquet", OPS).to_pylist()
    } == {"ok"}
    left = [p for p in (drive / SCRATCH).rglob("*") if p.is_file() and p.name != MARKER]
    assert sorted(str(p) for p in left) == sorted(
        path_function(layout, str(drive / SCRATCH))(i) for i in range(40) if i % 3 != 1
    )
    if layout is FileLayout.HASHED:
        named = {
            path_function(layout, str(drive / SCRATCH))(i).rsplit("/", 1)[0] for i in range(40)
        }
        assert {str(p) for p in (drive / SCRATCH).iterdir() if p.is_dir()} == named, (
            "of 256, those that objects need"
        )
    outcome = run(tmp_path, ROWS[:1], str(drive))
    assert outcome.run.tiers["nvme"]["removed_leftover_files"] == len(left)
    assert list(drive.iterdir()) == []
