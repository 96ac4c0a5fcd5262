"""What recorder.c counts against a few lines of plain Python."""

from __future__ import annotations

import gc
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from taken import counted, parts, rows_of

from kvreplay.plan.row_ring import CORRUPT, DELETE, ERROR, OK, ROW, SHORT, SKIPPED
from kvreplay.result import recording
from kvreplay.result.recording import RunPart, RunRecorder
from kvreplay.tiers.modelled import Service, SimulatedTier
from kvtrace.core.metrics import recorder
from kvtrace.core.metrics.native import OPS_A_PLACE
from kvtrace.core.metrics.recorder import LATENESS, PER_MIB, RESPONSE, SERVICE
from kvtrace.core.statistics import QUANTILES, nearest_rank

S = 10**9
TIERS = [
    SimpleNamespace(
        name="nvme", alignment=4096, is_simulated=False, has_times=True, is_copied=False
    ),
    SimpleNamespace(name="null", alignment=1, is_simulated=True, has_times=False, is_copied=False),
]


@st.composite
def runs(draw: st.DrawFn) -> tuple[Any, list[int]]:
    """Return rows of a random run, and where it is cut into parts."""
    count, seed = draw(st.integers(1, 300)), draw(st.integers(0, 2**32))
    rng, is_open = np.random.default_rng(seed), draw(st.booleans())
    submitted = np.sort(rng.integers(0, 3 * S, count)) + rng.integers(
        0, 1 + draw(st.integers(0, S)), count
    )
    completed = submitted + (10 ** rng.uniform(0, 9, count)).astype(np.int64) * (
        rng.random(count) < 0.9
    )
    outcome = rng.choice([OK, OK, OK, ERROR, SHORT, SKIPPED, CORRUPT], count).astype(np.int8)
    completed[np.isin(outcome, (ERROR, SHORT))] = -1
    submitted[outcome == SKIPPED] = completed[outcome == SKIPPED] = -1
    due = np.sort(rng.integers(0, 3 * S, count)) if is_open else None
    rows = rows_of(
        count, op=rng.integers(0, 3, count), tier=rng.integers(0, 2, count),
        offset_bytes=rng.integers(0, 20_000, count), length_bytes=rng.integers(0, 20_000, count),
        trace_row=np.cumsum(rng.integers(1, 4, count)), due_ns=due,
        submitted_ns=submitted, completed_ns=completed, outcome=outcome, ready_ns=rng.integers(0, 3 * S, count),
    )  # fmt: skip
    return rows, sorted(rng.integers(0, count, 3).tolist())


@settings(max_examples=150, deadline=None)
@given(runs())
def test_what_is_counted_is_what_plain_python_counts(run: tuple[Any, list[int]]) -> None:
    rows, cuts = run
    found = counted(rows, TIERS, cuts=cuts)
    check(
        found,
        [{name: row[name].item() for name in ROW.names if row[name].ndim == 0} for row in rows],
    )


def test_of_what_is_simulated_no_second_is_kept() -> None:
    day = 86_400 * S
    service = Service(read_bytes_per_s=1, write_bytes_per_s=1, latency_ns=0, source="-")
    found = counted(
        rows_of(2, submitted_ns=0, completed_ns=100 * day, outcome=0),
        [SimulatedTier("nvme", service)],
    )
    assert (int(found.kinds["good"].sum()), len(found.seconds.records)) == (2, 0)


