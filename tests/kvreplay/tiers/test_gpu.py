"""GPU tiers: whole replays over a stand-in whose device memory is the host's, what is refused, and a real GPU."""

from __future__ import annotations

import ctypes
import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import gpu_reason, run_cli, write_trace

from kvreplay.config.config import Config
from kvreplay.config.limits import check
from kvreplay.engine.engine import refusal
from kvreplay.run.run import FinishedRun, Replay, replay
from kvreplay.tiers.files import FileTier
from kvreplay.tiers.gpu import TURN_BYTES, Copy, CudaDevice, GdsTier, GpuTier, Kvikio, Way, gpu_options
from kvreplay.tiers.tier import StorageOptions
from kvtrace.core.errors import ConfigError, DeviceError, ProbeUnavailable
from kvtrace.core.schema import OPS
from kvtrace.core.tables import read_table

if TYPE_CHECKING:
    from collections.abc import Callable

IO = 16384
MIB = 1 << 20
COPY_NS = 1000


class Memory:
    """Device memory that is the host's."""

    def __init__(self, nbytes: int) -> None:
        self.buffer = ctypes.create_string_buffer(nbytes)
        self.ptr = ctypes.addressof(self.buffer)


class StandIn:
    """A GPU of `total` bytes that copies on the host and notes each copy; every one takes 1 µs by its events."""

    def __init__(self, total: int = 1 << 30, *, fails_on: Copy | None = None, takes: int | None = None) -> None:
        self.name, self.total, self._fails_on, self._takes = "stand-in", total, fails_on, takes
        self.copies: list[tuple[Copy, int]] = []
        self.pinned: dict[int, int] = {}
        self.allocated: list[int] = []
        self._lock = threading.Lock()

    def memory_bytes(self) -> tuple[int, int]:
        return self.total - sum(self.allocated), self.total

    def allocate(self, nbytes: int) -> Memory:
        if self._takes is not None and len(self.allocated) >= self._takes:
            raise MemoryError("out of memory")
        self.allocated.append(nbytes)
        return Memory(nbytes)

    def as_array(self, memory: Any, nbytes: int) -> Any:
        assert len(memory.buffer) == nbytes
        return memory

    def pin(self, address: int, nbytes: int) -> None:
        self.pinned[address] = nbytes

    def unpin(self, address: int) -> None:
        del self.pinned[address]

    def copy(self, to: int, source: int, nbytes: int, kind: Copy) -> int:
        if kind is self._fails_on:
            raise OSError(5, "CUDA: cudaErrorIllegalAddress")
        ctypes.memmove(to, source, nbytes)
        with self._lock:
            self.copies.append((kind, nbytes))
        return COPY_NS


def row(op: str, obj: int, *, tier: int = 0, phase: str = "load", length: int = 40_960, ts: int = 0) -> Any:
    return (ts, op, tier, phase, obj, 0, length, None, None, 0)


ROWS = [row("write", 0), row("write", 1), row("read", 0), row("read", 1), row("read", 2), row("delete", 0)]


def run(tmp_path: Path, tier: Any, rows: list[Any] = ROWS, **options: Any) -> tuple[FinishedRun, list[dict[str, Any]]]:
    trace = write_trace(tmp_path / "t.parquet", rows)
    config = Config(tiers={"gpu": "gpu"}, io_bytes=IO, queue_depth=4, **options)
    outcome = replay(Replay(config, trace, tmp_path / "run", ["kvreplay"], is_forced=True), tiers=[tier, None, None])
    return outcome, read_table(tmp_path / "run" / "ops.parquet", OPS).to_pylist()


def gpu(device: StandIn, **options: Any) -> GpuTier:
    return GpuTier("gpu", 0, IO, lambda _: device, **options)


def test_what_is_written_to_a_gpu_is_read_from_it(tmp_path: Path) -> None:
    device = StandIn()
    outcome, ops = run(tmp_path, gpu(device, is_verified=True), is_verified=True)
    assert outcome.error is None
    assert [(o["outcome"], o["engine"]) for o in ops] == [("ok", "gpu")] * 6
    assert outcome.verification is not None
    assert (outcome.verification.corrupt_blocks, outcome.verification.checked_blocks) == (0, 30)
    facts = outcome.run.tiers["gpu"]
    # Two writes and one object that was there before; each of 40 KiB is three I/Os.
    assert facts["transfers"]["h2d"] == {
        "copies": 9,
        "bytes": 3 * 40_960,
        "device_ns": 9 * COPY_NS,
        "device_bytes_per_s": 3 * 40_960 * 10**9 / (9 * COPY_NS),
    }
    assert facts["transfers"]["d2h"]["copies"] == 9
    assert (facts["device"], facts["device_bytes"], facts["copy"]) == ("stand-in", 1 << 30, "host")
    assert facts["pinned_bytes"] == outcome.run.engine.buffer_bytes
    assert device.pinned == {}


