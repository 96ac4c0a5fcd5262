"""The file operations of a real engine, as a trace and rows with their times.

A run's figures and tables are built from these, as from those of a replay. A driver records the
operations and requests that Python sees. Operations of native code are read from strace's output.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from kvreplay.engine.setting import Setting
from kvreplay.plan.pacing import Pacer
from kvreplay.plan.replay_config import Config
from kvreplay.plan.row_ring import ERROR, NOT_DONE, OK, RowRing
from kvreplay.plan.window import MAX_WINDOW_ROWS, compile_window
from kvreplay.tiers.files import FileTier
from kvreplay.tiers.tier import StorageOptions
from kvtrace.core.errors import DeviceError
from kvtrace.core.limit import Limit
from kvtrace.core.metadata import Metadata
from kvtrace.core.schema import OBJECTS, TRACE, Op, Phase, batch_of, enum_code, objects_batch
from kvtrace.core.tables import create, objects_path, open_table
from kvtrace.core.units import NS_PER_S

TIER = "nvme"
TRACE_FILE = "trace.parquet"
_BATCH_ROWS = 1 << 16
_PHASES = {"read": Phase.LOAD, "write": Phase.STORE, "delete": Phase.EVICT}


@dataclass(frozen=True, slots=True)
class Recording:
    """An engine's operations as a setting and rows, the input of figures and tables."""

    setting: Setting
    rows: RowRing
    """All operations."""
    started_ns: int
    """Start on the monotonic clock."""
    wall_ns: int


def _stage(operation: FileOperation, stages: dict[int, tuple[bool, int]]) -> int | None:
    """Return the stage of an operation of a request; a new stage begins after the loads.

    `stages` has, by request, whether its last operation was a load, and its current stage.
    """
    if operation.request is None:
        return None
    is_load = operation.op == Op.READ
    was_load, number = stages.get(operation.request, (is_load, 0))
    stages[operation.request] = is_load, number + (was_load and not is_load)
    return stages[operation.request][1]


def recording(
    output: Path,
    recorded: EngineRecord,
    metadata: Metadata,
    object_kind: str,
    config: Config,
    argv: list[str],
) -> Recording:
    """Write the trace of the `recorded` operations into `output`, and return it as a `Recording`."""
    operations = sorted(
        recorded.operations, key=lambda operation: (operation.start_ns, operation.end_ns)
    )
    numbers: dict[str, int] = {}
    sizes: dict[int, int] = {}
    for operation in operations:
        number = numbers.setdefault(operation.name, len(numbers))
        sizes[number] = max(sizes.get(number, 0), operation.offset + operation.length)
    # The run began with its first request, or with an operation before that.
    first_ns = min(
        [start for start, _end in recorded.requests[:1]]
        + [operation.start_ns for operation in operations[:1]],
        default=0,
    )
    path = output / TRACE_FILE
    stages: dict[int, tuple[bool, int]] = {}
    with create(path, TRACE, metadata) as out:
        for first in range(0, len(operations), _BATCH_ROWS):
            batch = operations[first : first + _BATCH_ROWS]
            columns: dict[str, list[object]] = {
                "ts_ns": [operation.start_ns - first_ns for operation in batch],
                "op": [enum_code(TRACE, "op", operation.op) for operation in batch],
                "tier": [0] * len(batch),
                "phase": [enum_code(TRACE, "phase", _PHASES[operation.op]) for operation in batch],
                "object_id": [numbers[operation.name] for operation in batch],
                "offset_bytes": [operation.offset for operation in batch],
                "length_bytes": [operation.length for operation in batch],
                "request_id": [operation.request for operation in batch],
                "stage": [_stage(operation, stages) for operation in batch],
                "rank": [0] * len(batch),
            }
            out.write(batch_of(TRACE, columns))
    with create(
        objects_path(path), OBJECTS, msgspec.structs.replace(metadata, table=OBJECTS.name)
    ) as out:
        keys, ids = ["%20".join(name.split()) for name in numbers], range(len(numbers))
        out.write(objects_batch(ids, keys, object_kind, [sizes[number] for number in ids]))
    reader = open_table(path, TRACE)
    window = compile_window(reader, path, {0: 1}, Limit(), is_done=True)
    tier = FileTier(TIER, Path(config.tiers[TIER]), StorageOptions(is_buffered=config.is_buffered))
    tier.engine, tier.alignment = "other", 1
    setting = Setting(config, Pacer(), reader, window, [tier], path, argv)
    rows = window.loader.begin(window=MAX_WINDOW_ROWS)
    window.loader.load()
    rows.all["submitted_ns"] = [operation.start_ns - first_ns for operation in operations]
    rows.all["completed_ns"] = [
        NOT_DONE if operation.error else operation.end_ns - first_ns for operation in operations
    ]
    rows.all["outcome"] = [ERROR if operation.error else OK for operation in operations]
    rows.all["is_ended"] = True
    last_ns = max(
        [operation.end_ns for operation in operations] + [end for _start, end in recorded.requests],
        default=first_ns,
    )
    return Recording(setting, rows, first_ns, last_ns - first_ns)


