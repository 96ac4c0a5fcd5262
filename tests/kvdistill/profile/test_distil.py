from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from conftest import run_cli, write_trace
from kvdistill_rows import HAND, MS, distil_rows, io, write_hand
from phrases import shows

from kvdistill.jobs.store_jobs import StoreOptions, warp_job
from kvdistill.profile.profile import Concurrency, SizeCount
from kvdistill.profile.sources import distil_source
from kvdistill.report.jobs import profile_chapter
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.limit import Limit, parse_limit

KIB, MIB = 1 << 10, 1 << 20


def test_the_hand_trace_lies_where_first_fit_puts_it(tmp_path):
    found = pq.read_table(distil_rows(tmp_path, HAND).ios).to_pydict()
    assert found["address"] == [
        8 * KIB, 16 * KIB, 0, 16 * KIB, 8 * KIB, -1, 8 * KIB, 8 * KIB, 16 * KIB + MIB,
    ]  # fmt: skip
    # 6000 bytes are two pages; bytes 1000 to 3000 touch the first. What is of whole sectors stays
    # as it is.
    assert found["io_bytes"] == [8192, 3 * MIB, 8192, 3 * MIB, 4096, 0, 4096, 4096, MIB]


def test_what_is_of_whole_sectors_is_not_widened(tmp_path):
    """As a block trace has it; one byte more is of an engine's, which moves whole pages."""
    rows = [io(1, "write", 0, 8192), io(2, "read", 0, 512, offset=1024), io(3, "read", 0, 513, offset=1024),
            io(4, "read", 0, 1536, offset=3072), io(5, "read", 0, 4096, offset=1)]  # fmt: skip
    found = pq.read_table(distil_rows(tmp_path, rows).ios).to_pydict()
    assert list(zip(found["address"], found["io_bytes"], strict=True)) == [
        (0, 8192), (1024, 512), (0, 4096), (3072, 1536), (0, 8192),
    ]  # fmt: skip


def test_the_hand_profile(tmp_path):
    profile = distil_rows(tmp_path, HAND).profile
    assert (profile.start_ns, profile.span_ns) == (10 * MS, 100 * MS)
    assert (profile.read.ops, profile.read.object_bytes) == (5, 8192 + 3 * MIB + 2000 + 4096 + MIB)
    assert profile.read.io_bytes == 8192 + 3 * MIB + 4096 + 4096 + MIB
    assert profile.write.sizes == [SizeCount(4096, 1), SizeCount(8192, 1), SizeCount(3 * MIB, 1)]
    assert (profile.delete_ops, profile.delete_bytes, profile.stray_delete_ops) == (1, 6000, 0)
    assert profile.space.span_bytes == 16 * KIB + 3 * MIB
    assert (profile.space.peak_reserved_bytes, profile.space.peak_live_objects) == (
        16 * KIB + 3 * MIB,
        3,
    )
    assert (profile.space.prior_objects, profile.space.prior_bytes) == (1, 8 * KIB)
    assert profile.concurrency == Concurrency(max_stage_ops=2, mean_stage_ops=8 / 6)
    assert profile.depth is None


def test_csv_gives_the_same_profile(tmp_path):
    parquet = distil_source(
        write_trace(tmp_path / "t.parquet", HAND), "nvme", Limit(), tmp_path
    ).profile
    csv = distil_source(
        write_trace(tmp_path / "t.csv.zst", HAND), "nvme", Limit(), tmp_path
    ).profile
    assert parquet.read == csv.read
    assert parquet.space == csv.space


def test_an_object_that_returns_after_a_delete_gets_a_new_place(tmp_path):
    rows = [io(1, "write", 0, 4096), io(2, "write", 1, 4096), io(3, "delete", 0, 4096), io(4, "write", 2, 8192),
            io(5, "write", 0, 4096)]  # fmt: skip
    found = pq.read_table(distil_rows(tmp_path, rows).ios).to_pydict()
    assert found["address"] == [0, 4096, -1, 8192, 0]


def test_an_object_that_grows_keeps_its_place(tmp_path):
    rows = [io(1, "write", 0, 4096), io(2, "write", 1, 4096), io(3, "write", 0, 4096, offset=4096)]
    found = pq.read_table(distil_rows(tmp_path, rows).ios).to_pydict()
    assert found["address"] == [0, 8192, 4096]


def test_stray_deletes_and_empty_operations_are_counted(tmp_path):
    rows = [io(1, "delete", 7, 4096), io(2, "write", 0, 4096), io(3, "read", 0, 0), io(4, "delete", 0, 4096),
            io(5, "delete", 0, 4096)]  # fmt: skip
    profile = distil_rows(tmp_path, rows).profile
    assert (profile.stray_delete_ops, profile.empty_ops, profile.delete_ops, profile.read.ops) == (
        2,
        1,
        3,
        0,
    )


