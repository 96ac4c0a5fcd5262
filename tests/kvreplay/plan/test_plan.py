"""What rows of a plan say, what must be populated, how much lies in a tier, where a limit cuts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from conftest import write_trace
from followed import trace_residency

from kvreplay.plan.pacing import Pacer
from kvreplay.plan.row_ring import NONE, NOT_DONE, SKIPPED
from kvreplay.plan.window import TraceWindow, compile_window, populated_rows
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.limit import Limit, parse_limit
from kvtrace.core.schema import MOST, TRACE
from kvtrace.core.tables import open_table

if TYPE_CHECKING:
    from pathlib import Path

GPU, CPU, NVME = 0, 1, 2


def compiled(
    path: Path, rows: list[Any], alignments: dict[int, int], limit: str | None = None
) -> TraceWindow:
    trace = write_trace(path / "t.parquet", rows)
    return compile_window(open_table(trace, TRACE), trace, alignments, parse_limit(limit))


def laid(window: TraceWindow, **options: Any) -> Any:
    rows = window.loader.begin(**options)
    assert window.loader.load() == window.planned_rows == len(rows)
    return rows.all


def row(
    op: str,
    tier: int,
    obj: int,
    length: int = 4096,
    *,
    request: int | None = None,
    stage: int | None = None,
    ts: int = 0,
    offset: int = 0,
    phase: str = "load",
) -> Any:
    return (ts, op, tier, phase, obj, offset, length, request, stage, 0)


@pytest.mark.filterwarnings("error")
def test_the_slowest_speeds_are_due_at_the_end_of_time() -> None:
    """NumPy's RuntimeWarning of 5e9 / 1e-300 went to the terminal."""
    assert Pacer(1e-300).due_ns(np.array([0, 5 * 10**9])).tolist() == [0, MOST]


def test_rows_say_what_the_trace_says_and_that_nothing_was_done(tmp_path: Path) -> None:
    rows = [
        row("read", GPU, 1, request=7, stage=1),
        row("read", NVME, 3, 700, request=7, stage=2, ts=10, offset=50, phase="restore"),
        row("write", NVME, 2, ts=30, stage=4),
        row("write", NVME, 2, ts=31, request=9),
    ]
    window = compiled(tmp_path, rows, {NVME: 4096})
    first, second, third = laid(window, pacer=Pacer(2.0))
    said = (
        "trace_row",
        "due_ns",
        "offset_bytes",
        "length_bytes",
        "request",
        "stage",
        "object_id",
        "op",
        "tier",
        "phase",
        "is_bulk",
    )
    assert [first[name].item() for name in said] == [1, 5, 50, 700, 7, 2, 3, 0, NVME, 11, True]
    # A stage of no request is none.
    assert [second[name].item() for name in said] == [
        2,
        15,
        0,
        4096,
        NONE,
        NONE,
        2,
        1,
        NVME,
        1,
        False,
    ]
    assert (third["request"], third["stage"], third["due_ns"]) == (9, NONE, 15)
    for of in (first, second, third):
        assert (of["submitted_ns"], of["completed_ns"], of["outcome"]) == (
            NOT_DONE,
            NOT_DONE,
            SKIPPED,
        )
        assert (of["stream"], of["ready_ns"], of["retries"], of["unmet"]) == (NONE, 0, 0, 0)
        assert of["group"].tolist() == of["waits_with"].tolist() == [NONE, NONE]
        assert not of["is_journaled"]
        assert not of["is_ended"]
    assert laid(window)["due_ns"].tolist() == [NONE] * 3
    assert (window.facts.is_bulk, window.facts.objects) == (True, 4)
    assert (window.facts.last_row, window.facts.last_ns) == (3, 31)


