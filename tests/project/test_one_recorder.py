"""The same operations have the same figures as a live run, as ranks, as an import, and by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from conftest import trace_meta
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run_files import run_file, summary
from taken import counted, rows_of

from kvdistill.formats.importing import summary_of_ops
from kvreplay.plan.replay_config import Criteria
from kvreplay.plan.row_ring import CORRUPT, DELETE, ERROR, OK, SKIPPED
from kvreplay.ranks.parts import RankReport, RankRun, merge_figures, record_ranks
from kvtrace.core.errors import TraceError
from kvtrace.core.metrics import distribution, native, ops_table, recorder
from kvtrace.core.metrics.distribution import ERROR as WITHIN
from kvtrace.core.metrics.native import OPS_A_PLACE
from kvtrace.core.metrics.ops_table import OpsFile, read_in_time, record_ops
from kvtrace.core.metrics.recorder import LATENESS, RunFacts
from kvtrace.core.metrics.recorder import OPS as OPS_NAMES
from kvtrace.core.run.figures import Figures
from kvtrace.core.run.run_file import OPS_FILE, SERVED_FILE, PacingNote
from kvtrace.core.schema import OPS, SERVED, batch_of, enum_code
from kvtrace.core.statistics import QUANTILES
from kvtrace.core.tables import create

S = 10**9
NAMES = [tier.name for tier in trace_meta(OPS).tiers]
TIER = NAMES[0]


def tiers() -> list[Any]:
    """Return a drive that pads to 4 KiB, and tiers without a target."""
    drive = SimpleNamespace(
        name=TIER,
        engine="other",
        alignment=4096,
        is_simulated=False,
        has_times=True,
        is_copied=True,
    )
    return [drive, *[None] * (len(NAMES) - 1)]


@st.composite
def operations(draw: st.DrawFn) -> Any:
    """Return ROW of random operations, in the order of their due times."""
    count, rng = draw(st.integers(1, 400)), np.random.default_rng(draw(st.integers(0, 2**32)))
    due = np.sort(rng.integers(S, 4 * S, count))
    submitted = due + rng.integers(0, 1 + draw(st.integers(0, S)), count)
    outcome = rng.choice([OK] * 8 + [ERROR, CORRUPT, SKIPPED], count).astype(np.int8)
    completed = submitted + (10 ** rng.uniform(0, 9, count)).astype(np.int64)
    completed[outcome == ERROR] = -1
    submitted[outcome == SKIPPED] = completed[outcome == SKIPPED] = -1
    return rows_of(
        count,
        op=rng.integers(0, 3, count),
        length_bytes=rng.integers(0, 20_000, count),
        due_ns=due if draw(st.booleans()) else None,
        submitted_ns=submitted,
        completed_ns=completed,
        outcome=outcome,
    )


def write_ops(path: Path, rows: Any, asked_bytes: Any, late_ns: int = 0) -> Path:
    """Write `rows` as the table ops of a run that began `late_ns` after the common clock."""

    def shifted(name: str) -> Any:
        return np.where(rows[name] < 0, -1, rows[name] - late_ns)

    is_good = rows["outcome"] == OK
    moved = np.where(rows["op"] == DELETE, 0, rows["length_bytes"])
    columns = {
        "row": np.arange(len(rows)),
        **{name: rows[name] for name in ("op", "tier", "phase", "object_id", "outcome")},
        "request_id": np.full(len(rows), -1),
        "scheduled_ns": shifted("due_ns"),
        "submitted_ns": shifted("submitted_ns"),
        "completed_ns": shifted("completed_ns"),
        "bytes": np.where(is_good, moved, -1),
        "io_bytes": np.where(is_good, asked_bytes, -1),
        "engine": np.full(len(rows), enum_code(OPS, "engine", "other"), np.int8),
    }
    with create(path, OPS, trace_meta(OPS)) as out:
        out.write(batch_of(OPS, columns))
    return path


def rank(folder: Path, number: int, rows: Any, asked_bytes: Any, figures: list[Figures]) -> RankRun:
    """Write what a rank leaves that did `rows`, and return it."""
    folder.mkdir(exist_ok=True)
    times = np.concatenate([rows["due_ns"], rows["submitted_ns"], [5 * S]])
    late_ns = int(times[times >= 0].min())
    write_ops(folder / OPS_FILE, rows, asked_bytes, late_ns)
    with create(folder / SERVED_FILE, SERVED, trace_meta(SERVED)):
        pass
    is_open = bool((rows["due_ns"] >= 0).any())
    pacing = PacingNote(loop="open" if is_open else "closed", speed=None)
    own = msgspec.structs.replace(summary(figures), wall_ns=10 * S - late_ns)
    report = RankReport(rank=number, host="a")
    run = run_file(own, pacing=pacing)
    return RankRun(number, "a", folder, run, report, has_ended=True, late_ns=late_ns)


def nearest(values: list[int], part: int) -> int | None:
    """Return a percentile by nearest rank, null where too few values tell it."""
    if len(values) * (10_000 - part) < 10_000:
        return None
    return sorted(values)[-(-len(values) * part // 10_000) - 1]


def by_hand(rows: Any, op: int) -> dict[str, Any]:
    """Return the figures of one operation in plain Python, a list for each distribution."""
    names = ("op", "outcome", "length_bytes", "due_ns", "submitted_ns", "completed_ns")
    here = [dict(zip(names, row, strict=True)) for row in rows[list(names)].tolist()]
    here = [row for row in here if row["op"] == op]
    good = [row for row in here if row["outcome"] == OK]
    starts = [row["submitted_ns"] for row in good]
    span = max(row["completed_ns"] for row in good) - min(starts) if good else None
    return {
        "planned": len(here),
        "operations": len(good),
        "errors": sum(row["outcome"] in (ERROR, CORRUPT) for row in here),
        "corrupt": sum(row["outcome"] == CORRUPT for row in here),
        "bytes": sum(row["length_bytes"] for row in good),
        "span_ns": span,
        "in_flight_max": (
            max(sum(r["submitted_ns"] <= at < r["completed_ns"] for r in good) for at in starts)
            if span
            else None
        ),
        "latency": [row["completed_ns"] - row["submitted_ns"] for row in good],
        "response": [row["completed_ns"] - row["due_ns"] for row in good],
        "lateness": [row["submitted_ns"] - row["due_ns"] for row in good],
        "latency_per_mib": [
            int((row["completed_ns"] - row["submitted_ns"]) * (2**20 / row["length_bytes"]))
            for row in good
            if op != DELETE and row["length_bytes"]
        ],
    }


def check(figures: Figures, expected: dict[str, Any]) -> None:
    """Compare figures with those by hand."""
    for name, value in expected.items():
        found = getattr(figures, name)
        if not isinstance(value, list):
            assert found == value, name
        elif found is not None:
            assert (found.count, found.max_ns) == (len(value), max(value, default=None)), name
            assert found.mean_ns == (sum(value) / len(value) if value else None), name
            for percentile, part in QUANTILES.items():
                assert getattr(found, f"{percentile}_ns") == nearest(value, part), name


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(operations(), st.integers(1, 4), st.integers(0, 2**32))
def test_live_ranks_import_and_hand_agree(tmp_path: Path, rows: Any, ranks: int, seed: int) -> None:
    live = counted(rows, tiers())
    figures = live.figures()
    for found in figures:
        check(found, by_hand(rows, OPS_NAMES.index(found.op)))
        assert (found.response is None) == (found.lateness is None) == (not live.is_open_loop)

    # An import has no due times, and does not say what deletes freed.
    asked_bytes = counted_bytes(rows)
    closed = rows.copy()
    closed["due_ns"] = -1
    imported = summary_of_ops(write_ops(tmp_path / "ops.parquet", closed, asked_bytes), "test")
    assert imported.figures == [
        msgspec.structs.replace(found, bytes=None if found.op == "delete" else found.bytes)
        for found in counted(closed, tiers()).figures()
    ]

    # Each rank has a clock of its own.
    rank_of = np.random.default_rng(seed).integers(0, ranks, len(rows))
    parts = []
    for number in range(ranks):
        is_own = rank_of == number
        own = np.ascontiguousarray(rows[is_own])
        own_figures = counted(own, tiers()).figures()
        folder = tmp_path / f"rank-{number}"
        parts.append(rank(folder, number, own, asked_bytes[is_own], own_figures))
    ranked = record_ranks(parts, NAMES, Criteria())
    assert ranked.is_exact
    assert merge_figures(parts, ranked.recorder) == figures
    facts = RunFacts(verdict="", wall_ns=10 * S)
    whole, together = live.summary(facts), ranked.recorder.summary(facts)
    for name in ("operations", "errors", "not_reached", "measured_from_ns", "in_flight_mean"):
        assert getattr(together, name) == getattr(whole, name), name
    if live.is_open_loop:
        every = range(OPS_A_PLACE)
        assert ranked.recorder.delivery(every)[1:] == live.delivery(every)[1:]
        of_all = [recorder.distribution(LATENESS) for recorder in (live, ranked.recorder)]
        assert of_all[0] == of_all[1]


def counted_bytes(rows: Any) -> Any:
    """Return what each row asks of a drive that pads to 4 KiB; -1 for a delete."""
    end = rows["offset_bytes"] + rows["length_bytes"]
    asked = -(-end // 4096) * 4096 - rows["offset_bytes"] // 4096 * 4096
    return np.where(rows["op"] == DELETE, -1, np.where(rows["length_bytes"] == 0, 0, asked))


def test_figures_worked_by_hand(tmp_path: Path) -> None:
    # Three reads of 1,000 bytes: 0 to 2 s, 1 to 3 s, 3 to 4 s; the fourth failed.
    rows = rows_of(
        4,
        submitted_ns=np.array([0, 1, 3, 3]) * S,
        completed_ns=np.array([2 * S, 3 * S, 4 * S, -1]),
        outcome=np.array([OK, OK, OK, ERROR]),
    )
    path = write_ops(tmp_path / "ops.parquet", rows, np.full(4, 4096))
    (read,) = summary_of_ops(path, "test").figures
    assert (read.planned, read.operations, read.errors, read.corrupt) == (4, 3, 1, 0)
    assert (read.bytes, read.io_bytes, read.span_ns) == (3000, 3 * 4096, 4 * S)
    assert (read.bandwidth_bytes_per_s, read.operations_per_s) == (750.0, 0.75)
    assert (read.in_flight_mean, read.in_flight_max) == (1.25, 2)
    assert (read.latency.count, read.latency.mean_ns, read.latency.p50_ns) == (3, 5 * S / 3, 2 * S)
    assert (read.latency.max_ns, read.latency.p95_ns, read.response) == (2 * S, None, None)


def test_rows_of_ranks_come_in_the_order_of_one_clock(tmp_path: Path) -> None:
    files = []
    for number, late_s in enumerate((0, 2)):
        starts = np.arange(5) * S + late_s * S
        rows = rows_of(5, submitted_ns=starts, completed_ns=starts + S // 2, outcome=np.zeros(5))
        path = tmp_path / f"{number}.parquet"
        files.append(
            OpsFile(write_ops(path, rows, np.full(5, 4096), late_s * S), late_ns=late_s * S)
        )
    parts = list(read_in_time(files, is_open_loop=False))
    submitted = np.concatenate([part.ops_rows.rows["submitted_ns"] for part in parts])
    of_file = np.concatenate([part.file for part in parts])
    assert (submitted // S).tolist() == [0, 1, 2, 2, 3, 3, 4, 4, 5, 6]
    assert of_file.tolist() == [0, 0, 0, 1, 0, 1, 0, 1, 1, 1]
    rows = np.concatenate([part.ops_rows.rows["trace_row"] for part in parts])
    assert rows.tolist() == list(range(10))


def test_many_operations_come_from_a_histogram(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops_table, "EXACT_OPERATIONS", 999)
    service = np.arange(1000) * 1000 + 10**6
    rows = rows_of(
        1000,
        submitted_ns=np.arange(1000) * S,
        completed_ns=np.arange(1000) * S + service,
        outcome=OK,
    )
    (read,) = record_ops(
        write_ops(tmp_path / "o.parquet", rows, np.full(1000, 4096))
    ).recorder.figures()
    assert read.latency.percentiles_within == WITHIN
    assert read.latency.max_ns == service.max()
    assert read.latency.p99_ns == pytest.approx(np.sort(service)[989], rel=WITHIN)


def test_python_has_the_constants_of_recorder_h() -> None:
    expected = {
        "SUB_BITS": distribution.SUB_BITS,
        **{name: getattr(recorder, name) for name in ("SIZE_CLASSES", "COARSE_BITS")},
        **{
            name: getattr(recorder, name) for name in ("SERVICE", "PER_MIB", "RESPONSE", "LATENESS")
        },
        **{name: getattr(recorder, name) for name in ("OPEN_TIMES", "CLOSED_TIMES")},
        **{name: getattr(native, name) for name in ("READ", "WRITE", "DELETE", "OK", "SHORT")},
        "OPS": native.OPS_A_PLACE,
        "FAILED": native.ERROR,
    }
    assert expected == {name: native.RECORDER.constants[name] for name in expected}


def test_a_row_on_a_tier_that_is_not_there_is_refused(tmp_path: Path) -> None:
    rows = rows_of(2, submitted_ns=0, completed_ns=1, outcome=OK)
    rows["tier"][1] = len(NAMES)
    path = write_ops(tmp_path / "ops.parquet", rows, np.full(2, 4096))
    with pytest.raises(TraceError):
        record_ops(path)
