"""GPU tiers.

Whole replays over a stand-in whose device memory is the host's, what is refused, and a real GPU.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import gpu_reason, run_cli, write_trace
from phrases import pattern, shows
from whole import read_table

from kvreplay.engine.limits import check
from kvreplay.engine.native_engine import refusal
from kvreplay.plan.replay_config import Config
from kvreplay.run.replay import FinishedRun, Replay, replay
from kvreplay.tiers.files import FileTier
from kvreplay.tiers.gpu import CudaDevice, CuFilePath, GdsTier, GpuTier, Kvikio, Mirror, gpu_options
from kvreplay.tiers.tier import StorageOptions
from kvtrace.core.errors import ConfigError, DeviceError, ProbeUnavailable
from kvtrace.core.schema import OPS

if TYPE_CHECKING:
    from collections.abc import Callable

IO = 16384
MIB = 1 << 20
COPY_NS = 1000


class StandIn:
    """CUDA's driver over a GPU of `total` bytes whose memory is the host's.

    By its events every copy takes 1 µs.
    """

    def __init__(self, total: int = 1 << 30, *, piece: int = 1 << 30, fails_on: str = "") -> None:
        self.total, self._piece, self._fails_on = total, piece, fails_on
        self.memory: dict[int, Any] = {}
        self.on_device: set[int] = set()
        self.pinned: dict[int, int] = {}
        self.copies: list[tuple[str, int]] = []
        self._lock = threading.Lock()
        self.cuGetErrorName, self.cuDeviceGetCount, self.cuDeviceGetName = (
            self._name_error,
            self._count,
            self._name,
        )
        self.cuMemGetInfo_v2, self.cuMemAlloc_v2, self.cuMemHostAlloc = (
            self._info,
            self._allocate,
            self._allocate_host,
        )
        self.cuMemFree_v2 = self.cuMemFreeHost = self._free
        self.cuMemHostRegister_v2, self.cuMemHostUnregister = self._pin, self._unpin
        self.cuMemcpy = lambda to, source, nbytes: self._copy(
            to.value, source.value, nbytes.value, None
        )
        # The engine's C calls these.
        number, pointer, took = ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_float)
        self.cuCtxSetCurrent = ctypes.CFUNCTYPE(number, pointer)(lambda _: 0)
        self.cuEventRecord = ctypes.CFUNCTYPE(number, pointer, pointer)(lambda *_: 0)
        self.cuEventSynchronize = ctypes.CFUNCTYPE(number, pointer)(lambda _: 0)
        self.cuMemcpyAsync = ctypes.CFUNCTYPE(number, pointer, pointer, ctypes.c_size_t, pointer)(
            self._copy
        )
        self.cuEventElapsedTime = ctypes.CFUNCTYPE(number, took, pointer, pointer)(self._took)

    def __getattr__(self, name: str) -> Any:
        """Return what else of the driver has nothing to do here.

        Devices, contexts, streams and events.
        """
        if not name.startswith("cu"):
            raise AttributeError(name)
        return lambda *_: 0

    def _name_error(self, code: int, name: Any) -> None:
        name._obj.value = {2: b"CUDA_ERROR_OUT_OF_MEMORY", 700: b"CUDA_ERROR_ILLEGAL_ADDRESS"}[code]

    def _count(self, count: Any) -> int:
        count._obj.value = 1
        return 0

    def _name(self, name: Any, *_: Any) -> int:
        name.value = b"stand-in"
        return 0

    def _info(self, free: Any, total: Any) -> int:
        free._obj.value = total._obj.value = self.total
        return 0

    def _allocate(self, at: Any, nbytes: Any) -> int:
        if nbytes.value > self._piece:
            return 2
        self._allocate_host(at, nbytes)
        self.on_device.add(at._obj.value)
        return 0

    def _allocate_host(self, at: Any, nbytes: Any, *_: Any) -> int:
        memory = ctypes.create_string_buffer(nbytes.value)
        at._obj.value = ctypes.addressof(memory)
        self.memory[at._obj.value] = memory
        return 0

    def _free(self, at: Any) -> int:
        del self.memory[at.value]
        return 0

    def _pin(self, at: Any, nbytes: Any, _: int) -> int:
        self.pinned[at.value] = nbytes.value
        return 0

    def _unpin(self, at: Any) -> int:
        del self.pinned[at.value]
        return 0

    def _copy(self, to: int, source: int, nbytes: int, _: Any) -> int:
        ends = [
            "hd"[any(d <= at < d + len(self.memory[d]) for d in self.on_device)]
            for at in (source, to)
        ]
        if (kind := "2".join(ends)) == self._fails_on:
            return 700
        with self._lock:
            self.copies.append((kind, nbytes))
        ctypes.memmove(to, source, nbytes)
        return 0

    def _took(self, took_ms: Any, *_: Any) -> int:
        took_ms[0] = COPY_NS / 1e6
        return 0


def row(
    op: str, obj: int, *, tier: int = 0, phase: str = "load", length: int = 40_960, ts: int = 0
) -> Any:
    return (ts, op, tier, phase, obj, 0, length, None, None, 0)


ROWS = [
    row("write", 0),
    row("write", 1),
    row("read", 0),
    row("read", 1),
    row("read", 2),
    row("delete", 0),
]


def run(
    tmp_path: Path, tier: Any, rows: list[Any] = ROWS, **options: Any
) -> tuple[FinishedRun, list[dict[str, Any]]]:
    trace = write_trace(tmp_path / "t.parquet", rows)
    config = Config(tiers={"gpu": "gpu"}, io_bytes=IO, queue_depth=4, **options)
    outcome = replay(
        Replay(config, trace, tmp_path / "run", ["kvreplay"], is_forced=True),
        tiers=[tier, None, None],
    )
    return outcome, read_table(tmp_path / "run" / "ops.parquet", OPS).to_pylist()


def gpu(device: StandIn, **options: Any) -> GpuTier:
    return GpuTier("gpu", 0, IO, lambda number: CudaDevice(number, device), **options)


def test_what_is_written_to_a_gpu_is_read_from_it(tmp_path: Path) -> None:
    device = StandIn()
    outcome, ops = run(tmp_path, gpu(device, is_verified=True), is_verified=True)
    assert outcome.error is None
    assert [(o["outcome"], o["engine"]) for o in ops] == [("ok", "gpu")] * 6
    assert outcome.run.verification is not None
    assert (outcome.run.verification.corrupt_blocks, outcome.run.verification.checked_blocks) == (
        0,
        30,
    )
    facts = outcome.run.tiers["gpu"]
    # Two writes and one object that was there before; each of 40 KiB is three I/Os.
    assert facts["transfers"]["h2d"] == {
        "copies": 9,
        "bytes": 3 * 40_960,
        "event_ns": 9 * COPY_NS,
    }
    assert facts["transfers"]["d2h"]["copies"] == 9
    assert (facts["device"], facts["device_bytes"], facts["copy"]) == ("stand-in", 1 << 30, "host")
    assert facts["pinned_bytes"] == facts["copy_threads"] * IO
    kinds = Counter(kind for kind, _ in device.copies)
    assert (kinds, sum(nbytes for _, nbytes in device.copies)) == ({"h2d": 9, "d2h": 9}, 6 * 40_960)
    assert device.memory == {}


def test_copies_within_the_gpu_touch_no_host_memory(tmp_path: Path) -> None:
    device = StandIn()
    outcome, _ = run(tmp_path, gpu(device, is_within=True))
    assert outcome.error is None
    assert {kind for kind, _ in device.copies} == {"d2d"}
    assert outcome.run.tiers["gpu"]["transfers"]["d2d"]["copies"] == len(device.copies) == 18
    assert outcome.run.tiers["gpu"]["pinned_bytes"] == 0


def test_a_gpu_stands_beside_files(tmp_path: Path) -> None:
    if refusal() is not None:
        pytest.skip(f"no io_uring: {refusal()}")
    (tmp_path / "d").mkdir()
    demotion = [
        row("read", 0, phase="demote"),
        row("write", 0, tier=2, phase="demote"),
        row("read", 0, tier=2),
    ]
    trace = write_trace(tmp_path / "t.parquet", [row("write", 0, phase="prefill"), *demotion])
    config = Config(tiers={"gpu": "gpu"}, io_bytes=IO, is_verified=True, engine="uring")
    tiers = [
        gpu(StandIn(), is_verified=True),
        None,
        FileTier("nvme", tmp_path / "d", StorageOptions(is_buffered=True)),
    ]
    outcome = replay(Replay(config, trace, tmp_path / "run", []), tiers=tiers)
    assert outcome.error is None
    assert outcome.run.verification is not None
    assert (outcome.run.verification.corrupt_blocks, outcome.run.verification.checked_blocks) == (
        0,
        20,
    )


def test_a_trace_that_does_not_fit_is_refused_with_what_to_set(tmp_path: Path) -> None:
    # At most objects 0, 1 and 2 of 40 KiB.
    fits = "123 kB … stand-in … 122 kB … limit"
    with pytest.raises(DeviceError, match=pattern(fits)):
        run(tmp_path, gpu(StandIn(119 << 10)))


def test_a_gpu_that_refuses_one_large_piece_names_the_setting(tmp_path: Path) -> None:
    device = StandIn(piece=100 << 10)
    with pytest.raises(
        DeviceError,
        match=r"stand-in.*158 kB.*OUT_OF_MEMORY",
    ):
        run(tmp_path, gpu(device))
    assert device.memory == {}


def test_a_failed_copy_is_a_failed_operation(tmp_path: Path) -> None:
    outcome, ops = run(tmp_path, gpu(StandIn(fails_on="d2h")), on_error="continue")
    assert [o["outcome"] for o in ops] == ["ok", "ok", "error", "error", "error", "ok"]
    assert outcome.summary.errors == 3
    outcome, _ = run(tmp_path, gpu(StandIn(fails_on="d2h")))
    assert shows(str(outcome.error), "row 2: … object 0: CUDA: CUDA_ERROR_ILLEGAL_ADDRESS")


def test_an_object_that_grows_keeps_its_content(tmp_path: Path) -> None:
    grown = [
        (0, "write", 0, "prefill", 0, 0, 4096, None, None, 0),
        (0, "write", 0, "decode", 0, 4096, 4096, None, None, 0),
    ]
    outcome, _ = run(
        tmp_path,
        gpu(StandIn(), is_verified=True),
        [*grown, row("read", 0, length=8192)],
        is_verified=True,
    )
    assert outcome.run.verification is not None
    assert (outcome.run.verification.corrupt_blocks, outcome.run.verification.checked_blocks) == (
        0,
        2,
    )


class HostFile:
    """What kvikio opens, over the host's memory."""

    def __init__(self, path: str, mode: str) -> None:
        flags = {"r": os.O_RDONLY, "r+": os.O_RDWR, "w": os.O_RDWR | os.O_CREAT | os.O_TRUNC}[mode]
        self._fd = os.open(path, flags, 0o600)

    def raw_read(self, buf: Mirror, size: int, file_offset: int, dev_offset: int) -> int:
        found = os.pread(self._fd, size, file_offset)
        ctypes.memmove(buf.__cuda_array_interface__["data"][0] + dev_offset, found, len(found))
        return len(found)

    def raw_write(self, buf: Mirror, size: int, file_offset: int, dev_offset: int) -> int:
        return os.pwrite(
            self._fd, ctypes.string_at(buf.gpu_address + dev_offset, size), file_offset
        )

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        os.close(self._fd)