def test_the_last_stage_that_there_may_be_does_not_fall(tmp_path: Path) -> None:
    last = 2**31 - 1
    rows = [
        row("write", NVME, n, request=1, stage=stage)
        for n, stage in enumerate([last, last, last - 1])
    ]
    assert compiled(tmp_path, rows[:2], {NVME: 1}).planned_rows == 2
    with pytest.raises(TraceError, match=f"row 2, column stage: {last - 1}: request 1"):
        compiled(tmp_path, rows, {NVME: 1})


def test_rows_are_counted_by_tier_and_operation(tmp_path: Path) -> None:
    rows = [
        row("write", CPU, 0, 10),
        row("write", NVME, 1, 100, offset=50),
        row("write", NVME, 1, 3),
    ]
    kinds = compiled(tmp_path, rows, {CPU: 1, NVME: 4096}).facts.kinds
    assert kinds.tolist() == [
        [(0, 0, 0)] * 3,
        [(0, 0, 0), (1, 10, 10), (0, 0, 0)],
        [(0, 0, 0), (2, 103, 150), (0, 0, 0)],
    ]


def test_a_write_is_a_new_version_unless_it_copies_a_tier(
    tmp_path: Path,
) -> None:
    rows = [
        row("write", CPU, 1, phase="prefill"),
        row("write", NVME, 1, phase="demote"),
        row("write", NVME, 2, phase="demote"),
        row("read", CPU, 3),
        row("write", NVME, 3, phase="store"),
        row("write", NVME, 3, phase="store"),
        row("write", CPU, 1, phase="promote"),
        row("write", CPU, 1, phase="decode"),
        row("delete", CPU, 3),
        row("delete", NVME, 3),
        row("write", NVME, 3, phase="store"),
    ]
    # Of object 3 the first copy brings what was populated; the next one is not of another tier.
    window = compiled(tmp_path, rows, {CPU: 1, NVME: 4096})
    assert laid(window)["version"].tolist() == [1, 1, 3, 0, 0, 6, 1, 8, 0, 0, 11]


def test_a_ring_takes_rows_as_others_are_given_back(tmp_path: Path) -> None:
    window = compiled(tmp_path, [row("write", NVME, n, n + 1) for n in range(3000)], {NVME: 1})
    loader = window.loader
    rows = loader.begin(window=1024)
    assert (loader.load(10), loader.laid, loader.is_whole) == (10, 10, False)
    assert loader.load() == loader.load() == 1024
    rows.struct.given = 500
    assert loader.load() == 1524
    assert rows.within(1200, 1524)["length_bytes"].tolist() == list(range(1201, 1525))
    rows.struct.given = 1524
    assert loader.load(2000) == 2000
    rows.struct.given = 2000
    assert (loader.load(), loader.is_whole) == (3000, True)
    assert loader.held_bytes > rows.ring.nbytes
    assert len(loader.begin()) == 3000
    assert loader.load() == 3000
    loader.close()
    with pytest.raises(ValueError, match="not begun"):
        loader.load()


def test_a_long_trace_is_read_twice_a_short_one_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = write_trace(tmp_path / "t.parquet", [row("write", NVME, n) for n in range(100)])
    for most, times in ((100, 1), (99, 3)):
        monkeypatch.setattr("kvreplay.plan.window.WINDOW_ROWS", most)
        reader, read = open_table(trace, TRACE), []
        batches = reader.batches
        reader.batches = lambda names, of=batches, seen=read: seen.append(names) or of(names)
        window = compile_window(reader, trace, {NVME: 4096}, Limit())
        for _ in range(2):
            assert laid(window)["object_id"].tolist() == list(range(100))
        assert len(read) == times


