"""Every backend does the same with the same rows: one suite that all of them run.

A backend is a kind of target with an engine. Those that hold objects are also read back and
verified; those that are simulated must take the same rows, and end them alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import write_trace
from drive_files import write_drive
from object_runs import environment, in_store
from rings import needs_uring
from stores import BUCKET, CLIENTS, SERVERS, need_client, stub
from whole import read_table

from kvreplay.plan.replay_config import Config
from kvreplay.run.replay import FinishedRun, Replay, replay
from kvtrace.core.errors import TraceError
from kvtrace.core.metadata import TierFacts
from kvtrace.core.schema import OPS
from kvtrace.core.tables import objects_path

IO_BYTES = 64 << 10
DELETED_ABSENT = "skipped"
"""How the delete of an object that is not there ends: the plan leaves it out."""


@dataclass(frozen=True)
class Backend:
    """A kind of target, and how it is asked for."""

    tier: str
    target: Callable[[Path], str]
    options: dict[str, Any] = field(default_factory=dict)
    server: str | None = None
    holds_objects: bool = True


def folder(path: Path) -> str:
    (path / "d").mkdir(exist_ok=True)
    return str(path / "d")


def folders(path: Path) -> str:
    for name in "ab":
        (path / name).mkdir(exist_ok=True)
    return f"{path / 'a'},{path / 'b'}"


def space(path: Path) -> str:
    return str(path / "space.dat")


def bucket(_path: Path) -> str:
    return f"s3://{BUCKET}/runs/a"


def drive(path: Path) -> str:
    write_drive(path / "drive.json")
    return f"sim:{path / 'drive.json'}"


BUFFERED = {"is_buffered": True}
BACKENDS = {
    "folder, threads": Backend("nvme", folder, BUFFERED | {"engine": "threads"}),
    "folder, uring": Backend("nvme", folder, BUFFERED | {"engine": "uring"}),
    "folder, direct": Backend("nvme", folder),
    "folder, vllm": Backend("nvme", folder, BUFFERED | {"layout": "vllm"}),
    "folder, lmcache": Backend("nvme", folder, BUFFERED | {"layout": "lmcache"}),
    "folder, flat": Backend("nvme", folder, BUFFERED | {"layout": "flat", "fsync": "close"}),
    "two folders": Backend("nvme", folders, BUFFERED),
    "file, threads": Backend("nvme", space, BUFFERED | {"engine": "threads"}),
    "file, uring": Backend("nvme", space, BUFFERED | {"engine": "uring"}),
    "file, direct": Backend("nvme", space),
    "memory": Backend("cpu", lambda _path: "ram"),
    **{
        f"store, {client}, {server}": Backend("s3", bucket, {"s3_client": client}, server=server)
        for server in ("stub", *SERVERS)
        for client in CLIENTS
    },
    "model": Backend("nvme", lambda _path: "sim:bandwidth=1GB", holds_objects=False),
    "model of a GPU": Backend("gpu", lambda _path: "sim", holds_objects=False),
    "model of a drive": Backend("nvme", drive, holds_objects=False),
    "nothing": Backend("nvme", lambda _path: "null", holds_objects=False),
}


def marks_of(name: str) -> list[Any]:
    marks = [needs_uring] if name.endswith("uring") else []
    return [*marks, pytest.mark.full] if name.endswith("seaweedfs") else marks


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Start each server when it is first asked for."""
    started: dict[str, str] = {}
    with ExitStack() as stack:

        def url_of(name: str) -> str:
            if name not in started:
                pytest.importorskip("s3dlio", reason="s3dlio is not installed")
                context = stub() if name == "stub" else SERVERS[name](tmp_path_factory.mktemp(name))
                started[name] = stack.enter_context(context).url
                if name != "stub":
                    in_store(started[name], f"s3dlio.create_bucket('s3://{BUCKET}')")
            return started[name]

        yield url_of


