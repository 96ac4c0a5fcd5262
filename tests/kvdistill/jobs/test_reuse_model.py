"""What the drawn job keeps of a profile, and bad input to every writer of fio jobs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from conftest import run_cli, write_trace
from hypothesis import given
from hypothesis import strategies as st
from kvdistill_rows import distil_rows, io
from phrases import shows

from kvdistill.jobs.fio_jobs import make_jobs
from kvdistill.jobs.fio_replay import sample_operations
from kvdistill.jobs.job import FioMode, JobOptions
from kvdistill.profile.locality import block_locality
from kvtrace.core.statistics import bounds, slot_of

BLOCK = 128 * 1024


def cyclic(places, rounds):
    """Write `places` objects of one block, then read them round after round.

    Each reuse is places - 1 blocks away.
    """
    rows = [io(i * 10, "write", i, BLOCK) for i in range(places)]
    rows += [io((places + i) * 10, "read", i % places, BLOCK) for i in range(places * rounds)]
    return rows


def test_the_drawn_job_keeps_mix_sizes_and_reuse(tmp_path):
    profile = distil_rows(tmp_path, cyclic(40, 50)).profile
    drawn, span_bytes = sample_operations(profile, profile.span_ns, 1)
    assert (int(drawn["is_read"].sum()), len(drawn["us"])) == (2000, 2040)
    assert set(drawn["length"].tolist()) == {BLOCK}
    assert profile.locality.reuse_p50_blocks == 39
    # Distances are known to 1/16, and one in fifty operations takes a new place.
    assert block_locality(drawn["offset"], drawn["length"]).reuse_p50_blocks == pytest.approx(
        39, rel=1 / 16
    )
    assert drawn["us"][0] == 1
    assert drawn["us"][-1] == pytest.approx(profile.span_ns / 1000, rel=1e-3)
    assert np.all(np.diff(drawn["us"]) >= 0)
    assert len(np.unique(drawn["offset"])) == 40
    assert span_bytes == 40 * BLOCK


@pytest.mark.parametrize("op", ["read", "write"])
def test_a_short_job_draws_one_of_few_operations_in_hours(tmp_path, op):
    profile = distil_rows(tmp_path, [io(i * 1_200_000, op, i % 2, BLOCK) for i in range(4)]).profile
    drawn, _span_bytes = sample_operations(profile, 300 * 10**9, 1)
    assert drawn["is_read"].tolist() == [op == "read"]
    assert drawn["length"].tolist() == [BLOCK]


def test_a_direction_that_begins_late_has_unknown_reuse(tmp_path, monkeypatch):
    # Of 5 writes and then 20 reads, 5 operations are looked at.
    monkeypatch.setattr("kvdistill.profile.sources.MAX_OPS", 5)
    profile = distil_rows(tmp_path, cyclic(5, 4)).profile
    assert (profile.locality.is_whole, profile.locality.read.first_ops) == (False, 0)
    drawn, _span_bytes = sample_operations(profile, profile.span_ns, 1)
    assert int(drawn["is_read"].sum()) == 20


def test_a_seed_draws_the_same(tmp_path):
    # Each gap is longer than the one before.
    rows = [io(i * i, "write", i % 5, BLOCK) for i in range(40)]
    profile = distil_rows(tmp_path, rows).profile
    one, same, other = (sample_operations(profile, profile.span_ns, seed)[0] for seed in (1, 1, 2))
    assert np.array_equal(one["offset"], same["offset"])
    assert np.array_equal(one["us"], same["us"])
    assert not np.array_equal(one["us"], other["us"])


def test_bursts_close_to_each_other_stay_so(tmp_path):
    """Ten times 30 writes, 5 more 1 ms later, and a pause of 99 ms."""
    rows, places = [], itertools.count()
    for start_ms in range(0, 1000, 100):
        rows += [io(start_ms, "write", next(places), BLOCK) for _ in range(30)]
        rows += [io(start_ms + 1, "write", next(places), BLOCK) for _ in range(5)]
    profile = distil_rows(tmp_path, rows).profile
    for seed in range(5):
        for repeats in (1, 2):
            runtime_ns = repeats * profile.span_ns
            us = sample_operations(profile, runtime_ns, seed)[0]["us"]
            starts, sizes = np.unique(us, return_counts=True)
            assert sizes.tolist() == 10 * repeats * [30, 5]
            # The pause behind the last burst is as long as the mean gap, and times are scaled.
            assert np.diff(starts)[::2] == pytest.approx(1000, rel=0.1)
    # A shorter job has no room for all of them.
    us = sample_operations(profile, profile.span_ns // 2, 1)[0]["us"]
    assert np.unique(us, return_counts=True)[1].sum() == len(rows) // 2


def test_bursts_are_kept_whole(tmp_path):
    """40 single writes, 8 bursts of 24, and one burst of 500 of which 192 are due 1 ns earlier."""
    bursts = [*[1] * 40, *[24] * 8]
    rows, places = [], itertools.count()
    for index, size in enumerate(bursts):
        rows += [io(index * 10.0, "write", next(places), BLOCK) for _ in range(size)]
    end_ms = len(bursts) * 10
    rows += [io(end_ms + 1e-4, "write", next(places), BLOCK) for _ in range(192)]
    rows += [io(end_ms + 1e-4 + 1e-6, "write", next(places), BLOCK) for _ in range(308)]
    profile = distil_rows(tmp_path, rows).profile
    assert profile.arrivals.instants == 49
    mean_burst = (40 + 8 * 24**2 + 500**2) / (40 + 8 * 24 + 500)
    for seed in range(10):
        drawn, _span_bytes = sample_operations(profile, profile.span_ns, seed)
        sizes = np.unique(drawn["us"], return_counts=True)[1]
        assert (len(sizes), sizes.sum()) == (49, len(rows))
        # A slot of the histogram is up to 1/16 wide.
        assert (sizes**2).sum() / sizes.sum() == pytest.approx(mean_burst, rel=1 / 8)


@pytest.mark.parametrize(
    ("bound", "most", "parts"),
    [("MAX_OPS", 42, 1), ("MAX_OPS", 42, 4), ("MAX_SAMPLED_IOS", 168, 4)],
)
def test_the_reuse_job_of_many_operations_is_shorter(tmp_path, monkeypatch, bound, most, parts):
    """A trace of 105 operations, of which 42 may be sampled: the job has 40 % of its time."""
    monkeypatch.setattr(f"kvdistill.jobs.fio_replay.{bound}", most)
    distilled = distil_rows(tmp_path, cyclic(5, 20))
    options = JobOptions(modes=[FioMode.REUSE], io_bytes=BLOCK // parts)
    jobs = make_jobs(distilled, options)
    assert distilled.profile.ops == 105
    log = jobs.jobs[FioMode.REUSE].log
    assert log.read_ios + log.write_ios == 42 * parts
    assert log.last_us == pytest.approx(0.4 * distilled.profile.span_ns / 1000, rel=0.05)
    assert any(note.startswith("reuse.fio runs") for note in jobs.notes)


@given(st.integers(0, 1 << 62))
def test_a_value_lies_in_its_slot(value):
    low, below = bounds(int(slot_of(np.array([value]))[0]))
    assert low <= value < below
    assert below - low <= max(1, low / 16)


BAD = {
    "one direction": [io(i * 10, "read", i % 3, 65536) for i in range(30)],
    "one object": [io(i * 10, "read", 0, 65536) for i in range(30)],
    "one operation": [io(5, "write", 0, 4096)],
    "one instant": [io(5, "read", i, 4096) for i in range(9)],
    "odd sizes": [io(i * 10, "write", i, 1000 + 7 * i) for i in range(30)],
}


@pytest.mark.first(rows=2)
@pytest.mark.parametrize("rows", BAD.values(), ids=BAD.keys())
def test_every_writer_takes_odd_input_or_refuses_in_one_line(tmp_path, rows):
    trace = write_trace(tmp_path / "a trace.parquet", rows)
    for mode in FioMode:
        done = run_cli(
            "kvdistill",
            "fio",
            trace,
            "--tier",
            "nvme",
            "-o",
            tmp_path / "jobs",
            "--force",
            "--mode",
            mode,
            check=False,
        )
        if mode is FioMode.REUSE and len({row[0] for row in rows}) == 1:
            assert (done.returncode, done.stderr.count("\n")) == (2, 1)
            assert "an instant" in done.stderr
            continue
        assert done.returncode == 0, done.stderr
        assert shows((tmp_path / "jobs" / mode.job).read_text(), "nvme … trace.parquet")
        moved = [
            line.split()
            for f in tmp_path.glob(f"jobs/{mode}*.iolog")
            for line in f.read_text().splitlines()
        ]
        sizes = [int(words[3]) for words in moved if words[1:2] and words[1] in ("read", "write")]
        assert len(sizes) == (0 if mode is FioMode.STAT else len(rows))
        assert all(size % 512 == 0 for size in sizes)


def test_an_empty_trace_is_refused_by_every_writer(tmp_path):
    trace = write_trace(tmp_path / "t.parquet", [])
    for mode in FioMode:
        done = run_cli(
            "kvdistill",
            "fio",
            trace,
            "--tier",
            "nvme",
            "-o",
            tmp_path / "j",
            "--force",
            "--mode",
            mode,
            check=False,
        )
        assert (done.returncode, done.stderr.count("\n")) == (3, 1)


@pytest.mark.full
def test_a_million_objects(tmp_path):
    import pyarrow as pa
    from conftest import trace_batch, trace_meta
    from kvdistill_rows import write_logs

    from kvdistill.jobs.fio_replay import split_ios
    from kvdistill.profile.sources import distil_source
    from kvtrace.core.limit import Limit
    from kvtrace.core.schema import TRACE, arrow_schema
    from kvtrace.core.tables import create

    n = 1_000_000
    one = trace_batch([io(0, "write", 0, 4096)])
    columns = {
        name: pa.repeat(one.column(name)[0], n)
        for name in TRACE.names
        if name not in ("op", "phase")
    }
    columns |= {"ts_ns": pa.array(np.arange(n) * 1000), "object_id": pa.array(np.arange(n))}
    for name in ("op", "phase"):
        column = one.column(name)
        indices = pa.array(np.full(n, column.indices[0].as_py(), dtype=np.int8))
        columns[name] = pa.DictionaryArray.from_arrays(indices, column.dictionary)
    with create(tmp_path / "t.parquet", TRACE, trace_meta()) as out:
        out.write(
            pa.RecordBatch.from_arrays(
                [columns[name] for name in TRACE.names], schema=arrow_schema(TRACE)
            )
        )
    distilled = distil_source(tmp_path / "t.parquet", "nvme", Limit(), tmp_path)
    assert distilled.profile.space.span_bytes == n * 4096
    log = write_logs(
        tmp_path,
        "x",
        lambda: split_ios(distilled.ios, 1 << 20),
        JobOptions(target="f", log_version=3),
    )
    assert (log.write_ios, log.last_us, log.max_burst_ios) == (n, n, 1)
