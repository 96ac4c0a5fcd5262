from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from conftest import run_cli, write_trace
from data_only import data_of, without_comments
from kvdistill_rows import (
    HAND,
    MS,
    distil_rows,
    io,
    stat_job,
    write_hand,
    write_jobs,
    write_run,
)
from kvdistill_rows import write_logs as write_iologs
from phrases import shows

from kvdistill.jobs.fio_replay import LogSummary, expected_replay, log_job, split_ios
from kvdistill.jobs.fio_stat import expected_stat
from kvdistill.jobs.job import FioMode, FioVersion, JobOptions, parse_version
from kvdistill.profile.sources import distil_source
from kvtrace.core.errors import ConfigError
from kvtrace.core.limit import Limit

GOLDEN = Path(__file__).parents[2] / "golden" / "kvdistill"
V = FioVersion(3, 33)
MIB = 1 << 20


def write_logs(folder: Path, distilled, jobs=1, version=2):
    options = JobOptions(target="f", jobs=jobs, log_version=version)
    return write_iologs(folder, "x", lambda: split_ios(distilled.ios, MIB), options)


def write_hand_jobs(
    folder: Path, out: Path, *modes: FioMode, version=V, log_version=3, jobs=1, **options
):
    wanted = JobOptions(
        modes=list(modes), version=version, jobs=jobs, log_version=log_version, **options
    )
    return write_jobs(write_hand(folder), "nvme", out, Limit(), wanted)


def options_of(job: str, section: str) -> dict[str, str]:
    """Return the options of one section of a job."""
    lines, inside = {}, False
    for line in job.splitlines():
        if line.startswith("["):
            inside = line == f"[{section}]"
        elif inside and line and not line.startswith("#"):
            name, _, value = line.partition("=")
            lines[name] = value
    return lines


def sections(job: str) -> list[str]:
    return [line.strip("[]") for line in job.splitlines() if line.startswith("[")]


HAND_LINES = [
    (0, "write 8192 8192"), (0, "write 16384 1048576"), (0, "write 1064960 1048576"), (0, "write 2113536 1048576"),
    (2, "read 0 8192"), (10, "read 16384 1048576"), (10, "read 1064960 1048576"), (10, "read 2113536 1048576"),
    (20, "read 8192 4096"), (40, "write 8192 4096"), (50, "read 8192 4096"), (100, "read 1064960 1048576"),
]  # fmt: skip
"""When, in ms from the first, and what."""


def test_the_hand_log_line_by_line(tmp_path):
    log = write_logs(tmp_path, distil_rows(tmp_path, HAND), version=3)
    assert (tmp_path / "x.iolog").read_text().splitlines() == [
        "fio version 3 iolog", "1 f add", "1 f open", *(f"{ms * 1000 + 1} f {line}" for ms, line in HAND_LINES),
        "100001 f close",
    ]  # fmt: skip
    assert (log.read_ios, log.write_ios, log.split_ops, log.max_burst_ios, log.last_us) == (
        7,
        5,
        2,
        4,
        100001,
    )
    assert (log.read_bytes, log.write_bytes) == (
        4 * MIB + 8192 + 4096 + 4096,
        3 * MIB + 8192 + 4096,
    )
    assert log.start_ms == 0


def test_absolute_times_are_said_once_an_instant(tmp_path):
    log = write_logs(tmp_path, distil_rows(tmp_path, HAND))
    lines, last = ["fio version 2 iolog", "f add", "f open"], None
    for ms, line in HAND_LINES:
        lines += [f"f wait {1067 + ms} 0"] * (ms != last) + [f"f {line}"]
        last = ms
    assert (tmp_path / "x.iolog").read_text().splitlines() == [*lines, "f close"]
    # A second to read the log, and 32 buffers of 1 MiB filled at half a GB a second.
    assert log.start_ms == 1067


