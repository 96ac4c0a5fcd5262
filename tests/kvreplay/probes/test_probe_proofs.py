"""Calls of known number, requeues, a cgroup, and another tool on the same load.

The probes agree with all.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from probe_load import FILE_BYTES, LOAD, fio, place_on_disk, probed

from kvreplay.probes.libbpf import Filter, load, resolve
from kvreplay.probes.probe_session import PROGRAMS, block_figures

pytestmark = [pytest.mark.root, pytest.mark.bpf, pytest.mark.fio]

CALLS = """
import os, sys
path, fd = sys.argv[1], os.open(sys.argv[1], os.O_RDWR)
sys.stdin.readline()
for _ in range(7):
    os.pwrite(fd, bytes(8192), 0)
os.fsync(fd)
os.fsync(fd)
os.pwritev(fd, [bytes(100), bytes(23)], 4096)
os.fdatasync(fd)
os.posix_fadvise(fd, 0, 8192, os.POSIX_FADV_DONTNEED)
for _ in range(5):
    os.pread(fd, 8192, 0)
os.preadv(fd, [bytearray(1000)], 0)
pipe = os.pipe()
for _ in range(11):
    os.write(pipe[1], bytes(8192))
    os.read(pipe[0], 8192)
try:
    os.pread(fd, 10, -1)
except OSError:
    pass
sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def place():
    with place_on_disk() as found:
        yield found


