"""Results of parts are those of the whole, and of whole arrays by plain NumPy.

A histogram is as close as it says.

The buffers are made so small that they are emptied many times; the naive forms look at all rows at
once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from conftest import write_trace
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from taken import counted, planned, rows_of, take
from whole import read_table

from kvreplay.engine.setting import Setting
from kvreplay.plan.pacing import Pacer
from kvreplay.plan.replay_config import Config
from kvreplay.plan.row_ring import DELETE, OK
from kvreplay.plan.window import compile_window
from kvreplay.result import recording
from kvreplay.tiers.files import FileTier
from kvreplay.tiers.ram import RamTier
from kvreplay.tiers.tier import StorageOptions
from kvtrace.core import table_files
from kvtrace.core.limit import Limit
from kvtrace.core.metrics import recorder, requests
from kvtrace.core.metrics.distribution import ERROR, TimeDistributions
from kvtrace.core.metrics.recorder import LATENESS
from kvtrace.core.run.figures import Distribution
from kvtrace.core.schema import OPS, SERIES, SERVED, TRACE
from kvtrace.core.statistics import QUANTILES, nearest_rank
from kvtrace.core.tables import open_table

if TYPE_CHECKING:
    from pathlib import Path

S = 10**9
ROWS = 400


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "WAITING", 128)
    monkeypatch.setattr(requests, "_ROOM_AT_FIRST", 8)
    monkeypatch.setattr(table_files, "ROW_GROUP_ROWS", 64)
    monkeypatch.setattr(recording, "BATCH_ROWS", 48)


def measured(rng: np.random.Generator, count: int) -> dict[str, Any]:
    """Return what a run of so many rows might have come to.

    Hardly in order, a few failed, the last not reached.
    """
    due = np.sort(rng.integers(0, 3 * S, count))
    ready = due + rng.integers(0, 40_000_000, count) * (rng.random(count) < 0.3)
    submitted = np.maximum(due, ready) + rng.integers(0, 20_000_000, count)
    completed = submitted + (10 ** rng.uniform(0, 8, count)).astype(np.int64) * (
        rng.random(count) < 0.95
    )
    outcome = rng.choice([0, 0, 0, 0, 0, 0, 1, 2, 4], count).astype(np.int8)
    completed[(outcome == 1) | (outcome == 2)] = -1
    unreached = np.arange(count) >= count - rng.integers(0, 30)
    outcome[unreached], submitted[unreached], completed[unreached] = 3, -1, -1
    names = ("submitted_ns", "completed_ns", "outcome", "ready_ns", "due_ns")
    return dict(zip(names, (submitted, completed, outcome, ready, due), strict=True))


def setting(tmp_path: Path, rng: np.random.Generator, **config: Any) -> Setting:
    """Return a run of random rows of random requests, the first tier without a target."""
    rows = []
    for i in range(ROWS):
        op, request = (
            ("read", "write", "delete")[rng.choice(3, p=[0.5, 0.4, 0.1])],
            int(max(0, i // 8 - rng.integers(6))),
        )
        phase = {"read": "load", "write": "store", "delete": "evict"}[op]
        is_background = rng.random() < 0.1
        rows.append(
            (i * 1000, op, int(rng.integers(3)), phase, i, int(rng.integers(5000)), int(rng.integers(0, 9000)),
             None if is_background else request, None if is_background else 0, 0)
        )  # fmt: skip
    trace = write_trace(tmp_path / "t.parquet", rows)
    reader = open_table(trace, TRACE)
    window = compile_window(reader, trace, {1: 4096, 2: 512}, Limit())
    drive = tmp_path / "drive"
    drive.mkdir(exist_ok=True)
    tiers = [None, RamTier("cpu", 4096), FileTier("nvme", drive, StorageOptions())]
    pacer = Pacer(1.0) if config.pop("is_open", True) else Pacer()
    return Setting(
        Config(tiers={}, io_bytes=4096, **config), pacer, reader, window, tiers, trace, []
    )


@pytest.mark.star
@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("warmup", [None, "40", "300ms"])
def test_parts_come_to_what_the_whole_comes_to(
    tmp_path: Path, is_open: bool, warmup: str | None
) -> None:
    for seed in range(4):
        rng = np.random.default_rng(seed)
        made = setting(tmp_path, rng, is_open=is_open, warmup=warmup)
        known = measured(rng, len(planned(made)))
        rows = planned(made, **(known if is_open else known | {"due_ns": None}))
        summarize = []
        for name, cuts in (("whole", []), ("parts", rng.integers(0, len(rows), 12).tolist())):
            found = take(made, rows, tmp_path / name, cuts)
            written = [
                read_table(tmp_path / name / file, table).to_pydict()
                for file, table in (
                    ("ops.parquet", OPS),
                    ("series.parquet", SERIES),
                    ("requests.parquet", SERVED),
                )
            ]
            summarize.append(
                (
                    found.summary(None, 4 * S),
                    found.requests,
                    written,
                    found.rows,
                    found.last_completed_ns,
                )
            )
        assert summarize[0] == summarize[1]
        # Each row has what was measured of it, whatever buffers its columns lay in before they were
        # encoded.
        ops, at = summarize[0][2][0], rows["trace_row"]
        assert ops["row"] == list(range(ROWS))
        for name, own in (
            ("scheduled_ns", "due_ns"),
            ("submitted_ns", "submitted_ns"),
            ("completed_ns",) * 2,
        ):
            expected = np.full(ROWS, -1)
            expected[at] = rows[own]
            assert is_open or name != "scheduled_ns" or (expected == -1).all()
            assert ops[name] == [None if value < 0 else value for value in expected.tolist()]
        is_done = np.zeros(ROWS, bool)
        is_done[at[rows["outcome"] == OK]] = True
        moved = np.zeros(ROWS, np.int64)
        moved[at] = np.where(rows["op"] == DELETE, 0, rows["length_bytes"])
        assert ops["bytes"] == [
            n if done else None for n, done in zip(moved.tolist(), is_done.tolist(), strict=True)
        ]


def test_what_is_counted_is_what_plain_arrays_say() -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        known = measured(rng, 600)
        op = rng.integers(0, 2, 600).astype(np.int8)
        every = rows_of(600, op=op, length_bytes=rng.integers(1, 10_000, 600), **known)
        found = counted(every, [RamTier("cpu", 4096)], cuts=rng.integers(0, 600, 5).tolist())
        submitted, completed, outcome, ready, due = known.values()
        good = outcome == 0
        for each, code in zip(found.figures(), (0, 1), strict=True):
            rows = np.flatnonzero(good & (op == code))
            latency = completed[rows] - submitted[rows]
            assert each.latency == naive(latency)
            assert each.response == naive(completed[rows] - due[rows])
            assert each.lateness == naive(submitted[rows] - due[rows])
            assert each.in_flight_max == most_at_once(submitted[rows], completed[rows])
        sent = submitted >= 0
        assert found.distribution(LATENESS) == naive((submitted - due)[sent])
        free = np.minimum(np.maximum(due, ready), submitted)
        assert found.order.covered_ns(0) == covered(submitted[good], completed[good])
        assert found.order.waited_ns == covered(free[good], submitted[good])


def naive(values: Any) -> Distribution:
    ordered = sorted(values.tolist())
    ranks = [nearest_rank(len(ordered), part) for part in QUANTILES.values()]
    found = [None if rank is None else ordered[rank - 1] for rank in ranks]
    return Distribution(len(ordered), sum(ordered) / len(ordered), *found, ordered[-1])


def most_at_once(starts: Any, ends: Any) -> int:
    return max(int(((starts <= at) & (ends > at)).sum()) for at in starts)


def covered(starts: Any, ends: Any) -> int:
    total, until = 0, -1
    for start, end in sorted(zip(starts.tolist(), ends.tolist(), strict=True)):
        total += max(0, end - max(start, until))
        until = max(until, end)
    return total


def test_operations_after_the_cut_leave_their_figures_unknown() -> None:
    count = 600
    submitted = np.arange(1, count + 1) * 1000
    submitted[-1] = 5
    rows = rows_of(count, submitted_ns=submitted, completed_ns=submitted + 1500, outcome=OK)
    (read,) = counted(rows, [RamTier("cpu", 4096)]).figures()
    assert (read.operations, read.in_flight_max, read.latency.count) == (count, None, count)


NASTY = {
    "one value": lambda _rng, n: np.full(n, 12_345_678),
    "two far apart": lambda rng, n: np.where(rng.random(n) < 0.5, 3, 10**15),
    "powers of two and beside them": lambda rng, n: (
        2 ** rng.integers(0, 60, n) + rng.integers(-1, 2, n).clip(0)
    ),
    "heavy tail": lambda rng, n: (rng.pareto(0.5, n) * 1000).clip(0, 1e17).astype(np.int64),
    "small": lambda rng, n: rng.integers(0, 3000, n),
}


@pytest.mark.parametrize("kind", NASTY)
def test_a_histogram_is_as_close_as_it_says(kind: str) -> None:
    values = NASTY[kind](np.random.default_rng(1), 60_000).astype(np.int64)
    found = TimeDistributions(limit=1000)
    for part in np.array_split(values, 7):
        found.add(part)
    close, exact = found.distribution(), naive(values)
    assert close.percentiles_within == ERROR
    assert ERROR <= 0.001
    assert (close.count, close.mean_ns, close.max_ns) == (exact.count, exact.mean_ns, exact.max_ns)
    for name in ("p50_ns", "p95_ns", "p99_ns", "p99_9_ns", "p99_99_ns"):
        assert abs(getattr(close, name) - getattr(exact, name)) <= ERROR * getattr(exact, name)


def test_a_distribution_is_exact_up_to_its_limit_and_says_so() -> None:
    values = np.random.default_rng(2).integers(0, 10**9, 1001)
    found = TimeDistributions(2, limit=1000)
    found.add(values[:1000])
    assert found.distribution() == naive(values[:1000])
    assert "percentiles_within" not in msgspec.to_builtins(found.distribution())
    found.add(values[1000:])
    found.add(values, 1)
    assert msgspec.to_builtins(found.distribution())["percentiles_within"] == ERROR
    # Several together are one: counts and sums stay exact.
    both = found.distribution(0, 1)
    assert (both.count, both.mean_ns, both.max_ns) == (
        2002,
        sum(values.tolist()) / 1001,
        int(values.max()),
    )


def test_a_run_of_many_operations_says_so_of_each_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "EXACT_VALUES", 1000)
    known = measured(np.random.default_rng(3), 600)
    op = (np.arange(600) < 570).astype(np.int8)
    read, write = counted(rows_of(600, op=op, **known), [RamTier("cpu", 4096)]).figures()
    assert write.latency.percentiles_within == ERROR
    assert write.latency.max_ns == naive(write_latency(known, op)).max_ns
    assert isinstance(read.latency.percentiles_within, msgspec.UnsetType)


def write_latency(known: dict[str, Any], op: Any) -> Any:
    return (known["completed_ns"] - known["submitted_ns"])[(known["outcome"] == 0) & (op == 1)]


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), min_size=1, max_size=40))
def test_a_requests_time_in_flight_is_its_operations_union(
    tmp_path: Path, spans: list[tuple[int, int]]
) -> None:
    rows = [(i, "read", 1, "load", i, 0, 10, 5, 0, 0) for i in range(len(spans))]
    trace = write_trace(tmp_path / "u.parquet", rows)
    reader = open_table(trace, TRACE)
    window = compile_window(reader, trace, {1: 1}, Limit())
    made = Setting(
        Config(tiers={}), Pacer(), reader, window, [None, RamTier("cpu", 4096), None], trace, []
    )
    start, length = np.array(spans, np.int64).T
    take(
        made,
        planned(made, submitted_ns=start, completed_ns=start + length, outcome=OK),
        tmp_path / "run",
    )
    (found,) = (
        read_table(tmp_path / "run" / "requests.parquet", SERVED).column("storage_ns").to_pylist()
    )
    assert found == covered(start, start + length)
