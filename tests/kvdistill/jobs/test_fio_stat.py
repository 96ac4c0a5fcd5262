"""A plain source's job is plain: the lines that its program would have been written with."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest
from blocks import write_blocks
from conftest import run_cli
from kvdistill_rows import MS, bursts, closed, distil_rows, io, stat_job
from phrases import shows
from test_fio_jobs import V, options_of, sections

from kvdistill.jobs.fio_stat import (
    compensated_weights,
    expected_load,
    expected_stat,
    sizes_from_map,
)
from kvdistill.jobs.job import JobOptions
from kvdistill.profile.profile import (
    AddressSpace,
    AddressZone,
    IoStream,
    Law,
    Loop,
    Pacing,
    Places,
    SizeCount,
)
from kvdistill.profile.sources import profile_of, write_ios

if TYPE_CHECKING:
    from kvdistill.profile.profile import Profile

GIB = 1 << 30


def profile_with(tmp_path, **stream) -> Profile:
    """Return a profile whose only stream has `stream`'s parts."""
    base = distil_rows(tmp_path, [io(i * 10, "read", i % 7, 65536) for i in range(100)]).profile
    (found,) = base.streams
    space = msgspec.structs.replace(base.space, span_bytes=4 * GIB)
    changed: IoStream = msgspec.structs.replace(found, **stream)
    return msgspec.structs.replace(base, streams=[changed], space=space)


def places(**changed) -> Places:
    return msgspec.structs.replace(
        Places(
            sequential_share=0, run_ops=None, law=Law.UNIFORM, theta=None, align_bytes=65536, begin_bytes=0,
            span_bytes=4 * GIB,
        ),
        **changed,
    )  # fmt: skip


def test_a_closed_loop_has_a_depth_and_no_rate(tmp_path):
    loop = Loop(pace=Pacing.CLOSED, depth=8, think_ns=20 * MS, think_ops=16)
    job = options_of(
        stat_job(profile_with(tmp_path, loop=loop, places=places()), JobOptions(version=V)), "read"
    )
    assert (job["iodepth"], job["thinktime"], job["thinktime_blocks"]) == ("8", "20000us", "16")
    assert (
        not {"rate", "rate_iops", "random_distribution", "offset", "size", "blockalign"}
        & job.keys()
    )
    assert (job["rw"], job["norandommap"]) == ("randread", "1")


def test_an_even_pace_is_in_operations_despite_split_arrivals(tmp_path):
    """Of 3,000 reads of 1 MiB in 15 s, ten arrived as 1016 and 8 KiB.

    The job asks for 200 whole ones a second.
    """
    sizes = [SizeCount(8192, 10), SizeCount(1016 << 10, 10), SizeCount(1 << 20, 2990)]
    base = profile_with(tmp_path, places=places(align_bytes=1 << 20)).streams[0]
    read = msgspec.structs.replace(base.read, ops=3010, io_bytes=3000 << 20, sizes=sizes)
    even = Loop(Pacing.EVEN)
    profile = profile_with(
        tmp_path, loop=even, places=places(align_bytes=1 << 20), read=read, span_ns=15_000 * MS
    )
    job = options_of(stat_job(profile, JobOptions(version=V)), "read")
    assert (job["rate_iops"], job["bs"]) == ("200", str(1 << 20))


@pytest.mark.parametrize(
    ("found", "lines"),
    [
        ({"sequential_share": 1.0}, {"rw": "read"}),
        ({"sequential_share": 0.6}, {"rw": "randread", "percentage_random": "40"}),
        ({"sequential_share": 0.875, "run_ops": 8}, {"rw": "randread:8"}),
        ({"law": Law.ZIPF, "theta": 1.1}, {"random_distribution": "zipf:1.1"}),
        ({"law": Law.PARETO, "theta": 0.2}, {"random_distribution": "pareto:0.2"}),
        (
            {"begin_bytes": GIB, "span_bytes": GIB, "law": Law.ONCE},
            {"offset": str(GIB), "size": str(GIB)},
        ),
    ],
)
def test_where_operations_go_is_a_line_each(tmp_path, found, lines):
    job = stat_job(profile_with(tmp_path, places=places(**found)), JobOptions(version=V))
    assert lines.items() <= options_of(job, "read").items()
    assert ("norandommap" in job) is (
        found.get("sequential_share") != 1.0 and found.get("law") is not Law.ONCE
    )