@pytest.mark.parametrize("version", [2, 3])
def test_lines_are_dealt_in_turn_and_old_logs_go(tmp_path, version):
    distilled = distil_rows(tmp_path, HAND)
    write_logs(tmp_path, distilled, jobs=11, version=version)
    log = write_logs(tmp_path, distilled, jobs=5, version=version)
    assert log.files == [f"x.{i}.iolog" for i in range(1, 6)]
    assert sorted(f.name for f in tmp_path.glob("*.iolog")) == log.files
    for index, name in enumerate(log.files):
        said = [" ".join(line.split()[-3:]) for line in (tmp_path / name).read_text().splitlines()]
        done = [line for line in said if line.startswith(("read", "write"))]
        assert done == [line for _ms, line in HAND_LINES[index::5]]


@pytest.mark.parametrize(
    "name",
    [
        "replay.fio",
        "prefill.fio",
        "replay.iolog",
        "stat.fio",
        "reuse.fio",
        "reuse.iolog",
        "profile.json",
    ],
)
def test_golden(tmp_path, name):
    write_hand_jobs(tmp_path, tmp_path / "out")
    compare_golden(tmp_path / "out" / name, name)


@pytest.mark.star
@pytest.mark.parametrize("version", [(3, 31), (3, 37), (3, 42), None])
@pytest.mark.parametrize("log_version", [2, 3])
def test_golden_heads_by_version(tmp_path, version, log_version):
    chosen = None if version is None else FioVersion(*version)
    write_hand_jobs(
        tmp_path, tmp_path / "out", FioMode.REPLAY, version=chosen, log_version=log_version, jobs=2
    )
    name = f"replay-v{log_version}-fio-{chosen or 'any'}.fio"
    compare_golden(tmp_path / "out" / "replay.fio", name)


def compare_golden(written: Path, name: str) -> None:
    """Compare a file with its golden, which has no comments and no notes: words may change."""
    text = written.read_text()
    if written.suffix == ".json":
        text = json.dumps(data_of(json.loads(text)), indent=1) + "\n"
    elif written.suffix == ".fio":
        text = without_comments(text)
    if os.environ.get("UPDATE_GOLDEN"):
        (GOLDEN / name).write_text(text)
    assert text == (GOLDEN / name).read_text()


def test_the_same_input_gives_the_same_bytes(tmp_path):
    for out in ("a", "b"):
        write_hand_jobs(tmp_path, tmp_path / out)
    names = sorted(f.name for f in (tmp_path / "a").iterdir())
    assert names == [
        "prefill.fio", "profile.json", "replay.fio", "replay.iolog", "reuse.fio", "reuse.iolog", "stat.fio",
    ]  # fmt: skip
    assert all(
        (tmp_path / "a" / n).read_bytes() == (tmp_path / "b" / n).read_bytes() for n in names
    )


def test_one_direction_only(tmp_path):
    rows = [io(i * 10, "read", i % 3, 65536) for i in range(50)]
    job = stat_job(distil_rows(tmp_path, rows).profile, JobOptions(version=V))
    assert sections(job) == ["global", "read"]
    assert "write" not in options_of(job, "read")["rw"]
    writes = [io(i * 10, "write", i, 65536) for i in range(50)]
    assert sections(stat_job(distil_rows(tmp_path, writes).profile, JobOptions(version=V))) == [
        "global",
        "write",
    ]


def test_one_object(tmp_path):
    rows = [io(i * 10, "read", 0, 65536) for i in range(51)]
    found = distil_rows(tmp_path, rows).profile
    job = options_of(stat_job(found, JobOptions(version=V)), "read")
    # There is one place to read, over and over, each 10 ms.
    assert (job["rw"], job["bs"], "random_distribution" in job) == ("randread", "65536", False)
    assert job["rate_iops"] == "100"