class Library:
    """kvikio without GPUDirect Storage."""

    def open(self, path: str, mode: str) -> HostFile:
        return HostFile(path, mode)

    def data_path(self) -> CuFilePath:
        return CuFilePath(
            is_direct=False,
            allows_compat=True,
            library="stand-in",
            note="compat mode",
        )


def gds(
    tmp_path: Path, device: StandIn, library: Callable[[], Any] = Library, **options: Any
) -> GdsTier:
    (tmp_path / "d").mkdir()
    how = StorageOptions(is_buffered=True, fsync="close")
    return GdsTier(
        "gpu",
        tmp_path / "d",
        how,
        lambda number: CudaDevice(number, device),
        library,
        **({"is_verified": True} | options),
    )


@pytest.mark.parametrize("engine", ["threads", "uring"])
def test_files_by_cufile_hold_what_was_written(tmp_path: Path, engine: str) -> None:
    if engine == "uring" and refusal() is not None:
        pytest.skip(f"no io_uring: {refusal()}")
    device = StandIn()
    rows = [
        *ROWS,
        (0, "write", 0, "decode", 1, 40_960, 4096, None, None, 0),
        row("read", 1, length=45_056),
    ]
    outcome, ops = run(tmp_path, gds(tmp_path, device), rows, is_verified=True, engine=engine)
    assert outcome.error is None
    assert {o["engine"] for o in ops} == {"gds"}
    assert outcome.run.verification is not None
    assert (outcome.run.verification.corrupt_blocks, outcome.run.verification.checked_blocks) == (
        0,
        41,
    )
    found = outcome.run.tiers["gpu"]["gds"]
    assert (found["is_direct"], found["device"]) == (False, "stand-in")
    assert any("compat mode" in note for note in outcome.run.notes)
    assert (device.pinned, device.memory) == ({}, {})


