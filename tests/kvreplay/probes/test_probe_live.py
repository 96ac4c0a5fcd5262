"""Known numbers of I/Os on a real disk: the probes count what fio did, and nobody else."""

import json
import os
import signal
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest
from conftest import run_cli
from header_tree import tree
from probe_load import FILE_BYTES, LOAD, fio, place_on_disk, probed

from kvreplay.probes import Backend, libbpf
from kvreplay.probes.libbpf import OBJECT, Programs, check_available
from kvtrace.core.errors import ProbeUnavailable

pytestmark = [pytest.mark.root, pytest.mark.bpf, pytest.mark.fio]


@pytest.fixture(scope="module")
def place():
    with place_on_disk() as found:
        yield found


SIZES = (64 << 10, 1 << 20)


@pytest.mark.parametrize("depth", [pytest.param(1, marks=pytest.mark.full), 8])
def test_counts_bytes_and_depth_equal_fios(place, tmp_path, depth):
    directory, disk = place
    with probed(tmp_path / "out", "--comm", LOAD, "--dev", disk) as found:
        done = {rw: [fio(directory, rw, size, depth) for size in SIZES] for rw in ("read", "write")}
    for rw, jobs in done.items():
        assert [job["total_ios"] for job in jobs] == [FILE_BYTES // size for size in SIZES]
        check_against_fio(found, rw, depth, disk)


def check_against_fio(found, rw, depth, disk):
    ios, moved = sum(FILE_BYTES // size for size in SIZES), FILE_BYTES * len(SIZES)
    block = found["block"]["directions"][rw]
    # Direct I/O alone: fio's own program and the filesystem's maps may be read from the disk, too.
    direct = [e for e in found["events"] if e["rwbs"] == ("RS" if rw == "read" else "WS")]
    assert sum(e["bytes"] for e in direct) == moved
    assert {e["comm"] for e in direct} == {LOAD}
    # An I/O that crosses the file's extents is several; the kernel's own splits and merges are
    # counted.
    assert (
        ios - block["bios_merged"] - block["requests_merged"]
        <= len(direct)
        <= ios + 16 + block["splits"]
    )
    assert ios <= block["bios"]
    assert (
        block["issued"]
        == block["bios"] + block["splits"] - block["bios_merged"] - block["requests_merged"]
    )
    assert block["issued"] == sum(s["count"] for s in block["block_sizes"])
    assert (
        block["issued_bytes"]
        == sum(s["count"] * s["bytes"] for s in block["block_sizes"])
        == block["bio_bytes"]
    )
    assert (block["lost_events"], block["lost_requests"], block["errors"]) == (0, 0, 0)
    # A kernel may complete a request without running the probe: no request may vanish for that.
    rows = [e for e in found["events"] if e["rwbs"].startswith(rw[0].upper())]
    seen = [e for e in rows if e["complete_ns"] is not None]
    assert len(rows) == block["issued"]
    assert len(seen) == block["completed"] == block["d2c"]["count"]
    assert (
        sum(e["bytes"] for e in seen)
        == block["completed_bytes"]
        == sum(s["bytes"] for s in block["per_second"])
    )
    assert sum(z["bytes"] for z in block["heat"]) == block["issued_bytes"]
    assert {z["device"] for z in block["heat"]} == {disk.name}
    check_application(found, rw, ios, moved)
    assert len(found["events"]) == found["event_rows"]
    issued = sum(e["issue_ns"] is not None for e in found["events"])
    # From the queue to the last issue, and on to the completion: the parts add up to the whole.
    assert block["q2d"]["count"] == block["d2c"]["count"]
    whole_ns = sum(e["complete_ns"] - e["insert_ns"] for e in seen)
    parts_ns = sum(block[part]["mean_ns"] * block[part]["count"] for part in ("q2d", "d2c"))
    assert abs(parts_ns - whole_ns) <= 1
    assert issued == sum(d["issued"] for d in found["block"]["directions"].values())
    ended = sum(d["completed"] + d["ends_not_seen"] for d in found["block"]["directions"].values())
    assert found["block"]["in_flight_at_end"] == len(found["events"]) - ended
    most = max(d["in_flight"] for d in block["in_flight_at_dispatch"])
    assert most >= (depth if depth == 1 else 2)
    # One request an I/O, nothing else read, and all completions seen.
    if len(found["events"]) == 2 * ios == 2 * block["completed"]:
        assert most <= depth
    for event in seen:
        assert event["insert_ns"] <= event["issue_ns"] < event["complete_ns"]
        assert (event["error"], event["device"]) == (0, disk.name)


def check_application(found, rw, ios, moved):
    """What fio submitted by libaio is what the application saw.

    Fio's own files are read by other calls.
    """
    calls = {c["call"]: c for c in found["application"]["calls"] if c["kind"] == rw}
    seen = calls["io_submit"]
    assert (seen["count"], seen["bytes"], seen["errors"]) == (ios, moved, 0)
    assert seen["without_io"] is None
    assert seen["direct"] == ios
    # Files that fio reads for itself come from the page cache: they are not mixed with I/O.
    without = sum(c["without_io"] or 0 for c in calls.values())
    times = found["application"]["times"]
    assert times[rw]["count"] == sum(c["count"] for c in calls.values()) - without
    assert times.get(f"{rw}_without_io", {"count": 0})["count"] == without


@pytest.mark.full
def test_another_process_is_not_counted(place, tmp_path):
    directory, disk = place
    dd = f"dd if=/dev/zero of={directory / 'other'} bs=256k count=100 oflag=direct conv=notrunc"
    forever = ["sh", "-c", f"while :; do {dd} 2>/dev/null; done"]
    with subprocess.Popen(forever, start_new_session=True) as background:
        try:
            with probed(tmp_path / "out", "--comm", LOAD, "--dev", disk) as found:
                fio(directory, "randread", 64 << 10, 8)
                assert background.poll() is None, "dd must still have been at work"
        finally:
            os.killpg(background.pid, signal.SIGKILL)
    assert {e["comm"] for e in found["events"]} == {LOAD}
    direct_bytes = sum(e["bytes"] for e in found["events"] if e["rwbs"] == "RS")
    assert direct_bytes == FILE_BYTES
    assert 256 << 10 not in {e["bytes"] for e in found["events"] if e["rwbs"] == "WS"}


@pytest.mark.full
def test_children_of_a_process_are_counted(place, tmp_path):
    directory, disk = place
    load = (
        f"read line; dd if={directory / 'data'} of=/dev/null bs=128k count=23 iflag=direct"
        " 2>/dev/null; exit"
    )
    with subprocess.Popen(["sh", "-c", load], stdin=subprocess.PIPE, text=True) as shell:
        with probed(tmp_path / "out", "--pid", shell.pid, "--dev", disk) as found:
            shell.communicate("go\n")
        direct = [e for e in found["events"] if e["rwbs"] == "RS" and e["comm"] == "dd"]
        assert sum(e["bytes"] for e in direct) == 23 * (128 << 10)
        assert all(e["pid"] != shell.pid for e in direct)


def test_probes_end_with_the_process_that_they_measure(place, tmp_path):
    """A replay that is killed cannot stop its probes, which ran on for ever."""
    _directory, disk = place
    with subprocess.Popen(["sleep", "600"]) as measured:
        command = [sys.executable, "-m", "kvreplay.cli", "probe", "--pid", str(measured.pid)]
        command += ["--dev", str(disk), "-o", str(tmp_path / "out")]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as probes:
            assert probes.stderr.readline() == "probes attached\n"
            measured.kill()
            measured.wait()
            assert probes.wait(60) == 0
    assert (tmp_path / "out" / "probe.json").exists()


@pytest.mark.full
@pytest.mark.alone
def test_the_applications_latency_is_fios_and_spans_the_devices(place, tmp_path):
    directory, disk = place
    with probed(tmp_path / "out", "--comm", LOAD, "--dev", disk, "--histograms-only") as found:
        done = fio(directory, "randread", 4096, 1, ioengine="psync", loops=3)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["probe.json"]
    assert found["event_rows"] is None
    block = found["block"]["directions"]["read"]
    sizes = {s["bytes"]: s["count"] for s in block["block_sizes"]}
    assert sizes[4096] >= done["total_ios"] == 3 * FILE_BYTES // 4096
    assert block["completed"] >= 0.8 * block["issued"]
    calls = {c["call"]: c for c in found["application"]["calls"] if c["kind"] == "read"}
    # fio's start reads a few files by pread64, too.
    direct = calls["pread64"]["count"] - calls["pread64"]["without_io"]
    assert done["total_ios"] <= direct <= done["total_ios"] + 100
    fio_ns, app_ns = (
        done["clat_ns"]["percentile"]["50.000000"],
        found["application"]["times"]["read"]["p50_ns"],
    )
    device_ns = block["d2c"]["p50_ns"]
    # With a call that waits, fio's completion latency is the call. The device's time lies within
    # it: what is left (system call, filesystem, interrupt, waking up) is some 10 µs, more than a
    # tenth where the drive takes 50 µs.
    sys.stdout.write(f"p50: fio {fio_ns} ns, application {app_ns:.0f} ns, D2C {device_ns:.0f} ns\n")
    assert 0.85 < app_ns / fio_ns < 1.1
    assert fio_ns / 2 < device_ns < app_ns * 1.05


@pytest.fixture(scope="module")
def headers(tmp_path_factory):
    """Name headers of this kernel to BCC, or skip."""
    programs = Programs(OBJECT.read_bytes())
    flags = programs.enumerators("req_flag_bits")
    programs.close()
    made = tree(
        tmp_path_factory.mktemp("headers"),
        sorted((f for f in flags if f[:5] == "__REQ"), key=flags.get),
    )
    with pytest.MonkeyPatch.context() as patch:
        if made is not None:
            patch.setenv("BCC_KERNEL_SOURCE", str(made))
        try:
            check_available(Backend.BCC)
        except ProbeUnavailable as why:
            pytest.skip(str(why))
        yield made


@pytest.mark.full
@pytest.mark.usefixtures("headers")
def test_bcc_counts_what_core_and_fio_count(place, tmp_path):
    directory, disk = place
    on = ("--comm", LOAD, "--dev", disk, "--backend")
    with (
        probed(tmp_path / "core", *on, "core") as core,
        probed(tmp_path / "bcc", *on, "bcc") as bcc,
    ):
        jobs = [fio(directory, rw, 64 << 10, 8) for rw in ("randread", "randwrite")]
        fio(directory, "randread", 4 << 10, 16, ioengine="io_uring")
        fio(directory, "write", 1 << 20, 1, ioengine="pvsync", fsync=1)
    assert (core["config"]["backend"], bcc["config"]["backend"]) == ("core", "bcc")
    for rw in ("read", "write"):
        ours, theirs = (found["block"]["directions"][rw] for found in (bcc, core))
        assert {k: v for k, v in ours.items() if isinstance(v, int)} == {
            k: v for k, v in theirs.items() if isinstance(v, int)
        }
        assert (ours["block_sizes"], ours["d2c"]["count"]) == (
            theirs["block_sizes"],
            theirs["d2c"]["count"],
        )
        # Half of the time apart at most: both see each request, one after the other.
        assert 0.5 < ours["d2c"]["mean_ns"] / theirs["d2c"]["mean_ns"] < 2
    moved = [
        (c["call"], c["kind"], c["count"], c["bytes"], c["errors"])
        for c in bcc["application"]["calls"]
    ]
    assert moved == [
        (c["call"], c["kind"], c["count"], c["bytes"], c["errors"])
        for c in core["application"]["calls"]
    ]
    submitted = {
        c["kind"]: c["count"] for c in bcc["application"]["calls"] if c["call"] == "io_submit"
    }
    assert submitted == {"read": jobs[0]["total_ios"], "write": jobs[1]["total_ios"]}
    rows = [
        [(e["sector"], e["bytes"], e["rwbs"], e["comm"]) for e in found["events"]]
        for found in (bcc, core)
    ]
    assert sorted(rows[0]) == sorted(rows[1])


@pytest.mark.full
@pytest.mark.usefixtures("headers")
def test_bcc_serves_kernels_without_btf(monkeypatch, tmp_path):
    assert check_available() == Backend.CORE
    monkeypatch.setattr(libbpf, "BTF", tmp_path / "vmlinux")
    assert check_available() == Backend.BCC
    with pytest.raises(ProbeUnavailable, match="try backend=bcc"):
        check_available(Backend.CORE)
    monkeypatch.setenv("BCC_KERNEL_SOURCE", str(tmp_path))
    with pytest.raises(ProbeUnavailable, match="headers"):
        check_available()


READ = ("dd", "of=/dev/null", "bs=128k", "count=23", "iflag=direct", "status=none")


@pytest.mark.full
def test_a_command_is_measured_from_its_start_to_its_end(place, tmp_path):
    directory, disk = place
    done = run_cli(
        *("kvreplay", "probe", "--dev", disk, "-o", tmp_path / "out", "--json", "--"),
        *(*READ, f"if={directory / 'data'}"),
    )  # fmt: skip
    found = json.loads(done.stdout)
    events = pq.read_table(tmp_path / "out" / "blocks.parquet").to_pylist()
    assert sum(e["bytes"] for e in events if e["rwbs"] == "RS") == 23 * (128 << 10)
    calls = [
        c
        for c in found["application"]["calls"]
        if c["kind"] == "read" and c["without_io"] < c["count"]
    ]
    assert sum(c["count"] - c["without_io"] for c in calls) >= 23
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["blocks.parquet", "probe.json"]
    for command, status in ((("false",), 1), (("sh", "-c", "kill -9 $$"), 137)):
        failed = run_cli(
            "kvreplay", "probe", "-o", tmp_path / command[0], "--", *command, check=False
        )
        assert failed.returncode == status
        assert f"{command[0]} ended" in failed.stderr
        assert (tmp_path / command[0] / "probe.json").exists()
    # One that goes on for longer than it is measured did not fail.
    run_cli("kvreplay", "probe", "-o", tmp_path / "timed", "--duration", "1s", "--", "sleep", "60")


def test_what_a_command_excludes(tmp_path):
    for arguments, message in (
        (("--comm", "dd", "--", *READ), "-- dd: this command is measured"),
        (
            ("--", "nobody-has-this"),
            "-- nobody-has-this:",
        ),
    ):
        refused = run_cli("kvreplay", "probe", "-o", tmp_path / "out", *arguments, check=False)
        assert (refused.returncode, message in refused.stderr) == (2, True), refused.stderr
        assert not (tmp_path / "out").exists()


@pytest.mark.full
def test_a_probe_that_is_killed_leaves_what_it_had_seen(place, tmp_path):
    directory, disk = place
    out = tmp_path / "out"
    command = [sys.executable, "-m", "kvreplay.cli", "probe", "--dev", disk, "-o", out]
    with subprocess.Popen([*map(str, command)], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr.readline() == "probes attached\n"
        subprocess.run([*READ, f"if={directory / 'data'}"], check=True)
        time.sleep(1)
        process.kill()
    assert not (out / "blocks.parquet").exists()
    done = run_cli("kvreplay", "recover", out)
    events = pq.read_table(out / "blocks.parquet").to_pylist()
    assert f"{len(events):,} requests" in done.stderr
    assert sum(e["bytes"] for e in events if e["rwbs"] == "RS" and e["comm"] == "dd") == 23 * (
        128 << 10
    )
    assert [p.name for p in out.iterdir()] == ["blocks.parquet"]
    assert run_cli("kvdistill", "fio", out, "-o", tmp_path / "jobs").returncode == 0
