"""Known numbers of I/Os on a real disk: the probes count what fio did, and nobody else."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from conftest import ROOT

from kvreplay.host import block_device

pytestmark = [pytest.mark.root, pytest.mark.bcc, pytest.mark.fio]
FILE_BYTES = 32 << 20
LOAD = f"load{os.getpid()}"
"""Our fio's name, so that no other fio on the machine is taken for it."""


@pytest.fixture(scope="module")
def place():
    """A directory on a disk, and the disk's path, with a file of written data in it."""
    for base in (None, ROOT):
        with tempfile.TemporaryDirectory(dir=base, prefix="kvreplay-probe-") as name:
            disk = block_device(Path(name))
            if disk is not None:
                (Path(name) / LOAD).symlink_to(shutil.which("fio"))
                fio(Path(name), "write", 1 << 20, 1)
                yield Path(name), Path("/dev") / disk.name
                return
    pytest.skip("neither the temporary directory nor the checkout lies on a disk")


def fio(directory, rw, block_bytes, depth, **options):
    """Run a fio job over the whole file; return its part of the JSON."""
    arguments = {"rw": rw, "bs": block_bytes, "iodepth": depth, "size": FILE_BYTES, "direct": 1,
                 "ioengine": "libaio", "filename": directory / "data", "name": "job"} | options  # fmt: skip
    command = [str(directory / LOAD), "--output-format=json", *(f"--{k}={v}" for k, v in arguments.items())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["jobs"][0]["read" if "read" in rw else "write"]


@contextmanager
def probed(output, *arguments):
    """Yield a dict while the probes are attached; it then has the result and the events."""
    command = [sys.executable, "-m", "kvreplay.cli", "probe", *map(str, arguments), "-o", str(output), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        line = process.stderr.readline()
        assert line == "probes attached\n", line + process.stderr.read()
        found = {}
        try:
            yield found
        finally:
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        assert process.returncode == 0, err
        found |= json.loads(out)
    if (output / "blocks.parquet").exists():
        found["events"] = pq.read_table(output / "blocks.parquet").to_pylist()


@pytest.mark.parametrize("depth", [1, 8])
@pytest.mark.parametrize("block_bytes", [64 << 10, 1 << 20])
def test_counts_bytes_and_depth_equal_fios(place, tmp_path, depth, block_bytes):
    directory, disk = place
    with probed(tmp_path / "out", "--comm", LOAD, "--dev", disk) as found:
        done = {rw: fio(directory, rw, block_bytes, depth) for rw in ("read", "write")}
    for rw, of in done.items():
        check_against_fio(found, of, rw, depth, block_bytes, disk)


def check_against_fio(found, done, rw, depth, block_bytes, disk):
    ios = FILE_BYTES // block_bytes
    assert done["total_ios"] == ios
    block = found["block"]["directions"][rw]
    # Direct I/O alone: fio's own program and the filesystem's maps may be read from the disk, too.
    direct = [e for e in found["events"] if e["rwbs"] == ("RS" if rw == "read" else "WS")]
    assert sum(e["bytes"] for e in direct) == FILE_BYTES
    assert {e["comm"] for e in direct} == {LOAD}
    # An I/O that crosses the file's extents is several; the kernel's own splits and merges are counted.
    assert ios - block["bios_merged"] - block["requests_merged"] <= len(direct) <= ios + 16 + block["splits"]
    assert ios <= block["bios"]
    assert block["issued"] == block["bios"] + block["splits"] - block["bios_merged"] - block["requests_merged"]
    assert block["issued"] == block["q2d"]["count"] == sum(s["count"] for s in block["block_sizes"])
    assert block["issued_bytes"] == sum(s["count"] * s["bytes"] for s in block["block_sizes"]) == block["bio_bytes"]
    assert (block["lost_events"], block["lost_requests"], block["errors"]) == (0, 0, 0)
    # A kernel may complete a request without running the probe: no request may vanish for that.
    rows = [e for e in found["events"] if e["rwbs"].startswith(rw[0].upper())]
    seen = [e for e in rows if e["complete_ns"] is not None]
    assert len(rows) == block["issued"]
    assert len(seen) == block["completed"] == block["d2c"]["count"]
    assert sum(e["bytes"] for e in seen) == block["completed_bytes"] == sum(s["bytes"] for s in block["per_second"])
    assert sum(z["bytes"] for z in block["heat"]) == block["issued_bytes"]
    assert {z["device"] for z in block["heat"]} == {disk.name}
    check_application(found, rw, block_bytes)
    assert len(found["events"]) == found["event_rows"]
    issued = sum(e["issue_ns"] is not None for e in found["events"])
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


def check_application(found, rw, block_bytes):
    """What fio submitted by libaio is what the application saw; fio's own files are read by other calls."""
    calls = {c["call"]: c for c in found["application"]["calls"] if c["kind"] == rw}
    seen = calls["io_submit"]
    assert (seen["count"], seen["bytes"], seen["errors"]) == (FILE_BYTES // block_bytes, FILE_BYTES, 0)
    assert seen["without_io"] is None
    assert found["application"]["times"][rw]["count"] == sum(c["count"] for c in calls.values())


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


def test_children_of_a_process_are_counted(place, tmp_path):
    directory, disk = place
    load = f"read line; dd if={directory / 'data'} of=/dev/null bs=128k count=23 iflag=direct 2>/dev/null; exit"
    with subprocess.Popen(["sh", "-c", load], stdin=subprocess.PIPE, text=True) as shell:
        with probed(tmp_path / "out", "--pid", shell.pid, "--dev", disk) as found:
            shell.communicate("go\n")
        direct = [e for e in found["events"] if e["rwbs"] == "RS" and e["comm"] == "dd"]
        assert sum(e["bytes"] for e in direct) == 23 * (128 << 10)
        assert all(e["pid"] != shell.pid for e in direct)


def test_histograms_only_writes_no_events_and_d2c_is_near_fios_latency(place, tmp_path):
    directory, disk = place
    with probed(tmp_path / "out", "--comm", LOAD, "--dev", disk, "--histograms-only") as found:
        done = fio(directory, "randread", 4096, 1, ioengine="psync")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["probe.json"]
    assert found["event_rows"] is None
    block = found["block"]["directions"]["read"]
    sizes = {s["bytes"]: s["count"] for s in block["block_sizes"]}
    assert sizes[4096] >= done["total_ios"]
    device_ns, fio_ns = block["d2c"]["p50_ns"], done["clat_ns"]["percentile"]["50.000000"]
    assert block["completed"] >= 0.8 * block["issued"]
    # The device's time lies within fio's; how near they are depends on the machine.
    sys.stdout.write(f"D2C p50 {device_ns:.0f} ns, fio's p50 {fio_ns} ns: ratio {device_ns / fio_ns:.3f}\n")
    assert fio_ns / 2 < device_ns < fio_ns * 1.1
