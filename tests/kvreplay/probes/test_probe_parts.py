"""The parts of the probes that need no kernel.

Buckets, percentiles, devices, events, the command's errors.
"""

import os
import signal
import struct
from typing import ClassVar

import numpy as np
import pytest
from conftest import run_cli
from whole import read_table

from kvreplay.probes import libbpf
from kvreplay.probes import probe_session as session
from kvreplay.probes.libbpf import (
    EVENT,
    SLOTS,
    SUB_BITS,
    Cgroup,
    Disk,
    Filter,
    Programs,
    above,
    beneath,
    device_name,
    find_cgroup,
    histogram,
    resolve,
    zone_shift,
)
from kvreplay.probes.probe_session import blocks_batch, rwbs
from kvreplay.tiers.host import devices_beneath
from kvtrace.core.errors import ConfigError, DeviceError, TraceError
from kvtrace.core.metadata import describe
from kvtrace.core.run.probe_file import BlockFigures, Bucket, ProbeFile
from kvtrace.core.run.run_file import BLOCKS_JOURNAL
from kvtrace.core.schema import BLOCKS
from kvtrace.core.statistics import bounds

BITS = {
    "__REQ_SYNC": 11,
    "__REQ_META": 12,
    "__REQ_FUA": 17,
    "__REQ_PREFLUSH": 18,
    "__REQ_RAHEAD": 19,
}


def test_slots_join_without_gaps_and_are_narrow():
    assert bounds(0, SUB_BITS) == (0, 1)
    assert bounds(127, SUB_BITS) == (127, 128)
    assert bounds(128, SUB_BITS) == (128, 130)
    assert bounds(SLOTS - 1, SUB_BITS)[1] == 1 << 40
    end = 0
    for slot in range(SLOTS):
        first, below = bounds(slot, SUB_BITS)
        assert first == end
        assert (below - first - 1) * 64 <= first
        end = below


def test_an_entry_is_read_once_though_the_kernel_begins_again():
    """It does where the key that it is to go on from is gone, as requests of others come and go."""

    class Kernel:
        keys: ClassVar = [1, 2, 3, 1, 2, 4]

        def bpf_map_get_next_key(self, _table, _key, following):
            if not self.keys:
                return -1
            following.raw = struct.pack("<I", self.keys.pop(0))
            return 0

        def bpf_map_lookup_elem(self, _table, key, value):
            value.raw = struct.pack("<Q", 10 * struct.unpack("<I", key.raw)[0])
            return 0

    programs = object.__new__(Programs)
    programs._lib, programs.descriptor = Kernel(), lambda _name: 0
    found = [(int(key["dev"]), int(value["value"])) for key, value in programs.entries("in_flight")]
    assert found == [(1, 10), (2, 20), (3, 30), (4, 40)]


def test_percentiles_are_nearest_rank_and_null_when_few():
    slots = [0] * SLOTS
    slots[10], slots[128] = 60, 40  # 60 of 10 ns, 40 of 128 or 129 ns
    found = histogram(slots, 60 * 10 + 40 * 129)
    assert (found.count, found.p50_ns, found.p95_ns, found.p99_ns) == (100, 10, 128.5, 128.5)
    assert (found.p99_9_ns, found.p99_99_ns) == (None, None)
    assert found.mean_ns == 57.6
    assert found.longest_below_ns == 130
    assert found.log2_ns == [
        Bucket(8, 16, 60),
        Bucket(16, 32, 0),
        Bucket(32, 64, 0),
        Bucket(64, 128, 0),
        Bucket(128, 256, 40),
    ]
    nothing = histogram([0] * SLOTS, 0)
    assert (nothing.count, nothing.mean_ns, nothing.p50_ns, nothing.longest_below_ns) == (
        0,
        None,
        None,
        None,
    )


def test_a_value_beyond_the_last_slot_has_no_upper_bound():
    slots = [0] * SLOTS
    slots[-1] = 1
    assert histogram(slots, 1 << 41).longest_below_ns is None


