"""The jobs under the installed fio: what it says it did is what the profile says."""

from __future__ import annotations

import json
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import TRACES, run_cli
from kvdistill_rows import distil_rows, io, stat_job, write_hand, write_jobs

from kvdistill.jobs import check, closeness, fio_jobs, fio_stat, verdicts
from kvdistill.jobs.fio_run import disk_of, run_observed
from kvdistill.jobs.fio_sections import on_null
from kvdistill.jobs.job import FioMode, FioVersion, JobOptions, run_fio
from kvdistill.jobs.mode_job import make_job
from kvdistill.profile.sources import distil_source
from kvtrace.core.errors import DeviceError
from kvtrace.core.limit import Limit

pytestmark = pytest.mark.fio
MIB = 1 << 20


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    run_cli("kvdistill", "fio", write_hand(tmp_path), "--tier", "nvme", "-o", tmp_path / "out")
    return tmp_path / "out"


def test_fio_parses_both_jobs_without_complaint(jobs):
    for job in ("prefill.fio", "replay.fio", "stat.fio", "reuse.fio"):
        done = subprocess.run(
            ["fio", "--parse-only", job], cwd=jobs, capture_output=True, text=True, check=False
        )
        said = [
            line
            for line in (done.stdout + done.stderr).splitlines()
            if "bs_unaligned may not" not in line
        ]
        assert (done.returncode, said) == (0, [])