STRACE = ("strace", "-f", "-y", "--seccomp-bpf", "-qq", "-s0", "--absolute-timestamps=format:unix,precision:ns",
          "--syscall-times=ns", "-e", "trace=write,pwrite64,pwritev,pwritev2,pread64,preadv,preadv2,unlink,unlinkat",
          "-o")  # fmt: skip
"""The command that records calls on files; its output's path follows."""


class FileOperation(NamedTuple):
    """One operation on a file; times on the monotonic clock."""

    op: str
    name: str
    """Path below the engine's directory."""
    request: int | None
    start_ns: int
    end_ns: int
    offset: int
    length: int
    error: str | None


@dataclass(slots=True)
class EngineRecord:
    """The record of an engine's run."""

    facts: dict[str, object] = field(default_factory=dict)
    operations: list[FileOperation] = field(default_factory=list)
    requests: list[tuple[int, int]] = field(default_factory=list)
    """Start and end of each request."""
    hit_tokens: int = 0
    audited: dict[str, int] | None = None
    """Number of files that Python's audit hooks saw opened and removed, by operation.

    None unless the driver ended without an error.
    """
    failure: str | None = None
    """The reason why it ended early; None if all requests were served."""
    interrupted_by: str | None = None

    @property
    def untimed(self) -> dict[str, int]:
        """The number of audited operations that were not recorded, by operation."""
        audited = self.audited or {}
        recorded = {
            op: sum(1 for operation in self.operations if operation.op == op) for op in audited
        }
        return {op: count - recorded[op] for op, count in audited.items() if count > recorded[op]}


def read_events(path: Path) -> EngineRecord:
    """Read the record that the driver wrote to `path`; an unfinished last line is left out."""
    record = EngineRecord()
    text = path.read_bytes() if path.exists() else b""
    for line in text[: text.rfind(b"\n") + 1].splitlines():
        kind, *values = msgspec.json.decode(line)
        if kind == "op":
            op, name, request, start, end, length, error = values
            record.operations.append(FileOperation(op, name, request, start, end, 0, length, error))
        elif kind == "request":
            record.requests.append((values[1], values[2]))
        elif kind == "hit":
            record.hit_tokens += values[1]
        elif kind == "facts":
            record.facts |= values[0]
        elif kind == "end":
            record.audited = values[0]
    return record


