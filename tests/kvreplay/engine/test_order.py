"""The order of operations against a model in plain Python.

Random plans, on every way in which bytes move.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from rings import ENGINES, IO, content, drive, engine_of, needs_uring, rows_of

from kvreplay.plan.row_ring import DELETE, OK, READ, WRITE
from kvreplay.tiers.extents import ExtentTier
from kvreplay.tiers.files import FileTier
from kvreplay.tiers.modelled import Service, SimulatedTier
from kvreplay.tiers.ram import RamTier
from kvreplay.tiers.tier import Holding, StorageOptions

SPACE = 64 << 20
KINDS = ("space", "files", "memory", "null", "model")


def tiers_in(folder: Path) -> list[Any]:
    """Return one tier of each kind, open, in the order of KINDS."""
    (folder / "d").mkdir()
    options = StorageOptions(is_buffered=True)
    space = ExtentTier("space", folder / "space.dat", options)
    memory = RamTier("memory", IO)
    for tier in (space, memory):
        tier.expect(Holding([SPACE]))
    service = Service(
        read_bytes_per_s=10**10, write_bytes_per_s=10**10, latency_ns=20_000, source="test"
    )
    found: list[Any] = [
        space,
        FileTier("files", folder / "d", options),
        memory,
        SimulatedTier("null"),
        SimulatedTier("model", service),
    ]
    for tier in found:
        tier.open(SPACE)
    return found


def random_rows(rng: random.Random, count: int, *, is_open: bool) -> list[dict[str, Any]]:
    """Return rows of requests with stages, of objects with chains, with parts, deletes, bursts and
    idle gaps.
    """
    lengths: dict[tuple[int, int], int] = {}
    rows: list[dict[str, Any]] = []
    due, objects = 0, rng.choice((1, 5, 30, 200))
    for number in range(count):
        tier = rng.randrange(len(KINDS))
        key = (tier, rng.randrange(objects))
        op = rng.choice((READ, READ, WRITE, DELETE)) if key in lengths else WRITE
        length = lengths.setdefault(key, rng.choice((4096, 4096, 5000, IO, 3 * IO, 20 * IO)))
        if op == DELETE:
            del lengths[key]
        row = {
            "op": op,
            "tier": tier,
            "object_id": key[1] * len(KINDS) + tier,
            "length_bytes": length,
        }
        if rng.random() < 0.8:
            row |= {
                "request": number // rng.choice((3, 7)) * 1000 + number // 50,
                "stage": (number // 2) % 5,
            }
        if is_open:
            due += rng.choice((0, 0, 1000, 50_000, 3_000_000 if rng.random() < 0.05 else 0))
            row["due_ns"] = due
        row["is_bulk"] = length > 3 * IO
        rows.append(row)
    # Stages of a request never fall: what would is of no request.
    last: dict[int, int] = {}
    for row in rows:
        if "request" in row and row["stage"] < last.get(row["request"], 0):
            del row["request"], row["stage"]
        elif "request" in row:
            last[row["request"]] = row["stage"]
    return rows


def violations(rows: list[dict[str, Any]], done: Any) -> list[str]:
    """Return what a plain reading of the rules finds wrong.

    Rows are compared pair by pair within their chains.
    """
    found = []
    chains: dict[Any, list[int]] = {}
    for number, row in enumerate(rows):
        chains.setdefault(("object", row["object_id"]), []).append(number)
        if "request" in row:
            chains.setdefault(("request", row["request"]), []).append(number)
    begun, ended = done["submitted_ns"].tolist(), done["completed_ns"].tolist()
    for (kind, _), members in chains.items():
        for at, later in enumerate(members):
            for earlier in members[:at]:
                a, b = rows[earlier], rows[later]
                may = a["op"] == b["op"] == READ if kind == "object" else a["stage"] == b["stage"]
                if not may and begun[later] < ended[earlier]:
                    found.append(f"{kind}: row {later} began before row {earlier} had ended")
    found += [
        f"row {i}: not in its time"
        for i, row in enumerate(rows)
        if not row.get("due_ns", 0) <= begun[i] <= ended[i]
    ]
    return found


@pytest.mark.first(seed=1)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("engine", "depth", "rings"),
    [
        pytest.param("threads", 1, 1, marks=pytest.mark.full), ("threads", 4, 1), ("threads", 32, 1), *[
            pytest.param("uring", *of, marks=needs_uring) for of in ((3, 1), (32, 1), (32, 3))
        ], *[pytest.param("uring", *of, marks=[needs_uring, pytest.mark.full]) for of in ((1, 1), (1, 2))],
    ],
)  # fmt: skip
def test_any_mixture_keeps_its_order_and_the_last_write_stays(
    tmp_path: Path, seed: int, engine: str, depth: int, rings: int
) -> None:
    rng = random.Random(seed)  # noqa: S311 - a test's choices
    is_open = seed % 2 == 1
    stated = random_rows(rng, 400, is_open=is_open)
    tiers = tiers_in(tmp_path)
    rows = rows_of(stated, is_open_loop=is_open)
    try:
        driven = drive(
            engine_of(engine, depth, rings=rings), rows, tiers, bulk_depth=rng.choice((None, 2))
        )
        assert (driven.failure, driven.completed, driven.stalled) == (None, len(stated), None)
        assert set(rows.all["outcome"].tolist()) == {OK}
        assert violations(stated, rows.all) == []
        check_content(tiers, stated, rows.all)
    finally:
        for tier in tiers:
            tier.close()


def check_content(tiers: list[Any], stated: list[dict[str, Any]], done: Any) -> None:
    """Compare what lies on the first two tiers with what was written last."""
    live: dict[tuple[int, int], tuple[int, int]] = {}
    for row, version in zip(stated, done["version"].tolist(), strict=True):
        key = row["tier"], row["object_id"]
        if row["op"] == WRITE:
            live[key] = row["length_bytes"], version
        elif row["op"] == DELETE:
            del live[key]
    space, files = tiers[:2]
    fd = space.native().drives[0].fd
    for (tier, obj), (length, version) in live.items():
        whole = -(-length // 4096) * 4096
        if KINDS[tier] == "space":
            assert os.pread(fd, whole, space.space.start(obj)) == content(obj, version, whole)
        elif KINDS[tier] == "files":
            assert Path(files.path(obj)).read_bytes() == content(obj, version, whole)


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_a_random_search_finds_no_run_that_does_not_end(tmp_path: Path, engine: str) -> None:
    """Bursts, no requests, idle gaps, one object or hundreds.

    Each ends, in order; a stall would be told.
    """
    tiers = tiers_in(tmp_path)
    try:
        for seed in range(int(os.environ.get("SEARCH_RUNS", "250"))):
            rng = random.Random(1000 + seed)  # noqa: S311 - a test's choices
            is_open, depth, rings = (
                rng.random() < 0.6,
                rng.choice((1, 2, 8, 64)),
                rng.choice((1, 1, 2)),
            )
            stated = random_rows(
                rng, 3000 if seed % 25 == 24 else rng.choice((1, 20, 150)), is_open=is_open
            )
            rows = rows_of(stated, is_open_loop=is_open)
            driven = drive(engine_of(engine, depth, rings=rings), rows, tiers)
            assert (driven.failure, driven.completed, driven.stalled) == (
                None,
                len(stated),
                None,
            ), seed
            assert violations(stated, rows.all) == [], seed
            # The next search begins with empty tiers.
            left = {(r["tier"], r["object_id"]) for r in stated}
            there = {key for key in left if _is_there(stated, key)}
            gone = [{"op": DELETE, "tier": tier, "object_id": obj} for tier, obj in sorted(there)]
            if gone:
                drive(engine_of(engine, 8), rows_of(gone), tiers)
    finally:
        for tier in tiers:
            tier.close()


def _is_there(stated: list[dict[str, Any]], key: tuple[int, int]) -> bool:
    ops = [row["op"] for row in stated if (row["tier"], row["object_id"]) == key]
    return ops[-1] != DELETE


@pytest.mark.alone
def test_later_readiness_does_not_delay_what_was_ready_first() -> None:
    """A thread watches the clock for the last row when the one before it, due sooner, need no
    longer wait.
    """
    ms = 1_000_000
    tier = SimulatedTier(
        "gpu", Service(read_bytes_per_s=10**12, write_bytes_per_s=1, latency_ns=5 * ms, source="-")
    )
    stated = [
        {"op": READ, "object_id": i, "length_bytes": 1, "due_ns": due * ms}
        for i, due in enumerate((0, 30, 90))
    ]
    for stage, row in enumerate(stated[:2]):
        row |= {"request": 0, "stage": stage}
    late_ns = []
    for _ in range(3):
        rows = rows_of(stated, is_open_loop=True)
        drive(engine_of("threads", 4), rows, [tier])
        late_ns.append(int((rows.all["submitted_ns"] - rows.all["due_ns"])[1]))
    assert min(late_ns) < 20 * ms


def test_a_burst_and_a_wait_end(tmp_path: Path) -> None:
    """120 writes a microsecond apart, 120 reads half a second later.

    Threads once waited for each other for ever.
    """
    tiers = tiers_in(tmp_path)
    stated = [
        {"op": WRITE, "object_id": i, "length_bytes": IO, "due_ns": 1000 * i} for i in range(120)
    ]
    stated += [
        {"op": READ, "object_id": i, "length_bytes": IO, "due_ns": 500_000_000 + 1000 * i}
        for i in range(120)
    ]
    try:
        for depth in (8, 128):
            rows = rows_of(stated, is_open_loop=True)
            driven = drive(engine_of("threads", depth), rows, tiers)
            assert (driven.completed, driven.stalled) == (240, None)
            assert violations(stated, rows.all) == []
    finally:
        for tier in tiers:
            tier.close()