def test_fio_takes_as_many_sizes_as_we_give_it(tmp_path):
    rows = [io(i, "read", i, 512 * (i + 1)) for i in range(300)]
    (tmp_path / "stat.fio").write_text(stat_job(distil_rows(tmp_path, rows).profile, JobOptions()))
    done = subprocess.run(
        ["fio", "--parse-only", "stat.fio"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert "split" not in done.stdout + done.stderr


def test_the_replay_does_what_the_log_says(jobs):
    (prefill,) = run_fio(jobs / "prefill.fio", 60)["jobs"]
    assert prefill["write"]["io_bytes"] == 7 * MIB
    scratch = (jobs / "kvdistill.scratch").stat()
    assert scratch.st_size == 7 * MIB
    assert scratch.st_blocks * 512 >= 7 * MIB, (
        "every byte is really there, so that reads reach the device"
    )
    (replay,) = run_fio(jobs / "replay.fio", 60)["jobs"]
    # fio 3.33 counts the bytes of an asynchronous replay's last I/Os nowhere.
    assert [replay[name]["total_ios"] for name in ("read", "write")] == [7, 5]


@pytest.mark.full
def test_a_sequential_burst_of_one_instant_stays_whole(tmp_path):
    """Of 12 places, read one after another but for every tenth.

    Fio ends a job that reaches the last one.
    """
    order = [(at + (at // 10) * 5) % 12 for at in range(90)]
    writes = [io(0, "write", i, MIB) for i in range(12)]
    reads = [io(3_000 * (1 + at // 15), "read", place, MIB) for at, place in enumerate(order)]
    job = fio_stat.stat_job(
        distil_rows(tmp_path, [*writes, *reads]).profile, JobOptions(version=FioVersion(3, 33))
    )
    (tmp_path / "stat.fio").write_text(on_null(job).text.replace("startdelay=", "#"))
    found = {
        job["jobname"]: job["read"]["total_ios"]
        for job in run_fio(tmp_path / "stat.fio", 60)["jobs"]
    }
    assert sum(found.values()) == 90, (found, job.text)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--jobs", "1"), marks=pytest.mark.full),
        pytest.param(("--log-version", "3"), marks=pytest.mark.full),
        ("--jobs", "1", "--log-version", "3"),
    ],
)
def test_every_form_of_the_replay_does_the_same(tmp_path, options):
    run_cli("kvdistill", "fio", write_hand(tmp_path), "--tier", "nvme", "-o", tmp_path / "out", "--mode", "replay",
            "--mode", "reuse", *options)  # fmt: skip
    run_fio(tmp_path / "out" / "prefill.fio", 60)
    for mode in ("replay", "reuse"):
        (found,) = run_fio(tmp_path / "out" / f"{mode}.fio", 60)["jobs"]
        assert (found["read"]["total_ios"] + found["write"]["total_ios"]) == 12


def test_the_statistical_job_runs_in_both_directions(jobs):
    with pytest.raises(DeviceError, match=r"stat\.fio"):
        # It would lay out its target within the run.
        run_fio(jobs / "stat.fio", 60)
    run_fio(jobs / "prefill.fio", 60)
    before = (jobs / "kvdistill.scratch").stat().st_size
    result = run_fio(jobs / "stat.fio", 60)
    assert sorted(job["jobname"] for job in result["jobs"]) == ["read", "write"]
    assert all(job["error"] == 0 for job in result["jobs"])
    assert (jobs / "kvdistill.scratch").stat().st_size == before


def test_without_a_rate_it_does_as_many_operations_as_the_trace(tmp_path):
    rows = [io(7, "read", i, 4096) for i in range(23)]
    (tmp_path / "stat.fio").write_text(stat_job(distil_rows(tmp_path, rows).profile, JobOptions()))
    (tmp_path / "kvdistill.scratch").write_bytes(bytes(4 * MIB))
    (job,) = run_fio(tmp_path / "stat.fio", 60)["jobs"]
    assert (job["read"]["total_ios"], job["read"]["io_bytes"]) == (23, 23 * 4096)


@pytest.mark.parametrize("is_close", [True, False])
def test_the_log_in_the_folder_is_the_one_that_was_checked(tmp_path, monkeypatch, is_close):
    """A log in relative microseconds that needed no correction was judged, and one in milliseconds
    left there.
    """
    gaps = verdicts.Verdict(verdicts.GAPS, "", 0.01, passes=True)
    fio = SimpleNamespace(
        side=verdicts.Side.DEVICE,
        gap_ks=0.01,
        gap_resolution_us=1,
        end_slip=0 if is_close else 0.5,
    )
    monkeypatch.setattr(
        check, "_check_logs", lambda *_: (SimpleNamespace(fio=fio, verdicts=[gaps]), None)
    )
    hand = distil_source(write_hand(tmp_path), "nvme", Limit(), tmp_path)
    options = JobOptions(modes=(FioMode.REPLAY,), has_check=True)
    job = make_job(FioMode.REPLAY, hand, options)
    _pair, issue_us = check._closest_replay(
        closeness.CheckedRun(FioMode.REPLAY, hand, "", 0, tmp_path, options, job, None), []
    )
    assert issue_us == ((0, 0) if is_close else None)
    found = check.Closeness(fio_version="3.33", comparisons=[], notes=[], issue_us=issue_us)
    monkeypatch.setattr(fio_jobs, "check", lambda *_: found)
    write_jobs(tmp_path / "hand.parquet", "nvme", tmp_path / "out", Limit(), options)
    log = (tmp_path / "out" / "replay.iolog").read_text()
    assert log.startswith(f"fio version {3 if is_close else 2} iolog\n")


@pytest.mark.full
def test_check_compares_and_leaves_only_its_table(tmp_path):
    done = run_cli(
        "kvdistill", "fio", write_hand(tmp_path), "--tier", "nvme", "-o", tmp_path / "out", "--check",
        "--check-duration", "1s", "--json",
    )  # fmt: skip
    names = {f.name for f in (tmp_path / "out").iterdir()}
    logs = {"replay.iolog", "reuse.iolog"}
    jobs = {"prefill.fio", "replay.fio", "stat.fio", "reuse.fio"}
    assert names == {*logs, *jobs, "profile.json", "closeness.json"}
    told = json.loads((tmp_path / "out" / "closeness.json").read_text())
    assert json.loads(done.stdout)["closeness"] == told
    replay, stat, reuse = told["comparisons"]
    assert [c["job"] for c in told["comparisons"]] == ["replay.fio", "stat.fio", "reuse.fio"]
    assert replay["fio"]["has_same_ios"] is True
    # Of a disk that others keep so busy that the replay falls behind, fio's side alone is compared.
    sides = {(pair["source"]["side"], pair["fio"]["side"]) for pair in (replay, reuse)}
    assert sides in ({("device", "device")}, {("asked", "fio")})
    # As root, the device is looked at, where the block layer merges and splits requests.
    if replay["fio"]["side"] == "fio":
        assert replay["source"]["ios"] == replay["fio"]["ios"] == 12
        assert replay["fio"]["size_tv"] == 0
        assert replay["source"]["mean_depth"] is None
        assert replay["fio"]["hot10_share"] == replay["source"]["hot10_share"]
        assert reuse["fio"]["read_share"] == reuse["source"]["read_share"]
        assert reuse["fio"]["size_tv"] == 0
    else:
        assert replay["source"]["ios"] > 0
        assert 0 < replay["source"]["mean_depth"] <= replay["source"]["in_flight_p99"]
    assert stat["fio"]["mean_depth"] is not None
    version = 2 if told["issue_us"] is None else 3
    assert (
        (tmp_path / "out" / "replay.iolog").read_text().startswith(f"fio version {version} iolog\n")
    )
    assert {v["name"]: v["passes"] for v in replay["verdicts"]}["same I/Os"] is True


@pytest.mark.full
@pytest.mark.root
def test_the_device_is_looked_at_and_sees_long_reads_whole():
    from blocks import write_blocks
    from probe_load import place_on_disk

    with place_on_disk() as (folder, _disk):
        write_blocks(
            folder / "blocks.parquet", [(20 * i, "R", i % 16 * MIB, MIB) for i in range(60)]
        )
        done = run_cli(
            "kvdistill",
            "fio",
            folder / "blocks.parquet",
            "-o",
            folder / "out",
            "--mode",
            "stat",
            "--check",
            "--json",
        )
    (stat,) = json.loads(done.stdout)["closeness"]["comparisons"]
    assert stat["fio"]["side"] == "device"
    # In parts of 1016 and 8 KiB it would be near 1; the file may lie in several stretches of the
    # disk.
    assert stat["fio"]["size_tv"] <= 0.1
    assert stat["fio"]["in_flight_p99"] is not None
    assert "seen at the device" not in {v["name"] for v in stat["verdicts"]}


def test_a_check_on_the_null_engine_needs_no_space(tmp_path):
    done = run_cli(
        "kvdistill", "fio", write_hand(tmp_path), "--tier", "nvme", "-o", tmp_path / "out", "--mode", "replay",
        "--mode", "stat", "--check-null", "--check-duration", "1s", "--json",
    )  # fmt: skip
    closeness = json.loads(done.stdout)["closeness"]
    assert closeness["comparisons"][0]["fio"]["has_same_ios"] is True
    assert "null engine" in closeness["notes"][-1]


def test_check_refuses_what_does_not_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "disk_of", lambda _place: None)
    usage = shutil.disk_usage(tmp_path)._replace(free=1 * MIB)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    wanted = JobOptions(modes=[FioMode.REPLAY], has_check=True)
    with pytest.raises(DeviceError, match="check"):
        write_jobs(write_hand(tmp_path), "nvme", tmp_path / "out", Limit(), wanted)
    assert not (tmp_path / "out" / "closeness.json").exists()


def test_a_job_that_fio_refuses_is_one_line(tmp_path):
    (tmp_path / "bad.fio").write_text("[x]\nrw=read\nsize=1M\nioengine=nosuch\n")
    with pytest.raises(DeviceError, match=r"bad\.fio: fio:"):
        run_fio(tmp_path / "bad.fio", 60)


@pytest.mark.full
@pytest.mark.traces
def test_the_conversation_trace_under_fio(tmp_path):
    trace = tmp_path / "conv.parquet"
    run_cli(
        "kvtrace", "gen", "--source", "mooncake", TRACES / "mooncake_conversation.jsonl", "--preset", "lmcache-disk",
        "--model", "tiny-1b", "--jitter", "3s", "--set", "tiers.gpu.capacity=1GiB", "--set", "tiers.cpu.capacity=2GiB",
        "--limit", "12", "-o", trace,
    )  # fmt: skip
    done = run_cli(
        "kvdistill", "fio", trace, "--tier", "nvme", "-o", tmp_path / "out", "--mode", "replay", "--mode", "reuse",
        "--check-null", "--check-duration", "2s", "--max-duration", "2s", "--json",
    )  # fmt: skip
    replay, reuse = json.loads(done.stdout)["closeness"]["comparisons"]
    # What does not hang on how busy this machine is; docs/concepts/fio-jobs.md has the times.
    passed = {v["name"]: v["passes"] for v in replay["verdicts"]}
    assert passed["same I/Os"] is passed["block-size mismatch"] is True
    # Without a verdict, where the part only reads or only writes.
    assert replay["fio"]["read_share"] == replay["source"]["read_share"]
    assert reuse["fio"]["size_tv"] <= 0.015
    assert reuse["fio"]["ios"] == pytest.approx(reuse["source"]["ios"], rel=0.015)


@pytest.mark.full
def test_a_job_in_a_relative_folder_runs_with_the_probes(tmp_path, monkeypatch):
    """The probes know this fio by a name of its own, which lies beside the job.

    Fio is run in the job's folder.
    """
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "one.fio").write_text(
        "[one]\nfilename=one.dat\nsize=64k\nrw=write\nbs=4k\n"
    )
    monkeypatch.chdir(tmp_path)
    seen = run_observed(Path("jobs/one.fio"), 60, disk=disk_of(Path("jobs")))
    assert seen.result["jobs"][0]["write"]["total_ios"] == 16


def writes_seen(device):
    """Return how many sectors were written to the block device, as the kernel counts."""
    return int((Path("/sys/block") / device.name / "stat").read_text().split()[6])


@pytest.mark.fio
@pytest.mark.root
def test_a_check_on_a_device_overwrites_only_that(tmp_path):
    """The device is refused without --destroy-data, and then holds what the jobs wrote."""
    from loop_devices import loop_device

    out = tmp_path / "jobs"
    command = [
        "kvdistill", "fio", write_hand(tmp_path), "--tier", "nvme", "-o", out, "--force", "--mode", "replay",
        "--check", "--check-duration", "1s", "--json",
    ]  # fmt: skip
    with loop_device(tmp_path / "backing", 64 << 20) as device:
        before = writes_seen(device)
        refused = run_cli(*command, "--target", device, check=False)
        assert refused.returncode == 4
        assert "--destroy-data" in refused.stderr
        assert writes_seen(device) == before
        done = run_cli(*command, "--target", device, "--destroy-data")
        assert writes_seen(device) > before
    (replay,) = json.loads(done.stdout)["closeness"]["comparisons"]
    assert replay["fio"]["has_same_ios"] is True
    assert not [path for path in out.iterdir() if path.suffix in (".dat", ".scratch")]


def test_a_target_that_is_too_short_is_not_deleted(jobs):
    short = jobs / "kvdistill.scratch"
    short.write_bytes(b"\1" * MIB)
    with suppress(DeviceError):  # reads behind its end
        run_fio(jobs / "stat.fio", 60)
    assert short.stat().st_size >= MIB
    assert short.read_bytes()[:512] != bytes(512)