_CALL = re.compile(rb"(\d+) +(\d+)\.(\d{9}) (\w+)\((.*)")
_RESUMED = re.compile(rb"(\d+) +\d+\.\d{9} <\.\.\. \w+ resumed>(.*)")
_DONE = re.compile(rb"\) += (-?\d+)(?: (\w+) [^<]*)? <(\d+)\.(\d{9})>\s*$")
_OPEN_FILE = re.compile(rb"\d+<([^>]*)>")
_PATH = re.compile(rb'"([^"]*)"')
_OFFSET = re.compile(rb", (\d+)$")
_OFFSET_AND_FLAGS = re.compile(rb", (\d+), [A-Z_0-9|]+$")
_OPS = {b"write": "write", b"pwrite64": "write", b"pwritev": "write", b"pwritev2": "write", b"pread64": "read",
        b"preadv": "read", b"preadv2": "read", b"unlink": "delete", b"unlinkat": "delete"}  # fmt: skip


def read_strace(
    path: Path, directory: Path, to_monotonic_ns: int, requests: list[tuple[int, int]]
) -> list[FileOperation]:
    """Return the operations on files below `directory` in the output of STRACE at `path`.

    `to_monotonic_ns` is added to its times. A read belongs to the request that was served when it
    began. Background writes and deletes belong to no request.

    DeviceError if there is no such output.
    """
    operations, sizes = list[FileOperation](), dict[str, int]()
    try:
        lines = path.open("rb")
    except OSError as error:
        raise DeviceError(f"{path}: {error.strerror}; strace wrote no output") from None
    prefix = str(directory).encode().rstrip(b"/") + b"/"
    begins = [start for start, _end in requests]
    with lines:
        for call_ns, name, arguments in _whole_calls(lines):
            result = _DONE.search(arguments)
            if result is None or prefix not in arguments:
                continue
            operation = _operation(name, arguments[: result.start()], result, prefix, sizes)
            if operation is None:
                continue
            start = call_ns + to_monotonic_ns
            index = bisect_right(begins, start) - 1
            is_within = index >= 0 and start <= requests[index][1] and operation.op == "read"
            duration_ns = int(result[3]) * NS_PER_S + int(result[4])
            operations.append(
                operation._replace(
                    request=index if is_within else None, start_ns=start, end_ns=start + duration_ns
                )
            )
    return operations


def _whole_calls(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield time in ns, name, and arguments with the result of each call.

    A call that strace printed in two lines is joined.
    """
    begun: dict[bytes, tuple[int, bytes, bytes]] = {}
    for line in lines:
        resumed = _RESUMED.match(line)
        if resumed is not None:
            if resumed[1] in begun:
                call_ns, name, arguments = begun.pop(resumed[1])
                yield call_ns, name, arguments + resumed[2]
            continue
        call = _CALL.match(line)
        if call is None:
            continue
        call_ns, name, arguments = int(call[2]) * NS_PER_S + int(call[3]), call[4], call[5]
        if arguments.rstrip().endswith(b"<unfinished ...>"):
            begun[call[1]] = (
                call_ns,
                name,
                arguments.rstrip().removesuffix(b"<unfinished ...>").rstrip(),
            )
        else:
            yield call_ns, name, arguments


def _operation(
    call: bytes, arguments: bytes, result: re.Match[bytes], prefix: bytes, sizes: dict[str, int]
) -> FileOperation | None:
    """Return the operation of a call, without its times; None if it is on another file."""
    op = _OPS.get(call)
    path_match = (_PATH if op == "delete" else _OPEN_FILE).search(arguments)
    if op is None or path_match is None or not path_match[1].startswith(prefix):
        return None
    name = path_match[1].removeprefix(prefix).decode(errors="replace")
    returned = int(result[1])
    error = None if result[2] is None else result[2].decode()
    if op == "delete":
        return FileOperation(op, name, None, 0, 0, 0, sizes.pop(name, 0), error)
    offset_match = (_OFFSET_AND_FLAGS if call.endswith(b"v2") else _OFFSET).search(arguments)
    # A plain write appends to the file.
    offset = (
        int(offset_match[1])
        if offset_match is not None and call != b"write"
        else sizes.get(name, 0)
    )
    length = max(returned, 0)
    if op == "write":
        sizes[name] = max(sizes.get(name, 0), offset + length)
    return FileOperation(op, name, None, 0, 0, offset, length, error)