def test_reads_that_are_not_verified_stay_on_the_device(tmp_path: Path) -> None:
    device = StandIn()
    run(tmp_path, gds(tmp_path, device, is_verified=False))
    assert {kind for kind, _ in device.copies} == {"h2d"}


def test_an_error_of_kvikio_is_a_failed_operation(tmp_path: Path) -> None:
    class Broken(Library):
        def open(self, path: str, mode: str) -> HostFile:
            raise RuntimeError(f"cuFile error at: {Path(path).suffix} {mode}")

    outcome, _ = run(tmp_path, gds(tmp_path, StandIn(), Broken), [row("write", 0)])
    assert "cuFile: cuFile error at:" in str(outcome.error)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speed": "1"}, "'speed' … device, copy"),
        ({"device": "x"}, "device … 0"),
        ({"copy": "both"}, "copy … host"),
        ({"copy": "device"}, "verify needs"),
    ],
)
def test_what_is_no_gpu_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^--tier x: .*{pattern(message)}"):
        gpu_options(options, "--tier x", is_verified=True)


def test_the_options_of_a_gpu() -> None:
    assert gpu_options({}, "", is_verified=False) == (0, False)
    assert gpu_options({"device": "3", "copy": "device"}, "", is_verified=False) == (3, True)


def test_gds_needs_a_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gds.*tier"):
        check(Config(tiers={"gpu": "gpu", "cpu": "ram"}, is_gds=True))
    trace = write_trace(tmp_path / "t.parquet", ROWS)
    done = run_cli(
        "kvreplay", "run", trace, "--tier", f"gpu={tmp_path / 'x.dat'}", "--gds", check=False
    )
    assert (done.returncode, shows(done.stderr, "--gds … directory")) == (
        2,
        True,
    )


