"""What a plan says a row waits for, what must be populated, how much lies in a tier, where a limit cuts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from chains import chains_of, unmet_of
from conftest import write_trace

from kvreplay.plan.window import TraceWindow, compile_window
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.limit import Limit, parse_limit
from kvtrace.core.schema import TRACE
from kvtrace.core.tables import open_table

if TYPE_CHECKING:
    from pathlib import Path

GPU, CPU, NVME = 0, 1, 2


def compiled(path: Path, rows: list[Any], alignments: dict[int, int], limit: str | None = None) -> TraceWindow:
    trace = write_trace(path / "t.parquet", rows)
    return compile_window(open_table(trace, TRACE), trace, alignments, parse_limit(limit))


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
) -> Any:
    return (ts, op, tier, "load", obj, offset, length, request, stage, 0)


def test_a_stage_waits_for_the_nearest_stage_that_is_replayed(tmp_path: Path) -> None:
    rows = [
        row("read", NVME, 0, request=7, stage=0),
        row("read", GPU, 1, request=7, stage=1),
        row("write", NVME, 2, request=7, stage=2),
        row("write", NVME, 3, request=8, stage=5),
    ]
    plan = compiled(tmp_path, rows, {NVME: 4096}).plan
    assert plan.row.tolist() == [0, 2, 3]
    assert unmet_of(plan) == [0, 1, 0]


def test_a_demotion_keeps_its_order_across_tiers_and_reads_of_an_object_share_a_group(tmp_path: Path) -> None:
    rows = [
        row("write", CPU, 5),
        row("read", CPU, 5),
        row("read", CPU, 5),
        row("write", NVME, 5),
        row("delete", CPU, 5),
    ]
    plan = compiled(tmp_path, rows, {CPU: 1, NVME: 4096}).plan
    assert chains_of(plan.object_links.tolist()) == [[[0], [1, 2], [3], [4]]]
    assert unmet_of(plan) == [0, 1, 1, 1, 1]


def test_versions_number_the_writes_of_an_object_over_all_tiers(tmp_path: Path) -> None:
    rows = [
        row("write", CPU, 1),
        row("write", CPU, 0),
        row("write", NVME, 1),
        row("read", NVME, 1),
        row("write", CPU, 1),
    ]
    assert compiled(tmp_path, rows, {CPU: 1, NVME: 4096}).plan.version.tolist() == [1, 1, 2, 0, 3]


def test_what_is_read_before_it_is_written_is_populated_to_its_longest_read(tmp_path: Path) -> None:
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


def test_the_peak_counts_live_bytes_padded_with_overwrites_once_and_deletes_taken_off(tmp_path: Path) -> None:
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


def test_a_delete_of_what_was_never_there_is_left_out_and_counted(tmp_path: Path) -> None:
    window = compiled(tmp_path, [row("delete", NVME, 9), row("write", NVME, 1), row("delete", NVME, 1)], {NVME: 4096})
    assert window.absent_deletes == 1
    assert window.plan.row.tolist() == [1, 2]


def test_reading_after_the_delete_names_the_row(tmp_path: Path) -> None:
    rows = [row("write", NVME, 1), row("delete", NVME, 1), row("write", NVME, 2), row("read", NVME, 1)]
    with pytest.raises(TraceError, match=r"row 3: reads object 1 after it was deleted.*kvtrace validate"):
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
def test_a_row_that_cannot_be_replayed_is_named(tmp_path: Path, rows: list[Any], message: str) -> None:
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
        # Bytes count reads and writes on targeted tiers: rows 0 and 2 are 4096 each, the delete is nothing.
        ("8KiB", 4, {GPU: 1}),
        ("8191B", 2, {GPU: 1}),
        ("12KiB", 5, {GPU: 1}),
        ("4095b", 0, {}),
    ],
)
def test_a_limit_admits_the_prefix_that_fits(tmp_path: Path, limit: str, rows: int, skipped: dict[int, int]) -> None:
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


def test_a_planned_row_and_what_is_measured_of_it_stay_under_70_bytes(tmp_path: Path) -> None:
    rows = [row("read" if i % 3 else "write", NVME, i % 50, request=i // 4, stage=i % 4) for i in range(1000)]
    plan = compiled(tmp_path, rows, {NVME: 4096}).plan
    measured = 8 + 8 + 1
    assert len(plan) == 1000
    assert plan.nbytes / len(plan) + measured <= 70
    assert plan.row.dtype == np.int64
