"""A trace's jobs beside a replay of it.

The same window, the same disk, block requests on both sides.
"""

from __future__ import annotations

import json
import os

import msgspec
import pyarrow.parquet as pq
import pytest
from blocks import write_blocks
from conftest import run_cli
from kvdistill_rows import MS, distil_rows, io, write_hand, write_jobs
from phrases import Saying, shows

from kvdistill.jobs import check
from kvdistill.jobs.check import replayed_requests
from kvdistill.jobs.closeness import (
    CheckedRun,
    ObservedRun,
    compare,
    job_figures,
    requested_stream,
)
from kvdistill.jobs.fio_replay import split_ios
from kvdistill.jobs.fio_run import direct_requests, disk_of
from kvdistill.jobs.job import FioMode, JobOptions
from kvdistill.jobs.mode_job import make_job
from kvdistill.jobs.reference import CheckStorage, NoReference, write_part
from kvdistill.jobs.verdicts import EXACT
from kvdistill.profile.sources import distil_source
from kvtrace.core.limit import Limit, parse_limit

MIB = 1 << 20


def test_a_part_is_its_tiers_rows_of_the_window_from_0_s_on(tmp_path):
    trace, window = write_hand(tmp_path), Limit(begin_ns=2 * MS, span_ns=38 * MS)
    write_part(trace, distil_source(trace, "nvme", window, tmp_path), tmp_path / "part.parquet")
    rows = pq.read_table(tmp_path / "part.parquet").to_pylist()
    # The tier's first row is at 10 ms: what comes from 12 ms on, up to before 50 ms.
    assert [(row["ts_ns"] // MS, row["op"], row["object_id"]) for row in rows] == [
        (1000, "read", 2), (1008, "read", 1), (1018, "read", 0), (1028, "delete", 0),
    ]  # fmt: skip
    assert {row["tier"] for row in rows} == {2}


def test_who_is_not_root_is_told(tmp_path, monkeypatch):
    part = distil_source(write_hand(tmp_path), "nvme", Limit(), tmp_path)
    trace = tmp_path / "hand.parquet"
    assert replayed_requests(trace, part, tmp_path, CheckStorage(None), MIB, None) == (
        None, Saying("not on a block device"), NoReference.NO_DEVICE,
    )  # fmt: skip
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    seen, why, _missing = replayed_requests(
        trace, part, tmp_path, CheckStorage(tmp_path), MIB, None
    )
    assert seen is None
    assert why.endswith("root")


def at_device(folder, name, rows, **how):
    """Return what a check takes of the requests `rows`."""
    found, why = direct_requests(
        write_blocks(folder / f"{name}.parquet", rows, **how), "vda", folder / name
    )
    assert why is None
    return found


def test_direct_reads_need_no_sync_flag(tmp_path):
    """Direct reads of libaio and io_uring are plain R; their writes are WS."""
    rows = [(0.0, "R", 0, MIB), (1.0, "RS", MIB, MIB), (2.0, "WS", 0, MIB)]
    others = [(3.0, "RA", 0, 4096), (4.0, "RM", 0, 4096), (5.0, "W", 0, 4096)]
    profile = at_device(tmp_path, "flags", [*rows, *others]).profile
    assert (profile.read.ops, profile.write.ops) == (2, 1)
    assert (profile.read.io_bytes, profile.write.io_bytes) == (2 * MIB, MIB)


def test_merged_requests_count_as_the_ios_in_them(tmp_path):
    """The block layer merged three reads of 1 MiB, and two writes of 1 and 0.5 MiB."""
    rows = [(0.0, "R", 8 * MIB, 3 * MIB), (1.0, "WS", 0, 3 * MIB // 2), (2.0, "R", 0, MIB)]
    path = write_blocks(tmp_path / "merged.parquet", rows)
    found, _ = direct_requests(path, "vda", tmp_path / "scratch", largest_io_bytes=MIB)
    assert (found.profile.read.ops, found.profile.write.ops) == (4, 2)
    sizes = {size.io_bytes: size.ops for size in found.profile.write.sizes}
    assert sizes == {MIB: 1, MIB // 2: 1}
    sectors = pq.read_table(path).column("sector").to_pylist()
    assert sectors == [8 * 2048, 9 * 2048, 10 * 2048, 0, 2048, 0]


def checked(folder, part, reference):
    """Return the check of an exact replay of `part` beside `reference`, what is asked, and fio's
    log, which is that.
    """
    request = JobOptions(modes=[FioMode.REPLAY])
    job = make_job(FioMode.REPLAY, part, request)
    asked = requested_stream(split_ios(part.ios, MIB), by_instant=True)
    run = CheckedRun(
        FioMode.REPLAY, part, "all", part.profile.span_ns, folder, request, job, reference
    )
    return run, asked, job_figures("replay", asked, asked, is_replay=True, mean_depth=None)


def test_both_sides_are_block_requests_where_a_replay_was_seen(tmp_path):
    """fio's side equals what the trace asks, but at the device each read comes in two.

    Only the replay tells.
    """
    part = distil_rows(tmp_path, [io(10 * i, "read", i, MIB) for i in range(40)])
    whole = [(10.0 * i, "RS", i * MIB, MIB) for i in range(40)]
    halves = [
        (ms + k, "RS", at + k * MIB // 2, MIB // 2) for ms, _rw, at, _bytes in whole for k in (0, 1)
    ]
    noise = [(5.0, "RM", 0, 4096), (7.0, "W", 0, 4096)]
    sides = {}
    for name, rows in (("replay", whole), ("fio", halves)):
        sides[name] = at_device(tmp_path, name, sorted([*rows, *noise]))
    run, asked, logged = checked(tmp_path, part, sides["replay"])

    pair = compare(run, ObservedRun({}, sides["fio"], None), asked, logged, EXACT)
    assert (pair.source.side, pair.fio.side) == ("device", "device")
    assert (pair.source.ios, pair.fio.ios) == (
        40,
        80,
    ), "metadata and buffered writes are no I/O of either"
    assert pair.fio.size_tv == 1
    # When its operations came fio's log says: at the device they are several requests.
    assert (pair.source.arrivals, pair.fio.arrivals, pair.fio.gap_ks) == (40, 40, 0)
    passes = {v.name: v.passes for v in pair.verdicts}
    assert (passes["block-size mismatch"], passes["same I/Os"]) == (False, True)
    assert "seen at the device" not in passes

    same = compare(run, ObservedRun({}, sides["replay"], None), asked, logged, EXACT)
    assert (same.fio.size_tv, same.fio.gap_ks) == (0, 0)
    assert not [v.name for v in same.verdicts if v.passes is False]

    unseen = compare(run, ObservedRun({}, None, "no probes"), asked, logged, EXACT)
    assert (unseen.source.side, unseen.fio.side) == ("asked", "fio")
    assert msgspec.to_builtins(unseen.verdicts)[-1]["name"] == "seen at the device"


def test_what_comes_at_one_instant_has_no_rate(tmp_path):
    """40 reads due at once.

    The replay took 390 ms for them, fio 195; neither is the source's rate.
    """
    part = distil_rows(tmp_path, [io(7, "read", i, MIB) for i in range(40)])
    sides = {}
    for name, ms in (("replay", 10.0), ("fio", 5.0)):
        rows = [(ms * i, "RS", i * MIB, MIB) for i in range(40)]
        sides[name] = at_device(tmp_path, name, rows)
    run, asked, logged = checked(tmp_path, part, sides["replay"])
    pair = compare(run, ObservedRun({}, sides["fio"], None), asked, logged, EXACT)
    assert {v.name: (v.value, v.passes) for v in pair.verdicts if "a second" in v.name} == {
        "I/Os a second": (None, None), "bytes a second": (None, None),
    }  # fmt: skip


def test_a_log_that_has_more_in_flight_says_why(tmp_path):
    """20 pairs of reads.

    In the replay the second waits for the first; of a log both come at once, and take longer.
    """
    part = distil_rows(tmp_path, [io(10 * (i // 2), "read", i, MIB) for i in range(40)])
    sides = {}
    for name, wait_ms, took_ns in (("replay", 0.1, MS // 10), ("fio", 0.0, MS // 5)):
        rows = [(10.0 * (i // 2) + i % 2 * wait_ms, "RS", i * MIB, MIB) for i in range(40)]
        sides[name] = at_device(tmp_path, name, rows, took_ns=took_ns)
    run, asked, logged = checked(tmp_path, part, sides["replay"])
    for fio, passes, is_said in (("fio", False, True), ("replay", True, False)):
        pair = compare(run, ObservedRun({}, sides[fio], None), asked, logged, EXACT)
        (depth,) = (v for v in pair.verdicts if v.name == "queue depth")
        assert (depth.passes, "kvdistill fio RUN" in (depth.reason or "")) == (passes, is_said)


def test_a_job_of_few_requests_counts(tmp_path):
    """Each section of a job is a process of its own: one of two reads is no neighbour's noise."""
    rows = [(10.0 * i, "WS" if i < 98 else "RS", i * MIB, MIB) for i in range(100)]
    device = at_device(tmp_path, "blocks", rows, pids=[1] * 98 + [2] * 2)
    assert (device.profile.read.ops, device.profile.write.ops) == (2, 98)


def test_requests_count_as_the_block_layer_issued_them(tmp_path):
    """20 operations of 2.5 MiB, issued in parts of 1, 1 and .5 MiB by both.

    The layer merged those of the replay to 1.25 and 1.25 MiB: a third fewer requests, of other
    sizes. Counted in parts of 1 MiB, they would be 1, .25, 1 and .25 MiB: a third more.
    """
    length = 5 * MIB // 2
    half = length // 2
    part = distil_rows(tmp_path, [io(10 * i, "write", i, length) for i in range(20)])
    merged = [(10.0 * i, "WS", i * length + k * half, half) for i in range(20) for k in (0, 1)]
    parts = [
        (10.0 * i, "WS", i * length + begin, size)
        for i in range(20)
        for begin, size in ((0, MIB), (MIB, MIB), (2 * MIB, MIB // 2))
    ]
    replay = at_device(tmp_path, "merged", merged)
    fio = at_device(tmp_path, "apart", parts)
    run, asked, logged = checked(tmp_path, part, replay)
    pair = compare(run, ObservedRun({}, fio, None), asked, logged, EXACT)
    assert (pair.source.ios, pair.fio.ios, pair.fio.size_tv) == (40, 60, 1)
    verdict = {v.name: v for v in pair.verdicts}["I/Os a second"]
    assert (verdict.passes, verdict.value) == (False, pytest.approx(0.5))


def test_a_file_inside_a_device_block_keeps_its_miss_ratios(tmp_path):
    """64 KiB one after another.

    Two of them share a block of 128 KiB, on the device each lies in two.
    """
    small, shift = 64 << 10, 76 << 10
    part = distil_rows(tmp_path, [io(10 * i, "write", i, small) for i in range(40)])
    rows = [(10.0 * i, "WS", i * small + shift, small) for i in range(40)]
    device = at_device(tmp_path, "blocks", rows)
    run, asked, logged = checked(tmp_path, part, device)
    assert asked.blocks.hit_ratios.tolist() == [0.5] * len(asked.blocks.hit_ratios)
    for places in (asked, None):
        pair = compare(run, ObservedRun({}, device, None), asked, logged, EXACT, places)
        assert (pair.fio.mrc_error, pair.fio.hot10_share) == (0, pair.source.hot10_share)


@pytest.mark.full
@pytest.mark.fio
@pytest.mark.bpf
@pytest.mark.root
def test_a_check_replays_the_trace_and_compares_at_the_device():
    from probe_load import place_on_disk

    with place_on_disk() as (folder, _disk):
        trace = write_hand(folder)
        for number in range(3):
            out = folder / f"out{number}"
            done = run_cli(
                "kvdistill", "fio", trace, "--tier", "nvme", "-o", out, "--mode", "replay", "--check",
                "--io-bytes", "4MiB", "--json",
            )  # fmt: skip
            assert sorted(path.name for path in out.iterdir()) == [
                "closeness.json", "prefill.fio", "profile.json", "replay.fio", "replay.iolog",
            ]  # fmt: skip
            if (
                "check invalid" not in done.stdout
            ):  # a disk that is busy with others' I/O makes a replay fall behind
                break
    closeness = json.loads(done.stdout)["closeness"]
    (replay,) = closeness["comparisons"]
    assert replay["source"]["side"] == replay["fio"]["side"] == "device"
    # Five reads and three writes, whole, though scratch files may lie in several stretches of the
    # disk.
    assert 4 <= replay["source"]["ios"] <= 12
    assert replay["source"]["mean_depth"] is not None
    (note,) = (note for note in closeness["notes"] if "kvreplay" in note)
    assert "at the device" in note


@pytest.mark.full
@pytest.mark.bpf
@pytest.mark.root
def test_a_reference_that_fell_behind_is_none():
    from probe_load import place_on_disk

    # 2 GiB within 10 ms: no disk here keeps up.
    rows = [io(10 + i // 13, "write", i, 16 * MIB) for i in range(128)]
    with place_on_disk() as (folder, _disk):
        part = distil_rows(folder, rows)
        storage = CheckStorage(disk_of(folder))
        seen, why, missing = replayed_requests(
            folder / "t.parquet", part, folder, storage, MIB, 256
        )
    assert seen is None
    assert shows(why, "kvreplay")
    assert "FELL BEHIND" in why
    assert missing is NoReference.FELL_BEHIND


@pytest.mark.fio
def test_a_check_without_a_device_compares_only_fios_side(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "disk_of", lambda _place: None)
    wanted = JobOptions(modes=[FioMode.REPLAY], has_check=True, check_ns=10**9)
    closeness = write_jobs(
        write_hand(tmp_path), "nvme", tmp_path / "out", parse_limit(None), wanted
    ).closeness
    assert closeness is not None
    assert closeness.comparisons[0].fio.side == "fio"
    assert shows(closeness.notes, "not on a block device")