@pytest.fixture(params=[pytest.param(name, marks=marks_of(name)) for name in BACKENDS])
def run(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    urls: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., tuple[FinishedRun, list[dict[str, Any]]]]:
    """Return a function that replays rows (op, object, length, offset) on the backend, in order."""
    backend = BACKENDS[request.param]
    endpoints: tuple[str, ...] = ()
    if backend.server is not None:
        need_client(backend.options["s3_client"], backend.server)
        endpoints = (urls(backend.server),)
        for name, value in environment().items():
            monkeypatch.setenv(name, value)

    def on_backend(
        rows: list[tuple[Any, ...]], **options: Any
    ) -> tuple[FinishedRun, list[dict[str, Any]]]:
        traced = [
            (index * 1000, op, 0, "load", object_id, *(offset or (0,)), length, 0, index, 0)
            for index, (op, object_id, length, *offset) in enumerate(rows)
        ]
        trace = write_trace(
            tmp_path / "t.parquet", traced, tiers=[TierFacts(backend.tier, 1 << 30)]
        )
        # Numbers of objects have gaps here, which an objects table has not.
        objects_path(trace).unlink()
        config = Config(
            tiers={backend.tier: backend.target(tmp_path)},
            io_bytes=IO_BYTES,
            is_verified=backend.holds_objects,
            endpoints=endpoints,
            **backend.options | options,
        )
        done = replay(Replay(config, trace, tmp_path / "run", [], is_forced=True))
        return done, read_table(tmp_path / "run" / "ops.parquet", OPS).to_pylist()

    return on_backend


LENGTHS = {
    "nothing": 0,
    "one byte": 1,
    "a byte less than an I/O": IO_BYTES - 1,
    "an I/O": IO_BYTES,
    "a byte more than an I/O": IO_BYTES + 1,
    "many I/Os": 5 * IO_BYTES + 777,
}


@pytest.mark.parametrize("length", LENGTHS.values(), ids=LENGTHS)
def test_an_object_is_written_read_replaced_and_deleted(run, length):
    steps = [("write", 7), ("read", 7), ("write", 7), ("read", 7), ("delete", 7), ("write", 7)]
    steps += [("read", 7), ("delete", 7)]
    done, ops = run([(*step, length) for step in steps])
    assert done.error is None
    assert [op["outcome"] for op in ops] == ["ok"] * len(steps)
    verification = done.run.verification
    assert verification is None or verification.by_fault == {}
    written = {f.op: (f.operations, f.errors) for f in done.summary.figures}
    assert written == {"read": (3, 0), "write": (3, 0), "delete": (2, 0)}


@pytest.mark.parametrize("first", LENGTHS.values(), ids=LENGTHS)
def test_a_shorter_object_takes_the_place_of_a_longer(run, first):
    shorter = first // 2
    done, ops = run(
        [("write", 3, first), ("write", 3, shorter), ("read", 3, shorter), ("delete", 3, first)]
    )
    assert done.error is None
    assert [op["outcome"] for op in ops] == ["ok"] * 4


def test_ranges_of_an_object_are_read(run):
    length = 3 * IO_BYTES + 5
    ranges = [(0, 1), (length - 1, 1), (0, length), (100, 5000), (IO_BYTES - 1, 2), (4096, 0)]
    done, ops = run(
        [("write", 0, length), *(("read", 0, nbytes, offset) for offset, nbytes in ranges)]
    )
    assert done.error is None
    assert [op["outcome"] for op in ops] == ["ok"] * (1 + len(ranges))


def test_the_second_delete_of_an_object_is_left_out(run):
    done, ops = run([("write", 1, 10), ("delete", 1, 10), ("delete", 1, 10), ("write", 2, 10)])
    assert done.error is None
    assert [op["outcome"] for op in ops] == ["ok", "ok", DELETED_ABSENT, "ok"]
    assert done.summary.absent_deletes == 1


def test_a_read_after_a_delete_is_refused(run):
    with pytest.raises(TraceError) as error:
        run([("write", 1, 10), ("delete", 1, 10), ("read", 1, 10)])
    assert error.value.row == 2


def test_what_is_read_first_was_written_before_the_run(run):
    rows = [("read", 4, 0), ("read", 5, 1), ("read", 6, IO_BYTES + 1), ("delete", 4, 0)]
    done, ops = run(rows)
    assert done.error is None
    assert [op["outcome"] for op in ops] == ["ok"] * len(rows)


def test_numbers_of_objects_are_names_apart(run):
    ids = [0, 1, 15, 16, 255, 256, 65_535, 65_536, 1 << 20]
    rows = [
        (op, object_id, 100 + index)
        for op in ("write", "read", "delete")
        for index, object_id in enumerate(ids)
    ]
    done, ops = run(rows)
    assert done.error is None
    assert {op["outcome"] for op in ops} == {"ok"}