def test_few_bursts_say_how_long_one_may_take(tmp_path):
    # Six bursts of 40 writes, 100 ms apart: what is no pause of that is left for a burst to
    # complete.
    rows = [
        io(burst * 100, "write", burst * 40 + at, 65536, request=burst)
        for burst in range(6)
        for at in range(40)
    ]
    lines = stat_job(distil_rows(tmp_path, rows).profile, JobOptions(version=V)).splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("thinktime="))
    pause_us = int(lines[at].removeprefix("thinktime=").removesuffix("us"))
    words = lines[at - 1].split()
    assert shows(lines[at - 1], "pauses after")
    assert pause_us + int(words[words.index("over") + 1]) == pytest.approx(100_000, rel=0.01)


@pytest.mark.parametrize("gap_us", [0, 49])
def test_one_instant_leaves_the_rate_out_and_says_so(tmp_path, gap_us):
    rows = [io(7 + i * gap_us / 1000, "read", i, 4096) for i in range(5)]
    job = stat_job(distil_rows(tmp_path, rows).profile, JobOptions(version=V))
    assert "no rate" in job
    assert shows(job, "# … it ends … millisecond")
    assert "instant" not in job
    assert options_of(job, "read")["number_ios"] == "5"
    assert not {"rate", "rate_iops"} & options_of(job, "read").keys()
    assert not {"runtime", "time_based"} & options_of(job, "read").keys()


def test_bursts_at_one_instant_keep_the_sources_operations(tmp_path):
    """The last burst was 10^17 bytes a second for a millisecond, of which fio made nothing.

    Others took 100 ms.
    """
    at, counts = [0, 4_000, 11_000, 19_000, 24_000, 28_001], [100, 400, 50, 300, 800, 350]
    moments = [ms for ms, count in zip(at, counts, strict=True) for _ in range(count)]
    rows = [io(ms, "write", i, 1 << 20) for i, ms in enumerate(moments)]
    profile, options = distil_rows(tmp_path, rows).profile, JobOptions(version=V)
    job = stat_job(profile, options)
    parts = [options_of(job, name) for name in sections(job)[1:]]
    # fio starts sections at whole steps of 100 ms, so that half of one is taken off.
    assert [(part.get("startdelay", "-50ms"), part["number_ios"]) for part in parts] == [
        (f"{ms - 50}ms", str(count)) for ms, count in zip(at, counts, strict=True)
    ]
    known = re.sub(r"\n# +", " ", job)
    assert "every 100 ms" in known
    assert [int(part["io_size"]) for part in parts] == [count << 20 for count in counts]
    assert not any({"rate", "rate_iops", "runtime"} & part.keys() for part in parts)
    off = {figure.name: figure.off for figure in expected_stat(profile, options)}
    assert off["I/Os a second"] == pytest.approx(0, abs=0.01)


def test_without_stages_the_depth_is_left_out_and_says_so(tmp_path):
    rows = [io(i, "read", i, 4096, request=None, stage=None) for i in range(50)]
    job = stat_job(distil_rows(tmp_path, rows).profile, JobOptions(version=V))
    assert "no iodepth" in job
    assert "iodepth" not in options_of(job, "read")