def test_copies_within_the_gpu_touch_no_host_memory(tmp_path: Path) -> None:
    device = StandIn()
    outcome, _ = run(tmp_path, gpu(device, is_within=True))
    assert outcome.error is None
    assert {kind for kind, _ in device.copies} == {Copy.D2D}
    assert device.allocated[0] == TURN_BYTES
    assert outcome.run.tiers["gpu"]["pinned_bytes"] == 0


def test_a_gpu_stands_beside_files(tmp_path: Path) -> None:
    if refusal() is not None:
        pytest.skip(f"no io_uring: {refusal()}")
    (tmp_path / "d").mkdir()
    demotion = [row("read", 0, phase="demote"), row("write", 0, tier=2, phase="demote"), row("read", 0, tier=2)]
    trace = write_trace(tmp_path / "t.parquet", [row("write", 0, phase="prefill"), *demotion])
    config = Config(tiers={"gpu": "gpu"}, io_bytes=IO, is_verified=True, engine="uring")
    tiers = [gpu(StandIn(), is_verified=True), None, FileTier("nvme", tmp_path / "d", StorageOptions(is_direct=False))]
    outcome = replay(Replay(config, trace, tmp_path / "run", []), tiers=tiers)
    assert outcome.error is None
    assert outcome.verification is not None
    assert (outcome.verification.corrupt_blocks, outcome.verification.checked_blocks) == (0, 20)


def test_a_trace_that_does_not_fit_is_refused_with_what_to_set(tmp_path: Path) -> None:
    # At most objects 0, 1 and 2 of 40 KiB.
    fits = "holds up to 123 kB there, but stand-in has 122 kB free; replay less with --limit, or make the trace with a"
    with pytest.raises(DeviceError, match=fits):
        run(tmp_path, gpu(StandIn(119 << 10)))


def test_running_out_of_memory_later_says_what_to_set(tmp_path: Path) -> None:
    outcome, _ = run(tmp_path, gpu(StandIn(takes=2)))
    assert isinstance(outcome.error, DeviceError)
    assert "no space: 41.0 kB do not fit the 1.07 GB that stand-in has free; replay less with --limit" in str(
        outcome.error
    )


def test_a_failed_copy_is_a_failed_operation(tmp_path: Path) -> None:
    outcome, ops = run(tmp_path, gpu(StandIn(fails_on=Copy.D2H)), on_error="continue")
    assert [o["outcome"] for o in ops] == ["ok", "ok", "error", "error", "error", "ok"]
    assert outcome.summary.errors == 3


def test_an_object_that_grows_keeps_its_content(tmp_path: Path) -> None:
    grown = [
        (0, "write", 0, "prefill", 0, 0, 4096, None, None, 0),
        (0, "write", 0, "decode", 0, 4096, 4096, None, None, 0),
    ]
    outcome, _ = run(
        tmp_path, gpu(StandIn(), is_verified=True), [*grown, row("read", 0, length=8192)], is_verified=True
    )
    assert outcome.verification is not None
    assert (outcome.verification.corrupt_blocks, outcome.verification.checked_blocks) == (0, 2)


class HostFile:
    """What kvikio opens, over the host's memory."""

    def __init__(self, path: str, mode: str) -> None:
        flags = {"r": os.O_RDONLY, "r+": os.O_RDWR, "w": os.O_RDWR | os.O_CREAT | os.O_TRUNC}[mode]
        self._fd = os.open(path, flags, 0o600)

    def raw_read(self, buf: Memory, size: int, file_offset: int, dev_offset: int) -> int:
        found = os.pread(self._fd, size, file_offset)
        ctypes.memmove(buf.ptr + dev_offset, found, len(found))
        return len(found)

    def raw_write(self, buf: Memory, size: int, file_offset: int, dev_offset: int) -> int:
        return os.pwrite(self._fd, ctypes.string_at(buf.ptr + dev_offset, size), file_offset)

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        os.close(self._fd)


class Library:
    """kvikio without GPUDirect Storage."""

    def open(self, path: str, mode: str) -> HostFile:
        return HostFile(path, mode)

    def way(self) -> Way:
        return Way(is_direct=False, allows_compat=True, library="stand-in", note="compat mode: data went through host")


def gds(tmp_path: Path, device: StandIn, library: Callable[[], Any] = Library, **options: Any) -> GdsTier:
    (tmp_path / "d").mkdir()
    how = StorageOptions(is_direct=False, fsync="close")
    return GdsTier("gpu", tmp_path / "d", how, lambda _: device, library, **({"is_verified": True} | options))


