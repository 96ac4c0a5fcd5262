"""Mooncake store: a master and one client with SSD offload, over TCP on this machine.

The client does its file I/O in C++, out of Python's sight: whoever starts this records it by
strace.
"""

import contextlib
import ctypes
import importlib.util
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from engine_drivers.recorder import Contents, Notebook, page_keys, version_of

PAGE_TOKENS = 64
PACKAGES = ("mooncake-transfer-engine-non-cuda", "mooncake-transfer-engine")
HEARTBEAT_S = 10
"""How often the client offloads, as Mooncake has it.

MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS says otherwise.
"""
HEARTBEATS_WITHOUT_WRITES = 3
"""After so many, all is offloaded that will be."""
BUFFER_BYTES = 64 << 20
TRIES, WAIT_S = 600, 0.05
_MASTER_STARTS_S = 30.0


def drive(recorder: Notebook) -> None:
    """Serve the requests one after another, then wait until no more pages are offloaded."""
    heartbeat_s = int(
        os.environ.setdefault("MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS", str(HEARTBEAT_S))
    )
    os.environ.setdefault("MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES", str(256 << 20))
    _load_cuda_runtime()
    from mooncake.store import MooncakeDistributedStore

    asked = recorder.settings
    length = PAGE_TOKENS * asked.token_bytes
    contents, store = Contents(length), MooncakeDistributedStore()
    with _master() as address:
        result = store.setup(
            "127.0.0.1", "P2PHANDSHAKE", asked.cpu_bytes, BUFFER_BYTES, "tcp", "", address, None, True, asked.directory
        )  # fmt: skip
        if result:
            raise RuntimeError(f"Mooncake's client does not start: setup returned {result}")
        recorder.facts(
            engine="Mooncake store", version=version_of(*PACKAGES), chunk_tokens=PAGE_TOKENS
        )
        refused = 0
        for prompt in recorder.prompts():
            keys = page_keys(prompt, PAGE_TOKENS, "{:.16}_{}")
            there = store.batch_is_exist(keys) if keys else []
            found = next((n for n, state in enumerate(there) if state != 1), len(keys))
            recorder.hit(found * PAGE_TOKENS)
            for key in keys[:found]:
                store.get(key)
            for key in keys[found:]:
                refused += not _put(store, key, bytes(contents.cut(length)))
        recorder.facts(refused_puts=refused)
        _wait_for_offload(Path(asked.directory), heartbeat_s)


def _load_cuda_runtime() -> None:
    """Load the CUDA runtime of the package nvidia-cuda-runtime-cu12, if it is there.

    Mooncake's client wants one.
    """
    with contextlib.suppress(ModuleNotFoundError):
        found = importlib.util.find_spec("nvidia.cuda_runtime")
        for place in (found.submodule_search_locations or []) if found else []:
            for library in Path(place).glob("lib/libcudart.so.*"):
                ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def _put(store: object, key: str, page: bytes) -> bool:
    """Put a page, again while the pool is full; return whether it went in."""
    for _try in range(TRIES):
        if store.put(key, page) == 0:  # type: ignore[attr-defined]
            return True
        time.sleep(WAIT_S)
    return False


@contextlib.contextmanager
def _master() -> Iterator[str]:
    """Yield the address of a master of our own."""
    import mooncake

    port, metrics = _free_port(), _free_port()
    program = Path(mooncake.__path__[0]) / "mooncake_master"
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    command = [str(program), f"--rpc_port={port}", "--enable_offload=true"]
    process = subprocess.Popen([*command, f"--metrics_port={metrics}"], stdout=sys.stderr)  # noqa: S603 - Mooncake's
    try:
        until = time.monotonic() + _MASTER_STARTS_S
        while time.monotonic() < until:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port), timeout=1),
            ):
                break
            if process.poll() is not None:
                raise RuntimeError(f"mooncake_master ended with {process.returncode}")
            time.sleep(WAIT_S)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait_for_offload(directory: Path, heartbeat_s: int) -> None:
    before, quiet = -1, 0
    while quiet < HEARTBEATS_WITHOUT_WRITES:
        files = sum(1 for path in directory.rglob("*") if path.is_file())
        quiet = quiet + 1 if files == before else 0
        before = files
        time.sleep(heartbeat_s)