@pytest.fixture
def sys_tree(tmp_path):
    """A disk sda with a partition, a disk sdb, dm-0 over sda1 and sdb, md0 over sdb, with a
    partition, and loop0.
    """
    sys = tmp_path / "sys"
    numbers = {
        "sda": "8:0",
        "sda/sda1": "8:1",
        "sdb": "8:16",
        "dm-0": "253:0",
        "loop0": "7:0",
        "md0": "9:5",
    }
    for path, number in (numbers | {"md0/md0p1": "259:0"}).items():
        block = sys / "devices" / path
        # A partition has no queue.
        (block if "/" in path else block / "queue").mkdir(parents=True)
        (block / "dev").write_text(f"{number}\n")
        (sys / "dev" / "block").mkdir(parents=True, exist_ok=True)
        (sys / "dev" / "block" / number).symlink_to(block)
    (sys / "devices/sda/sda1/partition").write_text("1\n")
    (sys / "devices/dm-0/slaves").mkdir()
    (sys / "devices/dm-0/slaves/sda1").symlink_to(sys / "devices/sda/sda1")
    (sys / "devices/dm-0/slaves/sdb").symlink_to(sys / "devices/sdb")
    (sys / "devices/md0/slaves").mkdir()
    (sys / "devices/md0/slaves/sdb").symlink_to(sys / "devices/sdb")
    (sys / "devices/loop0/loop").mkdir()
    (sys / "devices/loop0/loop/backing_file").write_text(f"{tmp_path / 'gone'}\n")
    return sys


def test_devices_resolve_to_the_disks_that_do_the_io(sys_tree):
    sda, sdb = Disk("sda", 8 << 20), Disk("sdb", 8 << 20 | 16)
    assert beneath("8:0", sys_tree) == [sda]
    assert beneath("8:1", sys_tree) == [sda]
    assert beneath("253:0", sys_tree) == [sda, sdb]
    assert beneath("9:5", sys_tree) == beneath("259:0", sys_tree) == [sdb]
    # A loop device issues requests of its own; what lies on its file's disk is beneath it, too, but
    # not for the probes.
    assert beneath("7:0", sys_tree) == [Disk("loop0", 7 << 20)]
    part, loop, disk = (sys_tree / "devices" / name for name in ("md0/md0p1", "loop0", "sdb"))
    assert list(devices_beneath(part)) == [part, disk]
    assert (list(devices_beneath(loop, has_loops=False)), list(devices_beneath(loop))) == (
        [loop],
        [loop, None],
    )
    assert device_name(8 << 20 | 16, sys_tree) == "sdb"
    assert device_name(9 << 20, sys_tree) == "9:0"
    with pytest.raises(DeviceError, match="device 9:9"):
        beneath("9:9", sys_tree)


def test_files_on_what_lies_upon_a_disk_count_as_on_it(sys_tree):
    sda, sdb = Disk("sda", 8 << 20), Disk("sdb", 8 << 20 | 16)
    assert above([sda], sys_tree) == [253 << 20, 8 << 20, 8 << 20 | 1]
    assert above([sdb], sys_tree) == [253 << 20, 259 << 20, 8 << 20 | 16, 9 << 20 | 5]
    assert above([], sys_tree) == []


def test_places_are_at_most_1024_a_disk_and_1_mib_at_least(tmp_path):
    for name, sectors in (("small", 2048), ("one", (1 << 21) + 1), ("large", 1 << 32)):
        (tmp_path / "block" / name).mkdir(parents=True)
        (tmp_path / "block" / name / "size").write_text(f"{sectors}\n")
    shifts = {name: zone_shift([Disk(name, 0)], tmp_path) for name in ("small", "one", "large")}
    assert shifts == {"small": 11, "one": 12, "large": 22}  # 1 MiB; 1 GiB and a sector; 2 TiB
    assert zone_shift([], tmp_path) == 22