def test_populated_objects_hold_the_content_before_the_run(tmp_path: Path) -> None:
    rows = [
        row("read", NVME, 3, 100),
        row("read", CPU, 9, 50),
        row("write", NVME, 4),
        row("read", NVME, 7, 10),
    ]
    found = compiled(tmp_path, rows, {CPU: 1, NVME: 4096}).residency
    names = (
        "tier",
        "object_id",
        "length_bytes",
        "op",
        "version",
        "offset_bytes",
        "request",
        "due_ns",
    )
    every = [tuple(of[name].item() for name in names) for of in populated_rows(found).all]
    ends = (1, 0, 0, NONE, NONE)
    assert every == [(CPU, 9, 50, *ends), (NVME, 3, 100, *ends), (NVME, 7, 10, *ends)]
    some = populated_rows(found, found.populate_object == 3)
    assert some.all["object_id"].tolist() == [3]
    assert some.struct.laid == len(some) == 1


def test_what_was_done_already_need_not_make_sense(tmp_path: Path) -> None:
    rows = [
        row("delete", NVME, 9),
        row("write", NVME, 1),
        row("delete", NVME, 1),
        row("read", NVME, 1),
    ]
    trace = write_trace(tmp_path / "t.parquet", rows)
    window = compile_window(open_table(trace, TRACE), trace, {NVME: 1}, Limit(), is_done=True)
    assert (laid(window)["trace_row"].tolist(), window.residency.absent_deletes) == (
        [0, 1, 2, 3],
        0,
    )


def test_reads_before_a_write_are_populated_to_the_longest(tmp_path: Path) -> None:
    rows = [
        row("read", NVME, 3, 100),
        row("read", NVME, 3, 9000, offset=1000),
        row("write", NVME, 3, 4096),
        row("write", NVME, 4),
        row("read", NVME, 4),
        row("read", CPU, 4, 50),
    ]
    found = compiled(tmp_path, rows, {CPU: 1, NVME: 4096}).residency
    triples = zip(found.populate_tier, found.populate_object, found.populate_bytes, strict=True)
    assert sorted(tuple(map(int, t)) for t in triples) == [(CPU, 4, 50), (NVME, 3, 10_000)]
    # 10,000 bytes are three blocks of 4096, object 4 is one.
    assert found.peak_bytes == [0, 50, 4 * 4096]


def test_the_peak_is_of_live_padded_bytes_less_deletes(
    tmp_path: Path,
) -> None:
    rows = [
        row("write", NVME, 0, 4097),
        row("write", NVME, 1, 10),
        row("write", NVME, 0, 100),
        row("delete", NVME, 0),
        row("write", NVME, 2, 1),
        row("write", NVME, 2, 1, offset=8192),
    ]
    # 2 + 1 blocks, none more for the overwrite, minus 2, plus 1, then grown to 3: 4 at the end.
    assert compiled(tmp_path, rows, {NVME: 4096}).residency.peak_bytes[NVME] == 4 * 4096


@pytest.mark.parametrize("op", ["read", "write"])
def test_more_than_any_tier_holds_is_that(tmp_path: Path, op: str) -> None:
    # Together 2^63 bytes and more, which 64 bits hold as a negative number.
    rows = [row(op, NVME, obj, offset=(1 << 50) - 4096) for obj in range(8200)]
    residency = compiled(tmp_path, rows, {NVME: 4096}).residency
    assert (residency.peak_bytes[NVME], residency.drive_peak_bytes[NVME]) == (1 << 61, [1 << 61])


def test_a_delete_of_an_absent_object_is_left_out_and_counted(tmp_path: Path) -> None:
    window = compiled(
        tmp_path,
        [row("delete", NVME, 9), row("write", NVME, 1), row("delete", NVME, 1)],
        {NVME: 4096},
    )
    assert window.residency.absent_deletes == 1
    assert laid(window)["trace_row"].tolist() == [1, 2]