def test_the_depth_is_marked_as_a_bound_and_fits_memory(tmp_path):
    rows = [io(i // 40 * 1000, "read", i, 48 * MIB, request=1) for i in range(80)]
    job = stat_job(distil_rows(tmp_path, rows).profile, JobOptions(version=V))
    # 40 operations of 48 parts of 1 MiB, of which 256 fit in the buffers.
    assert shows(job, "1920 … 268 MB")
    assert options_of(job, "read1")["iodepth"] == "256"


@pytest.mark.parametrize("others", [0, 300])
def test_operations_of_one_instant_are_in_flight_together(tmp_path, others):
    """Few tell no pace, and all of a source at one instant have no streams."""
    rows = [io(i, "read", i, 65536, request=None, stage=None) for i in range(others)]
    rows += [io(5000, "write", i, 65536, request=None, stage=None) for i in range(16)]
    job = stat_job(distil_rows(tmp_path, rows).profile, JobOptions(version=V))
    said = options_of(job, "write")
    assert (said["iodepth"], said["number_ios"]) == ("16", "16")


def test_stages_of_a_request_follow_one_another(tmp_path):
    """60 reads at once, as 15 stages of four.

    Four are in flight, and the next four once those are done.
    """
    rows = [
        io(i // 60 * 500, "read", i, 65536, request=i // 60, stage=i % 60 // 4) for i in range(1200)
    ]
    profile = distil_rows(tmp_path, rows).profile
    assert {(s.loop.burst_ops, s.loop.burst_depth) for s in profile.streams} == {(60, 4)}
    said = options_of(stat_job(profile, JobOptions(version=V)), "read")
    assert (said["iodepth"], said["iodepth_low"], said["thinktime_blocks"]) == ("4", "1", "60")


def test_deletes_are_discards_on_a_device_alone(tmp_path):
    rows = [io(i * 10, "write", i, 65536) for i in range(50)]
    rows += [io(500 + i * 10, "delete", i, 65536) for i in range(26)] + [
        io(1000, "write", 99, 65536)
    ]
    profile = distil_rows(tmp_path, rows).profile
    job = stat_job(profile, JobOptions(version=V, is_device=True))
    trim = options_of(job, "trim")
    # At their own pace when they come, not over the time of reads and writes.
    assert (trim["rw"], trim["bs"], trim["rate_iops"]) == ("randtrim", "65536", "100")
    assert (trim["startdelay"], trim["number_ios"]) == ("450ms", "26")
    assert "not issued" not in job
    assert "trim" not in sections(stat_job(profile, JobOptions(version=V)))
    rows = [io(i * 10, "write", i, 65536) for i in range(400)]
    rows += [io(4000 + i * 100, "delete", i, 65536) for i in range(400)]
    job = stat_job(distil_rows(tmp_path, rows).profile, JobOptions(version=V, is_device=True))
    trim = options_of(job, "trim")
    assert (trim["startdelay"], trim["runtime"], trim["rate_iops"]) == ("3950ms", "40000ms", "10")
    assert shows(job, "3.99 s … trims")
    cut = JobOptions(version=V, is_device=True, runtime_cap_ns=10 * 10**9)
    assert (
        options_of(stat_job(distil_rows(tmp_path, rows).profile, cut), "trim")["runtime"]
        == "6000ms"
    )
    # All that is run is over before the first delete comes.
    cut = JobOptions(version=V, is_device=True, runtime_cap_ns=2 * 10**9)
    job = stat_job(distil_rows(tmp_path, rows).profile, cut)
    assert ("trim" in sections(job), shows(job, "400 deletes … not issued")) == (False, True)
    # So it is where one delete comes, after the longest run that is allowed.
    rows = [*[io(i * 10, "write", i, 65536) for i in range(50)], io(400_000, "delete", 0, 65536)]
    job = stat_job(distil_rows(tmp_path, rows).profile, JobOptions(version=V, is_device=True))
    assert ("trim" in sections(job), shows(job, "1 delete … not issued")) == (False, True)


def test_a_pause_between_bursts_excludes_the_time_of_one(tmp_path):
    """Of two bursts, the operations over the time from the first to the second are twice the rate."""
    rows = [io(i // 40 * 1000, "read", i, 65536) for i in range(400)]
    said = options_of(stat_job(distil_rows(tmp_path, rows).profile, JobOptions(version=V)), "read1")
    # On a drive of eight times 400 reads in 9 s, a burst of 40 takes 112.5 ms of the second between
    # two.
    assert (said["number_ios"], said["thinktime_blocks"], said["thinktime"]) == (
        "80",
        "40",
        "887838us",
    )


def test_phases_follow_each_other(tmp_path):
    rows = [io(i * 20, "read", i % 3, 65536) for i in range(100)]
    rows += [io(2000 + i * 40, "write", i % 3, 65536) for i in range(100)]
    job = stat_job(distil_rows(tmp_path, rows).profile, JobOptions(version=V))
    assert sections(job) == ["global", "read", "write"]
    first, second = options_of(job, "read"), options_of(job, "write")
    assert "startdelay" not in first
    assert int(second["startdelay"][:-2]) == int(first["runtime"][:-2]) - 50
    assert int(first["runtime"][:-2]) + int(second["runtime"][:-2]) == 6000
    assert (first["rate_iops"], second["rate_iops"]) == ("50", "25")


def test_a_short_phase_ends_with_its_operations(tmp_path):
    """Of 25 ms, fio's processes start for 5 to 15.

    A phase that ends by time loses as many of its operations.
    """
    rows = [io(i * 10, "read", i % 3, 65536) for i in range(300)]
    rows += [io(3000 + i // 8, "write", i % 3, 65536) for i in range(200)]
    job = stat_job(distil_rows(tmp_path, rows).profile, JobOptions(version=V))
    (reads, *_), writes = sections(job)[1:], [n for n in sections(job) if n.startswith("write")]
    assert "number_ios" not in options_of(job, reads)
    assert sum(int(options_of(job, name)["number_ios"]) for name in writes) == 200
    assert sum(int(options_of(job, name)["io_size"]) for name in writes) == 200 * 65536
    assert not {"time_based", "runtime"} & set(options_of(job, writes[0]))


@pytest.mark.parametrize(("count", "rate"), [(50, "13368007"), (16, None)])
def test_bursts_of_one_instant_stay_bursts(tmp_path, count, rate):
    """40 at once every 200 ms.

    50 of them keep the source's rate, 6 are timed by their pauses alone.

    All of a burst are in flight, though a trace does not say of evicted blocks which request they
    serve.
    """
    rows = [io(200 * (i // 40), "write", i, 65536, request=None) for i in range(40 * count)]
    profile = distil_rows(tmp_path, rows).profile
    assert {(s.loop.pace, s.loop.burst_ops) for s in profile.streams} == {("bursts", 40)}
    job = stat_job(profile, JobOptions(version=V))
    names = [name for name in sections(job) if name.startswith("write")]
    assert sum(int(options_of(job, name)["number_ios"]) for name in names) == 40 * count
    for said in (options_of(job, name) for name in names):
        assert (said["thinktime_blocks"], said["thinktime_blocks_type"], said["iodepth"]) == (
            "40",
            "issue",
            "40",
        )
        # 85 % of the time from burst to burst.
        assert int(said["thinktime"][:-2]) == pytest.approx(170_000, rel=0.05)
    assert {options_of(job, name).get("rate") for name in names} == {rate}
    # A phase of one burst alone is as long as its source's.
    assert "10 %" in job
    assert "between bursts" in job
    assert "independent" not in job


def test_sizes_and_padding(tmp_path):
    rows = [io(1, "write", 0, 1000), io(2, "write", 1, 5000)]
    found = distil_rows(tmp_path, rows).profile
    assert (
        options_of(stat_job(found, JobOptions(version=V)), "write")["bssplit"] == "4096/50:8192/50"
    )
    assert "adds 6,288 bytes (6.29 kB)" in stat_job(found, JobOptions(version=V))


def test_a_version_brings_its_warnings(tmp_path):
    distilled = distil_rows(tmp_path, HAND)
    log = write_logs(tmp_path, distilled, version=3)
    span = distilled.profile.placed.span_bytes
    old = log_job(distilled.profile, log, FioMode.REPLAY, span, JobOptions(version=V)).text
    new = log_job(
        distilled.profile, log, FioMode.REPLAY, span, JobOptions(version=FioVersion(3, 37))
    ).text
    assert "reap completions" in old
    assert "busy-waits" not in old
    assert "reap completions" not in new
    assert "busy-waits" in new
    assert parse_version("fio-3.42-12-g0123abc") == (3, 42)
    for text in ("4", "fio", "3.30"):
        with pytest.raises(ConfigError):
            parse_version(text)


def test_targets(tmp_path):
    distilled = distil_rows(tmp_path, HAND)
    job = stat_job(distilled.profile, JobOptions(target="/dev/disk:1", version=V))
    assert options_of(job, "global")["filename"] == "/dev/disk\\:1"
    for target in ("", "a b", "x" * 257, "a#b"):
        with pytest.raises(ConfigError, match="target="):
            JobOptions(target=target)


@pytest.mark.parametrize(
    "bad",
    [
        ("--io-bytes", "1000"), ("--io-bytes", "4GiB"), ("--limit", "0"), ("--fio-version", "x"), ("--target", "a b"),
        ("--tier", "ssd"), ("--max-duration", "0"), ("--jobs", "0"), ("--jobs", "2000"),
        ("--log-version", "1"), ("--mode", "x"), ("--space", "0"), ("--check-duration", "0s"),
    ],
)  # fmt: skip
def test_bad_options_are_one_line_and_write_nothing(tmp_path, bad):
    trace = write_trace(tmp_path / "t.parquet", HAND)
    arguments = ["fio", trace, "--tier", "nvme", "-o", tmp_path / "out", *bad]
    done = run_cli("kvdistill", *arguments, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("kvdistill: error:")
    assert done.stderr.count("\n") == 1
    assert not list((tmp_path / "out").glob("*")) if (tmp_path / "out").exists() else True


def test_a_check_without_fio_names_the_remedy_and_keeps_jobs(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    trace = write_hand(tmp_path)
    done = run_cli(
        "kvdistill", "fio", trace, "--tier", "nvme", "-o", tmp_path / "out", "--check", check=False
    )
    assert done.returncode == 5
    assert "fio" in done.stderr
    assert "install" in done.stderr
    assert (tmp_path / "out" / "replay.fio").is_file()


def test_one_prefill_fills_the_target_of_all_jobs(tmp_path):
    found = write_hand_jobs(tmp_path, tmp_path / "out")
    prefill = (tmp_path / "out" / "prefill.fio").read_text()
    assert options_of(prefill, "prefill")["size"] == str(max(found.space_bytes.values()))
    assert "replay.fio, stat.fio, reuse.fio" in prefill
    # To lay the file out would be part of the run.
    stat = options_of((tmp_path / "out" / "stat.fio").read_text(), "global")
    assert (stat["allow_file_create"], stat["create_on_open"]) == ("0", "1")
    assert "overwrite" not in stat


def test_ios_longer_than_a_page_get_huge_pages(tmp_path):
    rows = [io(i * 10, "read", i % 3, MIB) for i in range(50)]
    profile = distil_rows(tmp_path, rows).profile
    job = stat_job(profile, JobOptions(version=V))
    assert options_of(job, "global")["iomem_align"] == "2m"
    assert "GLIBC_TUNABLES=glibc.malloc.hugetlb=1 fio stat.fio" in job
    reserved = stat_job(profile, JobOptions(version=V, huge_pages=64))
    assert options_of(reserved, "global")["iomem"] == "mmaphuge"
    assert "sysctl vm.nr_hugepages=" in reserved
    for length, has_them in ((65536, True), (4096, False)):
        shorter = [io(i * 10, "read", i % 3, length) for i in range(50)]
        job = stat_job(distil_rows(tmp_path, shorter).profile, JobOptions())
        assert ("GLIBC_TUNABLES" in job) is ("iomem_align=2m" in job) is has_them
        assert "in parts" not in job


def test_what_issuing_takes_is_told_so_that_it_does_not_add_up(tmp_path):
    distilled = distil_rows(tmp_path, HAND)
    options = JobOptions(target="f", jobs=1, log_version=3, issue_us=(100.0, 50.0))
    log = write_iologs(tmp_path, "x", lambda: split_ios(distilled.ios, MIB), options)
    told = [int(line.split()[0]) for line in (tmp_path / "x.iolog").read_text().splitlines()[3:-1]]
    # fio issues, waits for the difference of two lines from the end of that, and issues the next.
    now, came = 1.0, [1.0]
    for before, after, (_ms, line) in zip(told, told[1:], HAND_LINES, strict=False):
        now += 100 + 50 * int(line.split()[-1]) / MIB + after - before
        came.append(now)
    asked = [ms * 1000 + 1 for ms, _line in HAND_LINES]
    waits = [i for i in range(1, len(asked)) if asked[i] > asked[i - 1]]
    assert [came[i] for i in waits] == pytest.approx([asked[i] for i in waits], abs=len(asked))
    assert log.issue_us == (100.0, 50.0)


def test_long_logs_are_of_a_typical_part_unless_all_is_wanted(tmp_path, monkeypatch):
    from kvdistill.jobs import fio_jobs

    monkeypatch.setattr(fio_jobs, "MAX_LINES", 50)
    # Writes only at first, then both.
    rows = [io(i * 10, "write", i, 4096) for i in range(50)]
    rows += [io(500 + i * 10, ("read", "write")[i % 2], i, 4096) for i in range(150)]
    trace = write_trace(tmp_path / "t.parquet", rows)
    wanted = JobOptions(modes=[FioMode.REPLAY], version=V, jobs=1, log_version=3)
    part = write_jobs(trace, "nvme", tmp_path / "part", Limit(), wanted).logs["replay"]
    assert part.read_ios + part.write_ios == pytest.approx(50, abs=3)
    assert part.read_ios / (part.read_ios + part.write_ios) == pytest.approx(75 / 200, abs=0.1)
    distilled = distil_source(trace, "nvme", Limit(), tmp_path)
    (note,) = fio_jobs.make_jobs(distilled, wanted).notes
    assert "--whole writes them" in note
    whole = write_jobs(
        trace, "nvme", tmp_path / "whole", Limit(), replace(wanted, is_whole=True)
    ).logs["replay"]
    assert whole.read_ios + whole.write_ios == 200


def test_of_split_operations_only_rates_are_expected(tmp_path):
    """Reads of 4 KiB in parts of one are whole.

    In a job that splits them, nobody knows how long a part takes.
    """
    write_run(tmp_path / "run", [4 * MS] * 400)
    distilled = distil_source(tmp_path / "run", "nvme", Limit(), tmp_path)
    whole = LogSummary(files=["replay.iolog"], version=2, target="x", max_io_bytes=4096, start_ms=0, read_ios=400,
        write_ios=0, read_bytes=400 * 4096, write_bytes=0, split_ops=0, last_us=399_001, largest_io_bytes=4096,
        max_burst_ios=1)  # fmt: skip
    split = msgspec.structs.replace(whole, max_io_bytes=2048, read_ios=800, split_ops=400)
    two = msgspec.structs.replace(split, files=["a", "b"])
    logs = [expected_replay(distilled.profile, log, is_drawn=False) for log in (whole, split, two)]
    figures = [{f.name: f.off for f in log} for log in logs]
    assert figures[0]["queue depth"] == pytest.approx(0, abs=0.01)
    assert (figures[1]["queue depth"], figures[1]["idle time"]) == (None, None)
    assert figures[1]["I/Os a second"] == pytest.approx(0, abs=0.01)
    assert figures[2]["I/Os a second"] is None


def test_strict_refuses_a_job_that_is_expected_to_be_off(tmp_path):
    """A read each millisecond that takes 4 ms.

    Four are in flight, and two jobs of one I/O each do half of them.
    """
    write_run(tmp_path / "run", [4 * MS] * 400)
    options = ("run", "--mode", "replay", "--jobs", "2", "-o", "jobs")
    refused = run_cli("kvdistill", "fio", *options, "--strict", cwd=tmp_path, check=False)
    assert refused.returncode == 2
    assert shows(refused.stderr, "replay.fio … MISS … -49.")
    assert not list((tmp_path / "jobs").iterdir())
    warned = run_cli("kvdistill", "fio", *options, cwd=tmp_path).stdout.splitlines()[0]
    assert shows(warned, "WARNING: replay.fio: … MISS")
    again = run_cli(
        "kvdistill", "fio", *options[:3], "-o", "jobs", "--strict", "--force", cwd=tmp_path
    )
    assert shows(again.stdout, "replay.fio: … within 10 %")