def test_a_cgroup_is_its_directorys_inode_and_depth(tmp_path):
    root = tmp_path / "unified"
    (root / "a" / "b").mkdir(parents=True)
    (tmp_path / "self").mkdir()
    mounts = tmp_path / "self" / "mountinfo"
    sys = "23 1 0:1 / /sys rw - tmpfs tmpfs rw\n"
    mounts.write_text(f"{sys}24 1 0:2 / {root} rw - cgroup2 cgroup2 rw\n")
    wanted = Cgroup((root / "a" / "b").stat().st_ino, 2)
    assert (
        find_cgroup(root / "a" / "b", tmp_path)
        == find_cgroup(libbpf.Path("/a/b"), tmp_path)
        == wanted
    )
    assert find_cgroup(root, tmp_path).level == 0
    with pytest.raises(ConfigError, match="version 2"):
        find_cgroup(tmp_path, tmp_path)
    mounts.write_text(sys)
    with pytest.raises(ConfigError, match="mount -t cgroup2"):
        find_cgroup(root, tmp_path)


def test_what_is_no_block_device_is_refused(tmp_path):
    with pytest.raises(DeviceError, match="block device"):
        resolve(tmp_path)
    with pytest.raises(DeviceError, match="No such file"):
        resolve(tmp_path / "absent")


@pytest.mark.parametrize(
    ("flags", "letters"),
    [
        (0 | 1 << 11, "RS"),
        (1 | 1 << 11, "WS"),
        (0 | 1 << 19, "RA"),
        (1 | 1 << 18 | 1 << 17, "FWF"),
        (3, "D"),
        (0 | 1 << 11 | 1 << 12, "RSM"),
        (34, "N"),
    ],
)
def test_flags_are_written_as_the_kernel_does(flags, letters):
    assert rwbs(flags, BITS) == letters


def test_events_become_rows_with_nulls_for_what_was_not_seen():
    whole = struct.pack(
        "<4Q6I16s", 1100, 1200, 1500, 77, 4096, 1 << 11, 0xFFF << 20, 42, 10, 0, b"fio"
    )
    open_ = struct.pack("<4Q6I16s", 1300, 0, 0, 78, 512, 1, 0xFFF << 20, 43, 0, 0, b"dd")
    assert len(whole) == EVENT.itemsize
    rows = blocks_batch(whole + open_, 1000, BITS).to_pylist()
    assert rows[0] == {
        "insert_ns": 100,
        "issue_ns": 200,
        "complete_ns": 500,
        "device": "4095:0",
        "sector": 77,
        "bytes": 4096,
        "rwbs": "RS",
        "pid": 42,
        "comm": "fio",
        "error": 5,
    }
    assert (
        rows[1]["insert_ns"],
        rows[1]["issue_ns"],
        rows[1]["complete_ns"],
        rows[1]["error"],
    ) == (
        300,
        None,
        None,
        None,
    )


def test_a_name_is_matched_to_its_end():
    config = Filter(comm="fio").config()
    assert config["is_comm_wanted"] == 1
    assert config["comm_low"] == int.from_bytes(b"fio", "little")
    assert config["comm_mask_low"] == 0xFFFFFFFF  # three letters and the zero behind them
    assert (config["comm_high"], config["comm_mask_high"]) == (0, 0)
    everyone = Filter().config()
    assert everyone["own_pid"] == os.getpid()
    assert not any(
        everyone[name]
        for name in ("is_comm_wanted", "wanted_pid", "wanted_cgroup", "is_device_wanted")
    )


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (Filter(comm="a", pid=1), "comm"),
        (Filter(comm="x" * 16), "1 to 15 bytes"),
        (Filter(pid=2**22 + 1), "process"),
    ],
)
def test_filters_that_nobody_passes_are_refused(wanted, said):
    with pytest.raises(ConfigError, match=said):
        wanted.check()