@pytest.mark.parametrize("engine", ["threads", "uring"])
def test_files_by_cufile_hold_what_was_written(tmp_path: Path, engine: str) -> None:
    if engine == "uring" and refusal() is not None:
        pytest.skip(f"no io_uring: {refusal()}")
    device = StandIn()
    rows = [*ROWS, (0, "write", 0, "decode", 1, 40_960, 4096, None, None, 0), row("read", 1, length=45_056)]
    outcome, ops = run(tmp_path, gds(tmp_path, device), rows, is_verified=True, engine=engine)
    assert outcome.error is None
    assert {o["engine"] for o in ops} == {"gds"}
    assert outcome.verification is not None
    assert (outcome.verification.corrupt_blocks, outcome.verification.checked_blocks) == (0, 41)
    found = outcome.run.tiers["gpu"]["gds"]
    assert (found["is_direct"], found["device"]) == (False, "stand-in")
    assert any("compat mode" in note for note in outcome.run.notes)
    assert any("never tested on hardware" in note for note in outcome.run.notes)
    assert device.pinned == {}


def test_reads_that_are_not_verified_stay_on_the_device(tmp_path: Path) -> None:
    device = StandIn()
    run(tmp_path, gds(tmp_path, device, is_verified=False))
    assert {kind for kind, _ in device.copies} == {Copy.H2D}


def test_an_error_of_kvikio_is_a_failed_operation(tmp_path: Path) -> None:
    class Broken(Library):
        def open(self, path: str, mode: str) -> HostFile:
            raise RuntimeError(f"cuFile error at: {Path(path).suffix} {mode}")

    outcome, _ = run(tmp_path, gds(tmp_path, StandIn(), Broken), [row("write", 0)])
    assert "cuFile: cuFile error at:" in str(outcome.error)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speed": "1"}, "unknown option 'speed'; gpu takes device, copy"),
        ({"device": "x"}, "device is a number from 0"),
        ({"copy": "both"}, "copy is host"),
        ({"copy": "device"}, "--verify needs the data"),
    ],
)
def test_what_is_no_gpu_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^--tier x: {message}"):
        gpu_options(options, "--tier x", is_verified=True)


def test_the_options_of_a_gpu() -> None:
    assert gpu_options({}, "", is_verified=False) == (0, False)
    assert gpu_options({"device": "3", "copy": "device"}, "", is_verified=False) == (3, True)


def test_gds_needs_a_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--gds moves files, but no --tier names storage"):
        check(Config(tiers={"gpu": "gpu", "cpu": "ram"}, is_gds=True))
    trace = write_trace(tmp_path / "t.parquet", ROWS)
    done = run_cli("kvreplay", "run", trace, "--tier", f"gpu={tmp_path / 'x.dat'}", "--gds", check=False)
    assert (done.returncode, "--gds reads and writes files; name one directory" in done.stderr) == (2, True)


def test_without_a_gpu_a_run_says_what_to_do(tmp_path: Path) -> None:
    reason = gpu_reason()
    if reason is None:
        pytest.skip("there is a GPU")
    trace = write_trace(tmp_path / "t.parquet", ROWS)
    done = run_cli("kvreplay", "run", trace, "--tier", "gpu=gpu", "-o", tmp_path / "run", check=False)
    assert done.returncode in (4, 5)
    assert "gpu=sim" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run" / "run.json").exists()


def test_without_kvikio_gds_says_what_to_install() -> None:
    try:
        Kvikio()
    except ProbeUnavailable as error:
        assert "pip install -e '.[gds]'" in str(error)  # noqa: PT017 - installed elsewhere
    else:
        pytest.skip("kvikio is installed")


@pytest.mark.gpu
def test_a_real_gpu_gives_back_what_it_was_given(tmp_path: Path) -> None:
    for copy in ("host", "device"):
        verify = ["--verify"] if copy == "host" else []
        trace = write_trace(tmp_path / "t.parquet", [row("write", 0, length=8 * MIB), row("read", 0, length=8 * MIB)])
        run_cli("kvreplay", "run", trace, "--tier", f"gpu=gpu:copy={copy}", *verify, "-o", tmp_path / copy)
        found = json.loads((tmp_path / copy / "run.json").read_text())
        assert found["status"] == "complete"
        kinds = {"host": {"h2d", "d2h"}, "device": {"d2d"}}[copy]
        assert set(found["tiers"]["gpu"]["transfers"]) == kinds


@pytest.mark.gpu
def test_a_real_gpu_refuses_what_does_not_fit() -> None:
    device = CudaDevice(0)
    with pytest.raises(MemoryError):
        device.allocate(2 * device.memory_bytes()[1])