def test_seconds_are_given_out_once_no_row_can_be_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "WINDOW_ROWS", 64)
    monkeypatch.setattr(recording, "SECONDS_TOGETHER", 3)
    count, rng, given, most = 6000, np.random.default_rng(1), [], 0
    # Each has ended before the row is submitted that takes its place in the ring.
    submitted = np.arange(count) * S // 100
    completed = submitted + rng.integers(1, 64 * S // 100, count)
    rows = rows_of(
        count, submitted_ns=submitted, completed_ns=completed, outcome=np.zeros(count, np.int8)
    )
    found = RunRecorder(TIERS[:1], is_open_loop=False, io_bytes=4096)
    for part in parts(RunPart(0, rows), range(50, count, 50)):
        found.take(part, np.ones(len(part), bool))
        most = max(most, len(found.seconds.records))
        given += [over] if (over := found.over()) is not None else []
    given += [found.over(is_last=True) or ()]
    told = [each for over in given for each in zip(*over, strict=True)]
    assert len(given) > 10
    assert most <= 16 * OPS_A_PLACE, "as many are kept as are not over"
    latency = [
        (completed - submitted)[completed // S == second]
        for second in range(int(completed.max()) // S + 1)
    ]
    assert [(int(second), int(each["operations"])) for second, _, each in told] == list(
        enumerate(map(len, latency))
    )
    ranks = [nearest_rank(len(of), 9900) for of in latency]
    expected = [
        -1 if rank is None else int(np.sort(of)[rank - 1])
        for of, rank in zip(latency, ranks, strict=True)
    ]
    assert [int(each["p99_ns"]) for *_, each in told] == expected
    assert max(expected) > 0


def test_calls_of_c_leave_nothing_behind() -> None:
    found = RunRecorder(TIERS, is_open_loop=False, io_bytes=4096)
    found.order.end()
    gc.disable()
    try:
        before = len(gc.get_objects())
        for _ in range(100):
            found.order.end()
        assert len(gc.get_objects()) - before < 20
    finally:
        gc.enable()


def check(found: RunRecorder, rows: list[dict[str, Any]]) -> None:
    is_open, sent = rows[0]["due_ns"] >= 0, [r for r in rows if r["submitted_ns"] >= 0]
    failed = [r for r in rows if r["outcome"] in (ERROR, SHORT, CORRUPT)]
    run = found.run[0]
    assert (run["rows"], run["sent"], run["failed"]) == (len(rows), len(sent), len(failed))
    assert run["last_ns"] == max(0, *(max(r["submitted_ns"], r["completed_ns"]) for r in rows), 0)
    if is_open:
        late = [r["submitted_ns"] - r["due_ns"] for r in sent]
        assert run["late"] == sum(ns > 1_000_000 for ns in late)
        own = [r["submitted_ns"] - max(r["due_ns"], r["ready_ns"]) for r in sent]
        assert run["late_by_itself"] == sum(ns > 1_000_000 for ns in own)
        assert found.distribution(LATENESS).count == len(late)
        assert found.distribution(LATENESS).max_ns in (None, max([0, *late]))
    seconds = Counter[tuple[int, int, str]]()
    for at in range(len(TIERS) * OPS_A_PLACE):
        tier, op = divmod(at, OPS_A_PLACE)
        here = [r for r in rows if (r["tier"], r["op"]) == (tier, op)]
        good, kind = [r for r in here if r["outcome"] == OK], found.kinds[at]
        assert (kind["planned"], kind["good"], kind["errors"]) == (
            len(here),
            len(good),
            sum(r in failed for r in here),
        )
        assert kind["bytes"] == sum(r["length_bytes"] for r in good)
        io_bytes = [asked(r) if tier == 0 else -1 for r in good]
        assert kind["io_bytes"] == sum(0 if op == DELETE else max(n, 0) for n in io_bytes)
        service = [r["completed_ns"] - r["submitted_ns"] for r in good]
        assert kind["service_ns"] == sum(service)
        # Of what takes no time, none is kept in a closed loop.
        timed = good if tier == 0 or is_open else []
        same(found, at, SERVICE, [r["completed_ns"] - r["submitted_ns"] for r in timed])
        moved = [r for r in timed if op != DELETE and r["length_bytes"]]
        same(
            found,
            at,
            PER_MIB,
            [
                int((r["completed_ns"] - r["submitted_ns"]) * (2**20 / r["length_bytes"]))
                for r in moved
            ],
        )
        if is_open:
            same(found, at, RESPONSE, [r["completed_ns"] - r["due_ns"] for r in good])
            same(found, at, LATENESS, [r["submitted_ns"] - r["due_ns"] for r in good])
        if tier == 0:
            overlaps = [
                sum(o["submitted_ns"] <= r["submitted_ns"] < o["completed_ns"] for o in good)
                for r in good
            ]
            assert found.order.max_in_flight([at], 0) == max([0, *overlaps])
            for r in here:
                if r["submitted_ns"] >= 0:
                    when = r["submitted_ns"] if r["completed_ns"] < 0 else r["completed_ns"]
                    seconds[when // S, at, "operations" if r["outcome"] == OK else "errors"] += 1
    told = Counter[tuple[int, int, str]]()
    for second, at, each in zip(*(found.over(is_last=True) or ()), strict=True):
        for name in ("operations", "errors"):
            told[int(second), int(at), name] += int(each[name])
        alone = [
            r["completed_ns"] - r["submitted_ns"] for r in rows
            if r["outcome"] == OK and r["tier"] == 0 and r["op"] == at and r["completed_ns"] // S == second
        ]  # fmt: skip
        assert (each["latency_ns"], each["most_ns"]) == (sum(alone), max([0, *alone]))
        rank = nearest_rank(len(alone), 9900)
        assert each["p99_ns"] == (-1 if rank is None else sorted(alone)[rank - 1])
    assert +told == seconds


def asked(row: dict[str, Any]) -> int:
    """Return the bytes asked of a tier that pads to 4096."""
    end = row["offset_bytes"] + row["length_bytes"]
    return -(-end // 4096) * 4096 - row["offset_bytes"] // 4096 * 4096 if row["length_bytes"] else 0


def same(found: RunRecorder, at: int, what: int, values: list[int]) -> None:
    told, ordered = found.distribution(what, [at]), sorted(values)
    assert (told.count, told.max_ns) == (len(values), max(0, ordered[-1]) if values else None)
    if values:
        assert told.mean_ns == sum(values) / len(values)
        ranks = [nearest_rank(len(values), part) for part in QUANTILES.values()]
        quantiles = (told.p50_ns, told.p95_ns, told.p99_ns, told.p99_9_ns, told.p99_99_ns)
        assert list(quantiles) == [None if rank is None else ordered[rank - 1] for rank in ranks]


def test_the_order_of_submission_is_found_in_any_disorder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "WAITING", 1000)
    for seed, reach in enumerate((1, 3, 100, 400, 100_000)):
        rng = np.random.default_rng(seed)
        submitted = np.arange(5000) * 1000 + rng.integers(0, reach * 1000, 5000)
        rows = rows_of(
            5000,
            submitted_ns=submitted,
            completed_ns=submitted + rng.integers(0, 50_000, 5000),
            outcome=OK,
        )
        order = counted(rows, [TIERS[0]]).order
        # One that comes more than half of those that wait behind is late.
        assert (order.max_in_flight([0], 0) is None) == (reach > 1000)
        levels = order.levels(0)["submitted_ns"]
        assert np.array_equal(levels, np.sort(submitted)) == (reach <= 1000)
        assert np.array_equal(np.sort(levels), np.sort(submitted))