@pytest.mark.full
def test_calls_on_files_are_counted_by_interface(place, tmp_path):
    directory, disk = place
    (directory / "small").write_bytes(bytes(8192))
    command = [sys.executable, "-c", CALLS, str(directory / "small")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as process:
        with probed(tmp_path / "out", "--pid", process.pid, "--dev", disk) as found:
            process.stdin.write("go\n")
            process.stdin.flush()
            wait_until_blocked(process.pid)
        process.communicate("end\n")
    application = found["application"]
    calls = {(c["kind"], c["call"]): c for c in application["calls"]}
    seen = {
        key: (c["count"], c["bytes"], c["errors"])
        for key, c in calls.items()
        if c["call"] != "read"
    }
    # The write to the pipe is none on a file; the read before the file's start fails.
    assert seen == {
        ("write", "pwrite64"): (7, 7 * 8192, 0),
        ("write", "pwritev2"): (1, 123, 0),
        ("fsync", "fsync"): (2, None, 0),
        ("fdatasync", "fdatasync"): (1, None, 0),
        ("read", "pread64"): (5, 5 * 8192, 1),
        ("read", "preadv2"): (1, 1000, 0),
    }
    assert calls["write", "pwrite64"]["without_io"] >= 1
    # Dropped from the page cache, the data comes from the disk once, and then from the cache again.
    assert calls["read", "pread64"]["without_io"] == 4
    assert calls["read", "pread64"]["without_io_bytes"] == 4 * 8192
    assert calls["read", "preadv2"]["without_io"] == 1
    times = {name: t["count"] for name, t in application["times"].items()}
    # The second fsync has no write before it; of the reads, the first follows the advice.
    assert (times["write_to_fsync"], times["fadvise_to_read"]) == (2, 1)
    assert (times["fsync"], times["fdatasync"]) == (2, 1)
    # What the page cache took or gave is timed apart: the reads from it are no reads of the disk.
    for kind, most in (("read", 8192), ("write", 8)):
        done, without = (
            sum(c[n] for (k, _call), c in calls.items() if k == kind)
            for n in ("count", "without_io")
        )
        assert times[f"{kind}_without_io"] == without
        assert times.get(kind, 0) == done - without < most
    assert sum(c["direct"] for c in calls.values()) == 0
    assert found["block"]["directions"]["read"]["issued_bytes"] >= 8192


def wait_until_blocked(pid):
    """Wait until the process has done its work and waits on its standard input again."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if "pipe" in Path(f"/proc/{pid}/wchan").read_text():
            return
        time.sleep(0.05)
    raise AssertionError("the process does not come back to its standard input")


@pytest.mark.full
def test_other_engines_of_fio_are_counted_exactly(place, tmp_path):
    directory, disk = place
    with probed(tmp_path / "out", "--comm", LOAD, "--dev", disk) as found:
        written = fio(directory, "randwrite", 128 << 10, 4, ioengine="io_uring")
        read = fio(directory, "randread", 128 << 10, 1, ioengine="pvsync2")
    calls = {
        (c["kind"], c["call"]): (c["count"], c["bytes"], c["errors"])
        for c in found["application"]["calls"]
    }
    assert calls["write", "io_uring"] == (written["total_ios"], FILE_BYTES, 0)
    assert calls["read", "preadv2"] == (read["total_ios"], FILE_BYTES, 0)
    assert found["application"]["times"]["write"]["count"] == written["total_ios"]
    for rwbs in ("WS", "RS"):
        assert sum(e["bytes"] for e in found["events"] if e["rwbs"] == rwbs) == FILE_BYTES


READS = """
import mmap, os, sys, time
from concurrent.futures import ThreadPoolExecutor
fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
sys.stdin.readline()
with ThreadPoolExecutor(16) as threads:
    list(threads.map(lambda i: os.preadv(fd, [mmap.mmap(-1, 4096)], 4096 * i), range(400)))
for i in range(200):
    time.sleep(0.005)
    os.preadv(fd, [mmap.mmap(-1, 4096)], 4096 * i)
sys.stdin.readline()
"""


@pytest.mark.full
def test_requests_whose_end_is_not_seen_leave_the_count(place):
    """Without the probe at completions no end is seen.

    The kernel's own state of a request takes it out.
    """
    directory, disk = place
    command = [sys.executable, "-c", READS, str(directory / "data")]
    before = requests_of(disk)
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as process:
        with closing(
            load(Filter(pid=process.pid, disks=resolve(disk)), has_events=False)
        ) as programs:
            programs.detach("block_rq_complete")
            programs.shared()["origin_ns"] = time.monotonic_ns()
            process.stdin.write("go\n")
            process.stdin.flush()
            wait_until_blocked(process.pid)
            # As a probe ends: counts are read when nothing changes them any more. Others go on
            # while it is taken off.
            for program in PROGRAMS:
                programs.detach(program)
                if program == "block_rq_insert":
                    command = [
                        "dd",
                        f"if={directory / 'data'}",
                        "of=/dev/null",
                        "bs=4k",
                        "count=1000",
                        "iflag=direct",
                    ]
                    subprocess.run(command, check=True, capture_output=True)
            found = block_figures(programs, programs.shared()[0], {}, 11)
        process.communicate("end\n")
    read = found.directions["read"]
    # Neighbours of the burst may be merged into one request, on a busy disk many.
    assert read.issued + read.bios_merged + read.requests_merged >= 500
    assert (read.completed, read.q2d.count, read.d2c.count) == (0, 0, 0)
    # One at a time, 5 ms apart: what the burst left in the count is gone, and so is each before the
    # next. But for what others use of the kernel's requests while we look: they seem to be in
    # flight still.
    assert found.in_flight_at_end <= 2 + requests_of(disk) - before - read.issued
    assert read.ends_not_seen == read.issued - found.in_flight_at_end
    assert sum(d.count for d in read.in_flight_at_dispatch if d.in_flight <= 2) >= 100


def requests_of(disk: str) -> int:
    """Return how many requests a disk has done."""
    fields = (Path("/sys/class/block") / Path(disk).name / "stat").read_text().split()
    return int(fields[0]) + int(fields[4])


@pytest.mark.full
def test_a_requeue_does_not_leak(place, tmp_path):
    directory, disk = place
    dd = f"dd if=/dev/zero of={directory / 'other'} bs=4M count=16 oflag=direct conv=notrunc"
    others = ["sh", "-c", f"while :; do {dd} 2>/dev/null; done"]
    with subprocess.Popen(others, start_new_session=True) as background:
        try:
            with probed(tmp_path / "out", "--comm", LOAD, "--dev", disk) as found:
                # Deeper than the driver's own queue: it gives back what does not fit.
                fio(directory, "randwrite", 256 << 10, 256, loops=4)
        finally:
            os.killpg(background.pid, signal.SIGKILL)
    block = found["block"]["directions"]["write"]
    direct = [e for e in found["events"] if e["rwbs"] == "WS"]
    assert sum(e["bytes"] for e in direct) == 4 * FILE_BYTES
    assert block["issued"] == sum(s["count"] for s in block["block_sizes"])
    unended = sum(
        d["issued"] - d["completed"] - d["ends_not_seen"]
        for d in found["block"]["directions"].values()
    )
    assert found["block"]["in_flight_at_end"] == unended
    most = max(d["in_flight"] for d in block["in_flight_at_dispatch"])
    requests = 256 + block["splits"] + block["ends_not_seen"]
    assert most <= requests
    assert block["requeued"]["count"] == block["requeues"]
    if not block["requeues"]:
        pytest.skip("this disk gave no request back: its queue is deep enough")


@pytest.mark.full
def test_only_a_cgroups_processes_are_counted(place, tmp_path):
    directory, disk = place
    root = next(
        (
            line.split()[1]
            for line in Path("/proc/mounts").read_text().splitlines()
            if " cgroup2 " in line
        ),
        None,
    )
    if root is None:
        pytest.skip("no cgroup2 is mounted")
    group = Path(root) / f"kvreplay-{os.getpid()}"
    try:
        (group / "inner").mkdir(parents=True)
    except OSError as error:
        pytest.skip(f"no cgroup can be made: {error}")
    dd = f"dd if={directory / 'data'} of=/dev/null bs=64k iflag=direct 2>/dev/null"
    try:
        with probed(tmp_path / "out", "--cgroup", group, "--dev", disk) as found:
            subprocess.run(["sh", "-c", f"{dd} count=29"], check=True)
            inside = f"echo $$ > {group / 'inner' / 'cgroup.procs'} && {dd} count=17"
            subprocess.run(["sh", "-c", inside], check=True)
        direct = [e for e in found["events"] if e["rwbs"] == "RS"]
        assert sum(e["bytes"] for e in direct) == 17 * (64 << 10)
        assert {e["comm"] for e in direct} == {"dd"}
    finally:
        (group / "inner").rmdir()
        group.rmdir()


@pytest.mark.full
def test_bpftrace_agrees_on_the_same_load(place, tmp_path):
    if shutil.which("bpftrace") is None:
        pytest.skip("bpftrace is not installed (apt-get install bpftrace)")
    if not Path("/sys/kernel/tracing/events/block/block_io_start").is_dir():
        pytest.skip("this kernel has no tracepoint block_io_start")
    directory, disk = place
    status = disk.stat()
    number = os.major(status.st_rdev) << 20 | os.minor(status.st_rdev)
    mine = f'/comm == "{LOAD}" && args->dev == {number}/'
    program = (
        'BEGIN { printf("attached\\n"); } '
        f"tracepoint:block:block_io_start {mine} {{ @started[args->rwbs] = count(); }} "
        f"tracepoint:block:block_bio_queue {mine} "
        "{ @bios[args->rwbs] = count(); @sectors[args->rwbs] = sum(args->nr_sector); } "
        f"tracepoint:block:block_split {mine} {{ @splits[args->rwbs] = count(); }} "
        f"tracepoint:block:block_bio_backmerge {mine} {{ @merged[args->rwbs] = count(); }}"
    )
    with (
        probed(tmp_path / "out", "--comm", LOAD, "--dev", disk) as found,
        subprocess.Popen(
            ["bpftrace", "-e", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as other,
    ):
        while line := other.stdout.readline():
            if line == "attached\n":
                break
        done = fio(directory, "write", 1 << 20, 8)
        other.send_signal(signal.SIGINT)
        out, err = other.communicate()
    assert "@bios[WS]" in out, err

    def said(name):
        """Return bpftrace's sum over all flags of writes."""
        lines = (line.split(": ") for line in out.splitlines() if line.startswith(f"@{name}["))
        return sum(int(value) for key, value in lines if "W" in key)

    block = found["block"]["directions"]["write"]
    assert (block["queued"], block["bios"], block["splits"]) == (
        said("started"),
        said("bios"),
        said("splits"),
    )
    assert block["bio_bytes"] == 512 * said("sectors") == block["issued_bytes"] == done["io_bytes"]
    assert said("merged") <= block["bios_merged"]


@pytest.fixture
def partition(tmp_path):
    """The path of a partition that starts at 1 MiB of a loop device, and the loop device's name."""
    (tmp_path / "image").touch()
    os.truncate(tmp_path / "image", 32 << 20)
    if not (shutil.which("losetup") and shutil.which("addpart")):
        pytest.skip("losetup or addpart is not installed (apt-get install util-linux mount)")
    made = subprocess.run(
        ["losetup", "-f", "--show", tmp_path / "image"], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no loop device: {made.stderr.strip()}")
    loop = Path(made.stdout.strip())
    path = loop.with_name(f"{loop.name}p1")
    try:
        subprocess.run(["addpart", loop, "1", "2048", "32768"], check=True)
        if not path.is_block_device():
            pytest.skip(f"{path} does not appear")
        yield path, loop.name
    finally:
        subprocess.run(["delpart", loop, "1"], check=False)
        subprocess.run(["losetup", "-d", loop], check=True)


@pytest.mark.full
def test_a_partitions_requests_are_its_disks(partition, tmp_path):
    path, disk = partition
    with probed(tmp_path / "out", "--dev", path) as found:
        dd = ["dd", "if=/dev/zero", f"of={path}", "bs=64k", "count=23", "oflag=direct"]
        subprocess.run(dd, check=True, capture_output=True)
    direct = sorted((e for e in found["events"] if e["rwbs"] == "WS"), key=lambda e: e["insert_ns"])
    assert [e["bytes"] for e in direct] == [64 << 10] * 23
    assert {e["device"] for e in direct} == {disk}
    assert [e["sector"] for e in direct] == [2048 + 128 * i for i in range(23)]
    written = [
        (c["call"], c["count"], c["bytes"])
        for c in found["application"]["calls"]
        if c["kind"] == "write"
    ]
    assert written == [("write", 23, 23 << 16)]