@pytest.mark.parametrize("first_ms", [0, 1])
def test_deletes_that_come_before_all_else_begin_before_it(tmp_path, first_ms):
    rows = [io(first_ms, "delete", 7, 4096), *[io(5000 + i, "write", i, 4096) for i in range(3)]]
    profile = distil_rows(tmp_path, rows).profile
    assert profile.deletes_start_ns == (first_ms - 5000) * MS
    assert profile.whole_ns == (5002 - first_ms) * MS


def test_shares_of_the_first_blocks_are_not_said_to_be_of_all(tmp_path, monkeypatch):
    # Ten reads of 8 blocks each: of 25 accesses to blocks that are looked at, 24 are those of the
    # first three.
    monkeypatch.setattr("kvdistill.profile.locality.MAX_BLOCK_ACCESSES", 25)
    rows = [io(i, "read", min(i, 3), MIB) for i in range(10)]
    profile = distil_rows(tmp_path, rows).profile
    assert (profile.locality.ops, profile.locality.is_whole) == (3, False)
    labels = [row[0] for row in profile_chapter(profile).tables[1].rows]
    assert shows(labels, "first 3 operations")
    comment = " ".join(warp_job(profile, StoreOptions()).text.replace("#", "").split())
    assert shows(comment, "first 3 operations")
    monkeypatch.undo()
    whole = distil_rows(tmp_path, rows).profile
    assert (whole.locality.ops, whole.locality.is_whole) == (10, True)


def test_no_stages_means_no_concurrency(tmp_path):
    rows = [io(i, "read", i, 4096, request=None, stage=None) for i in range(3)]
    assert distil_rows(tmp_path, rows).profile.concurrency is None


@pytest.mark.parametrize(
    ("limit", "ops"),
    [("3rows", 3), ("3", 3), ("25ms", 5), ("20ms", 4), ("21ms", 5), ("3MiB", 1), ("1GiB", 8)],
)
def test_a_limit_takes_a_part(tmp_path, limit, ops):
    # The tier's rows are due at 10, 10, 12, 20, 30, 40 (delete), 50, 60 and 110 ms.
    profile = distil_rows(tmp_path, HAND, limit).profile
    assert profile.ops == ops
    assert profile.origin.limit


@pytest.mark.parametrize("text", ["0", "0s", "5m", "x", "1.5", "3 parsecs"])
def test_a_limit_that_means_nothing_is_refused(text):
    with pytest.raises(ConfigError):
        parse_limit(text)


def test_a_tier_without_io_is_refused(tmp_path):
    with pytest.raises(TraceError, match="tier 'nvme'"):
        distil_rows(tmp_path, [HAND[0]])
    with pytest.raises(TraceError, match="only deletes"):
        distil_rows(tmp_path, [io(1, "delete", 0, 4096)])
    with pytest.raises(TraceError, match="no reads"):
        distil_rows(tmp_path, [])
    # As of a replay on a null tier.
    with pytest.raises(TraceError, match="no reads"):
        distil_rows(tmp_path, [io(1, "read", 0, 0), io(2, "delete", 0, 0)])
    trace = write_trace(tmp_path / "t.parquet", HAND)
    with pytest.raises(
        TraceError,
        match="tier 'nvme'",
    ):
        distil_source(trace, "nvme", Limit(begin_ns=10**12), tmp_path)


def test_time_that_goes_back_is_refused_by_row(tmp_path):
    with pytest.raises(TraceError, match=r"t\.parquet.*row 1.*ts_ns"):
        distil_rows(tmp_path, [io(2, "read", 0, 4096), io(1, "read", 0, 4096)])


def test_an_unknown_tier_is_refused_with_those_there_are(tmp_path):
    with pytest.raises(ConfigError, match=r"tier 'ssd'.*gpu, cpu, nvme"):
        distil_source(write_hand(tmp_path), "ssd", Limit(), tmp_path)


def test_a_damaged_trace_is_one_line(tmp_path):
    hand_trace = write_hand(tmp_path)
    hand_trace.write_bytes(hand_trace.read_bytes()[:-40])
    done = run_cli(
        "kvdistill", "fio", hand_trace, "--tier", "nvme", "-o", tmp_path / "out", check=False
    )
    assert done.returncode == 3
    assert done.stderr.startswith("kvdistill: error:")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out" / "replay.fio").exists()