def test_zones_of_a_mixed_stream_are_ones_that_fio_takes(tmp_path):
    """fio 3.33 refuses `zoned_abs` with zones of reads and others of writes, whatever they are."""
    stream = profile_with(tmp_path).streams[0]
    halves = [AddressZone(50, GIB), AddressZone(50, 3 * GIB)]
    read = msgspec.structs.replace(stream.read, zones=halves)
    write = msgspec.structs.replace(read, ops=read.ops // 2, zones=halves[::-1])
    profile = profile_with(
        tmp_path, name="mixed", read=read, write=write, places=places(law=Law.ZONES)
    )
    job = stat_job(profile, JobOptions(version=V))
    assert "# zones" in job
    assert options_of(job, "mixed")["random_distribution"].startswith(
        f"zoned_abs:50/{GIB}:50/{3 * GIB}:"
    )
    if shutil.which("fio"):
        (tmp_path / "stat.fio").write_text(job)
        subprocess.run(["fio", "--parse-only", "stat.fio"], cwd=tmp_path, check=True)


def test_a_plain_job_fits_on_a_screen(tmp_path):
    job = stat_job(profile_with(tmp_path, places=places(law=Law.ONCE)), JobOptions(version=V))
    assert sections(job) == ["global", "read"]
    assert len(job.splitlines()) <= 50


def test_sizes_cut_by_the_map_are_requested_as_the_program_did():
    # 30 % of one place and 70 % of four: the map cuts some of these to two and three.
    blocks, program = np.array([1, 2, 3, 4]), np.array([0.3, 0, 0, 0.7])
    seen = sizes_from_map(blocks, program, 20_000, 30_000)
    assert seen[1] > 0.03
    assert compensated_weights(blocks, seen, 20_000, 30_000) == pytest.approx(program, abs=0.01)


def test_equal_sizes_of_reads_and_writes_are_one_line(tmp_path):
    base = profile_with(tmp_path)
    (stream,) = base.streams
    sizes = [SizeCount(65536, 300), SizeCount(262144, 700)]
    read = msgspec.structs.replace(stream.read, sizes=sizes, ops=1000)
    loop = Loop(Pacing.CLOSED, depth=8)
    changed = msgspec.structs.replace(
        stream, name="mixed", read=read, write=read, loop=loop, places=places()
    )
    job = options_of(
        stat_job(msgspec.structs.replace(base, streams=[changed]), JobOptions(version=V)), "mixed"
    )
    assert (job["rw"], job["rwmixread"], job["bssplit"]) == ("randrw", "50", "65536/30:262144/70")


def dispersion(folder, ts_ns):
    return timed(folder, ts_ns, ts_ns + 1).arrivals.dispersion


def test_dispersion_by_hand(tmp_path):
    # Ten windows of 1 ms, in turn with two and with none, and an end.
    times = np.repeat(np.arange(0, 10, 2), 2) * MS
    found = dispersion(tmp_path, np.append(times, 10 * MS))
    assert found.in_1ms == 1.0
    assert (found.in_100ms, found.in_10s) == (None, None)
    even = dispersion(tmp_path, np.arange(0, 1001) * MS)
    assert (even.in_1ms, even.in_100ms) == (0, 0)
    assert shows(str(even), "0 in 1 ms, 0 in 100 ms, unknown in 10 s")


def timed(tmp_path, came, done) -> Profile:
    """Return the profile of 128 KiB reads that came and were done at these times, in ns."""
    order = np.argsort(came)
    n, size = len(came), 131072
    columns = {
        "ts_ns": came[order], "completed_ns": done[order], "op": np.zeros(n), "object_id": np.arange(n),
        "request_id": np.arange(n), "stage": np.zeros(n), "address": np.arange(n) * 7919 % 8192 * size,
        "io_bytes": np.full(n, size), "length_bytes": np.full(n, size),
    }  # fmt: skip
    part = {name: np.asarray(values).astype(np.int64) for name, values in columns.items()}
    write_ios(tmp_path / "timed.parquet", [part], "this")
    base = distil_rows(tmp_path, [io(0, "read", 1, size)]).profile
    space = AddressSpace(span_bytes=GIB, peak_reserved_bytes=GIB, prior_objects=0, prior_bytes=0)
    known = {"origin": base.origin, "tier": "nvme", "space": space, "data": None}
    return profile_of(tmp_path / "timed.parquet", tmp_path, **known, stray_delete_ops=0)


def missed(profile) -> dict[str, float]:
    return {f.name: f.off for f in expected_stat(profile, JobOptions()) if f.is_missed}


def test_a_jobs_expected_rate_is_compared_with_its_source(tmp_path):
    """18 pauses of 300 ms are thought of.

    As many of 20 ms to 2 s are not, but the mean rate is kept.
    """
    regular = timed(tmp_path, *bursts([300] * 18, [128] * 18))
    assert missed(regular) == {}
    assert "thinktime=300000us" in stat_job(regular, JobOptions())
    rng = np.random.default_rng(6)
    irregular = timed(tmp_path, *bursts(rng.integers(20, 2000, 30), rng.integers(30, 600, 30)))
    assert not missed(irregular).keys() & {"I/Os a second", "bytes a second", "queue depth"}
    # Had it been left as a loop of depth 16 without pauses, it would be a hundred times as fast,
    # and never idle.
    loop = Loop(Pacing.CLOSED, depth=16, response_ns=irregular.streams[0].loop.response_ns)
    free = expected_load(msgspec.structs.replace(irregular.streams[0], loop=loop), {"iodepth": 16})
    assert free.ios_per_s > 50 * irregular.ops * 1e9 / irregular.span_ns
    assert free.idle_share == 0
    # A read an hour, of which 5 min have hardly any: fio begins with one.
    slow = distil_rows(tmp_path, [io(3_600_000 * i, "read", i, 131072) for i in range(24)]).profile
    assert missed(slow)["I/Os a second"] == pytest.approx(3600 / 300 - 1, rel=0.1)


def test_a_closed_loop_is_capped_at_the_rate_of_its_source(tmp_path):
    """One read at a time, 80 µs each, and 30 µs of the program's own in between.

    Fio would be 1.4 times as fast.
    """
    rng = np.random.default_rng(3)
    profile = timed(tmp_path, *closed(2000, 1, lambda _i: rng.exponential(80_000), 30_000, rng))
    job = options_of(stat_job(profile, JobOptions(version=V)), "read")
    assert profile.streams[0].loop.pace is Pacing.CLOSED
    assert int(job["rate"]) == pytest.approx(131072 / 110e-6, rel=0.05)
    assert missed(profile) == {}


def test_flushes_come_after_as_many_writes_as_in_the_source(tmp_path):
    """A flush after each eight writes.

    Stat.fio has them, and what an iolog does not have is said.
    """
    rows = [
        (i, "FWS" if i % 9 == 8 else "WS", (i * 7919 % 4096) * 65536, 65536 * (i % 9 != 8))
        for i in range(900)
    ]
    blocks = write_blocks(tmp_path / "blocks.parquet", rows)
    run_cli("kvdistill", "fio", blocks, "-o", "jobs", cwd=tmp_path)
    assert options_of((tmp_path / "jobs/stat.fio").read_text(), "write")["fdatasync"] == "8"
    assert shows((tmp_path / "jobs/replay.fio").read_text(), "100 flushes … stat.fio")