def test_reading_after_the_delete_names_the_row(tmp_path: Path) -> None:
    rows = [
        row("write", NVME, 1),
        row("delete", NVME, 1),
        row("write", NVME, 2),
        row("read", NVME, 1),
    ]
    with pytest.raises(TraceError, match=r"row 3: reads object 1.*kvtrace validate"):
        compiled(tmp_path, rows, {NVME: 4096})


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row("read", 3, 0)], "row 0, column tier: 3"),
        ([row("write", NVME, 0), row("read", NVME, -1)], "row 1, column object_id: -1"),
        ([row("read", NVME, 0, -5)], "row 0, column length_bytes: -5"),
        ([row("read", NVME, 0, 2**62)], "row 0, column length_bytes: 4611686018427387904"),
        ([row("read", NVME, 0, offset=-1)], "row 0, column offset_bytes: -1"),
        ([row("read", NVME, 0, ts=5), row("read", NVME, 0, ts=4)], "row 1, column ts_ns: 4"),
        (
            [row("read", NVME, 0, request=1, stage=2), row("read", NVME, 1, request=1, stage=1)],
            "row 1, column stage: 1",
        ),
    ],
)
def test_a_row_that_cannot_be_replayed_is_named(
    tmp_path: Path, rows: list[Any], message: str
) -> None:
    with pytest.raises(TraceError) as caught:
        compiled(tmp_path, rows, {NVME: 4096})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("limit", "rows", "skipped"),
    [
        ("3", 3, {GPU: 1}),
        ("2rows", 2, {GPU: 1}),
        ("20ns", 2, {GPU: 1}),
        ("21ns", 3, {GPU: 1}),
        ("1s", 5, {GPU: 1}),
        # Bytes count reads and writes on targeted tiers: rows 0 and 2 are 4096 each, the delete is
        # nothing.
        ("8KiB", 4, {GPU: 1}),
        ("8191B", 2, {GPU: 1}),
        ("12KiB", 5, {GPU: 1}),
        ("4095b", 0, {}),
    ],
)
def test_a_limit_admits_the_prefix_that_fits(
    tmp_path: Path, limit: str, rows: int, skipped: dict[int, int]
) -> None:
    trace = [
        row("write", NVME, 0, ts=0),
        row("read", GPU, 0, ts=10),
        row("write", NVME, 1, ts=20),
        row("delete", NVME, 0, ts=30),
        row("write", NVME, 2, ts=40),
    ]
    window = compiled(tmp_path, trace, {NVME: 4096}, limit)
    assert (window.rows, window.skipped_rows, window.is_whole) == (rows, skipped, rows == 5)


@pytest.mark.parametrize("text", ["5m", "0", "-3", "1.5rows", "ten", "3parsec"])
def test_a_limit_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_limit(text)


def test_limits_know_their_unit() -> None:
    assert parse_limit("10000") == Limit(rows=10_000)
    assert parse_limit("5min") == Limit(span_ns=300 * 10**9)
    assert parse_limit("2GiB") == Limit(moved_bytes=2 << 30)
    assert parse_limit(None) == Limit()


def test_unnamed_objects_and_too_large_ids_are_refused(
    tmp_path: Path,
) -> None:
    trace = write_trace(tmp_path / "t.parquet", [row("write", NVME, 1), row("write", NVME, 2)])
    with pytest.raises(TraceError, match="object 2"):
        compile_window(open_table(trace, TRACE), trace, {NVME: 1}, Limit(), {NVME: ([0, 1], 2)})
    none = np.zeros(2, np.int64)
    with pytest.raises(TraceError, match=r"row 1, column object_id: 2147483647:.*2147483646"):
        trace_residency(none, none, np.array([2**31 - 2, 2**31 - 1]), none, [1])


def test_a_trace_that_lost_rows_between_the_passes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = write_trace(tmp_path / "t.parquet", [row("write", NVME, n) for n in range(100)])
    monkeypatch.setattr("kvreplay.plan.window.WINDOW_ROWS", 9)
    reader = open_table(trace, TRACE)
    window = compile_window(reader, trace, {NVME: 4096}, Limit())
    batches = reader.batches
    reader.batches = lambda names: (batch.slice(0, 50) for batch in batches(names))
    window.loader.begin()
    with pytest.raises(TraceError, match="fewer rows"):
        window.loader.load()