def test_without_a_gpu_a_run_says_what_to_do(tmp_path: Path) -> None:
    reason = gpu_reason()
    if reason is None:
        pytest.skip("there is a GPU")
    trace = write_trace(tmp_path / "t.parquet", ROWS)
    done = run_cli(
        "kvreplay", "run", trace, "--tier", "gpu=gpu", "-o", tmp_path / "run", check=False
    )
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
        trace = write_trace(
            tmp_path / "t.parquet",
            [row("write", 0, length=8 * MIB), row("read", 0, length=8 * MIB)],
        )
        run_cli(
            "kvreplay",
            "run",
            trace,
            "--tier",
            f"gpu=gpu:copy={copy}",
            *verify,
            "-o",
            tmp_path / copy,
        )
        found = json.loads((tmp_path / copy / "run.json").read_text())
        assert found["status"] == "complete"
        kinds = {"host": {"h2d", "d2h"}, "device": {"d2d"}}[copy]
        assert set(found["tiers"]["gpu"]["transfers"]) == kinds


@pytest.mark.gpu
def test_copies_are_those_that_the_gpu_counts(tmp_path: Path) -> None:
    """By CUPTI, in PyTorch's profiler.

    Of two objects and of one that was there before, each of three I/Os.
    """
    torch = pytest.importorskip("torch")
    torch.zeros(1, device="cuda")
    trace = write_trace(tmp_path / "t.parquet", ROWS)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run_cli(
            "kvreplay", "run", trace, "--tier", "gpu=gpu", "--io-bytes", IO, "-o", tmp_path / "run"
        )
    profile.export_chrome_trace(str(tmp_path / "profile.json"))
    events = json.loads((tmp_path / "profile.json").read_text())["traceEvents"]
    seen = Counter()
    for event in events:
        if event.get("cat") == "gpu_memcpy" and "Pinned" in event["name"]:
            kind = "h2d" if "HtoD" in event["name"] else "d2h"
            seen.update({(kind, "copies"): 1, (kind, "bytes"): event["args"]["bytes"]})
    transfers = json.loads((tmp_path / "run" / "run.json").read_text())["tiers"]["gpu"]["transfers"]
    assert {
        (kind, of): transfers[kind][of] for kind in transfers for of in ("copies", "bytes")
    } == seen
    assert seen["h2d", "copies"] == seen["d2h", "copies"] == 9


@pytest.mark.gpu
def test_a_real_gpu_refuses_what_does_not_fit() -> None:
    device = CudaDevice(0)
    with pytest.raises(MemoryError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        device.allocate(2 * device.memory_bytes()[1])
    device.close()