def test_the_command_says_in_one_line_why_it_cannot(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("x")
    done = run_cli("kvreplay", "probe", "-o", tmp_path / "full", check=False)
    is_root = os.geteuid() == 0
    code, words = (DeviceError.exit_code, "not empty") if is_root else (5, "needs root")
    assert done.returncode == code
    assert done.stderr.startswith("kvreplay: error: ")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert (tmp_path / "full" / "mine").exists()


def test_an_unavailable_probe_leaves_nothing_behind(tmp_path, monkeypatch):
    from kvtrace.core.errors import ProbeUnavailable

    monkeypatch.setattr(libbpf.os, "geteuid", lambda: 1000)
    with pytest.raises(ProbeUnavailable, match="root"):
        session.measure(
            Filter(), tmp_path / "out", 1, [], has_events=True, announce=lambda _line: None
        )
    assert not (tmp_path / "out").exists()


def test_a_flush_that_the_kernel_passed_on_has_no_issuer():
    """As `--comm fio` sees fdatasync.

    Queued and completed by fio, issued as a request that belongs to no process.
    """

    class Kernel:
        def entries(self, _table):
            return ()

    counted = np.zeros(1, libbpf.SHARED["values"])[0]
    for direction, queued, issued in (("flush", 26, 0), ("write", 5, 5)):
        of = counted["counts"]["block"][0, libbpf.DIRECTIONS.index(direction)]
        for name, count in (("queued", queued), ("issued", issued), ("completed", queued)):
            of[libbpf.COUNTS.index(name)] = count
    found = session.block_figures(Kernel(), counted, {}, 11)
    flush, write = found.directions["flush"], found.directions["write"]
    assert (flush.queued, flush.issued, flush.issued_bytes, flush.completed) == (26, None, None, 26)
    assert (write.issued, write.issued_bytes) == (5, 0)
    (table,) = session.probe_document(ProbeFile(block=found)).chapters[0].tables
    assert [row[:3] for row in table.rows] == [["write", 5, 5], ["flush", None, 26]]
    assert "flushes" in table.note


@pytest.fixture
def no_kernel(monkeypatch):
    """Probes that need no kernel: neither root nor tracefs."""
    monkeypatch.setattr(session, "Session", NoProbes)
    monkeypatch.setattr(session, "check_available", lambda _backend: libbpf.Backend.CORE)


class NoProbes:
    """A session without a kernel."""

    start_ns, duration_ns = 0, 1

    def __init__(self, *_wanted):
        pass

    def close(self):
        pass

    def finish(self):
        return BlockFigures(directions={}, zone_bytes=1, in_flight_at_end=0), None


@pytest.mark.usefixtures("no_kernel")
def test_a_signal_while_attaching_ends_the_session_cleanly(tmp_path):
    found = session.measure(
        Filter(),
        tmp_path / "out",
        None,
        [],
        has_events=False,
        announce=lambda _line: os.kill(os.getpid(), signal.SIGINT),
    )
    assert found.was_stopped is True
    assert (tmp_path / "out" / "probe.json").is_file()


@pytest.mark.usefixtures("no_kernel")
def test_only_a_failing_probe_leaves_its_journal(tmp_path, monkeypatch):
    monkeypatch.setattr(NoProbes, "poll", lambda _self: 1 / 0, raising=False)
    ask = {"has_events": True, "announce": lambda _line: None}
    with pytest.raises(ZeroDivisionError):
        session.measure(Filter(), tmp_path / "out", None, [], **ask)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [BLOCKS_JOURNAL]
    session.measure(Filter(), tmp_path / "out", None, [], **ask, is_over=lambda: True)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "blocks.parquet",
        "probe.json",
    ]


def test_a_cut_journal_gives_the_batches_before_the_cut(tmp_path):
    events = np.zeros(5, dtype=EVENT)
    events["sector"], events["queue_ns"], events["issue_ns"], events["complete_ns"] = (
        range(5),
        10,
        20,
        30,
    )
    ends = []
    with session.block_journal(tmp_path, describe(BLOCKS, "kvreplay", [], {})) as write:
        for _ in range(3):
            write(blocks_batch(events.tobytes(), 0, BITS))
            ends.append((tmp_path / BLOCKS_JOURNAL).stat().st_size)
    for size, rows in (
        (ends[2], 15),
        (ends[2] - 1, 10),
        (ends[1] + 1, 10),
        (ends[1] - 200, 5),
        (ends[0], 5),
    ):
        folder = tmp_path / f"{size}"
        folder.mkdir()
        (folder / BLOCKS_JOURNAL).write_bytes((tmp_path / BLOCKS_JOURNAL).read_bytes()[:size])
        assert session.recover_blocks(folder) == rows
        assert read_table(folder / "blocks.parquet", BLOCKS)["sector"].to_pylist() == [
            *range(5)
        ] * (rows // 5)
    (folder / BLOCKS_JOURNAL).write_bytes(b"no stream at all")
    with pytest.raises(TraceError, match="journal"):
        session.recover_blocks(folder)
