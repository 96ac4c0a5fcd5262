"""The file operations of a real engine, as a trace and a record of their times.

Both are the input of any run.

A driver writes down its operations and requests; what happens out of Python's sight is read from
strace.
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
from kvreplay.plan.window import MOST_ROWS, compile_window
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
    """All that was done."""
    started_ns: int
    """On the monotonic clock."""
    wall_ns: int


def _stage(done: FileOperation, known: dict[int, tuple[bool, int]]) -> int | None:
    """Return the stage of an operation, from the facts `known` of its request.

    A stage ends where loads end.
    """
    if done.request is None:
        return None
    is_load = done.op == Op.READ
    before, number = known.get(done.request, (is_load, 0))
    known[done.request] = is_load, number + (before and not is_load)
    return known[done.request][1]


def recording(
    output: Path,
    recorded: EngineRecord,
    metadata: Metadata,
    object_kind: str,
    config: Config,
    argv: list[str],
) -> Recording:
    """Write the trace of the `recorded` operations into `output`, and return it as a `Recording`."""
    operations = sorted(recorded.operations, key=lambda done: (done.start_ns, done.end_ns))
    numbers: dict[str, int] = {}
    sizes: dict[int, int] = {}
    for done in operations:
        number = numbers.setdefault(done.name, len(numbers))
        sizes[number] = max(sizes.get(number, 0), done.offset + done.length)
    # The run began with its first request, or an operation before it.
    first_ns = min(
        [start for start, _end in recorded.requests[:1]]
        + [done.start_ns for done in operations[:1]],
        default=0,
    )
    path = output / TRACE_FILE
    stage: dict[int, tuple[bool, int]] = {}
    with create(path, TRACE, metadata) as out:
        for at in range(0, len(operations), _BATCH_ROWS):
            part = operations[at : at + _BATCH_ROWS]
            columns: dict[str, list[object]] = {
                "ts_ns": [done.start_ns - first_ns for done in part],
                "op": [enum_code(TRACE, "op", done.op) for done in part],
                "tier": [0] * len(part),
                "phase": [enum_code(TRACE, "phase", _PHASES[done.op]) for done in part],
                "object_id": [numbers[done.name] for done in part],
                "offset_bytes": [done.offset for done in part],
                "length_bytes": [done.length for done in part],
                "request_id": [done.request for done in part],
                "stage": [_stage(done, stage) for done in part],
                "rank": [0] * len(part),
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
    rows = window.loader.begin(window=MOST_ROWS)
    window.loader.load()
    rows.all["submitted_ns"] = [done.start_ns - first_ns for done in operations]
    rows.all["completed_ns"] = [
        NOT_DONE if done.error else done.end_ns - first_ns for done in operations
    ]
    rows.all["outcome"] = [ERROR if done.error else OK for done in operations]
    rows.all["is_ended"] = True
    last_ns = max(
        [done.end_ns for done in operations] + [end for _start, end in recorded.requests],
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
    """Below the engine's directory."""
    request: int | None
    start_ns: int
    end_ns: int
    offset: int
    length: int
    error: str | None


@dataclass(slots=True)
class EngineRecord:
    """All that was recorded of an engine."""

    facts: dict[str, object] = field(default_factory=dict)
    operations: list[FileOperation] = field(default_factory=list)
    requests: list[tuple[int, int]] = field(default_factory=list)
    """When each began and ended."""
    hit_tokens: int = 0
    seen: dict[str, int] | None = None
    """Files that Python saw opened and removed, by operation; None unless the driver ended well."""
    failure: str | None = None
    """Why it ended early; None if all requests were served."""
    interrupted_by: str | None = None

    @property
    def untimed(self) -> dict[str, int]:
        """How many operations were seen but not recorded, of those in `seen`."""
        counts = {op: sum(1 for done in self.operations if done.op == op) for op in self.seen or {}}
        return {
            op: count - counts[op] for op, count in (self.seen or {}).items() if count > counts[op]
        }


def read_events(path: Path) -> EngineRecord:
    """Read the record that the driver wrote to `path`; an unfinished last line is left out."""
    found = EngineRecord()
    text = path.read_bytes() if path.exists() else b""
    for line in text[: text.rfind(b"\n") + 1].splitlines():
        kind, *rest = msgspec.json.decode(line)
        if kind == "op":
            op, name, request, start, end, length, error = rest
            found.operations.append(FileOperation(op, name, request, start, end, 0, length, error))
        elif kind == "request":
            found.requests.append((rest[1], rest[2]))
        elif kind == "hit":
            found.hit_tokens += rest[1]
        elif kind == "facts":
            found.facts |= rest[0]
        elif kind == "end":
            found.seen = rest[0]
    return found


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

    `to_monotonic_ns` is added to its times. A read is of the request that was served when it began;
    background writes and deletes belong to no request.

    DeviceError if there is no such output.
    """
    found, sizes = list[FileOperation](), dict[str, int]()
    try:
        lines = path.open("rb")
    except OSError as error:
        raise DeviceError(f"{path}: {error.strerror}; strace left nothing") from None
    prefix = str(directory).encode().rstrip(b"/") + b"/"
    begins = [start for start, _end in requests]
    with lines:
        for at, name, arguments in _whole_calls(lines):
            done = _DONE.search(arguments)
            if done is None or prefix not in arguments:
                continue
            operation = _operation(name, arguments[: done.start()], done, prefix, sizes)
            if operation is None:
                continue
            start = at + to_monotonic_ns
            of = bisect_right(begins, start) - 1
            is_within = of >= 0 and start <= requests[of][1] and operation.op == "read"
            took = int(done[3]) * NS_PER_S + int(done[4])
            found.append(
                operation._replace(
                    request=of if is_within else None, start_ns=start, end_ns=start + took
                )
            )
    return found


def _whole_calls(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield (when, call, arguments and result), calls that strace split in two put together."""
    begun: dict[bytes, tuple[int, bytes, bytes]] = {}
    for line in lines:
        resumed = _RESUMED.match(line)
        if resumed is not None:
            if resumed[1] in begun:
                at, name, arguments = begun.pop(resumed[1])
                yield at, name, arguments + resumed[2]
            continue
        call = _CALL.match(line)
        if call is None:
            continue
        at, name, arguments = int(call[2]) * NS_PER_S + int(call[3]), call[4], call[5]
        if arguments.rstrip().endswith(b"<unfinished ...>"):
            begun[call[1]] = at, name, arguments.rstrip().removesuffix(b"<unfinished ...>").rstrip()
        else:
            yield at, name, arguments


def _operation(
    call: bytes, arguments: bytes, done: re.Match[bytes], prefix: bytes, sizes: dict[str, int]
) -> FileOperation | None:
    """Return the operation of a call, without its times; None if it is on another file."""
    op = _OPS.get(call)
    place = (_PATH if op == "delete" else _OPEN_FILE).search(arguments)
    if op is None or place is None or not place[1].startswith(prefix):
        return None
    name = place[1].removeprefix(prefix).decode(errors="replace")
    result, error = int(done[1]), None if done[2] is None else done[2].decode()
    if op == "delete":
        return FileOperation(op, name, None, 0, 0, 0, sizes.pop(name, 0), error)
    found = (_OFFSET_AND_FLAGS if call.endswith(b"v2") else _OFFSET).search(arguments)
    # A plain write goes on where the file ends so far.
    offset = int(found[1]) if found is not None and call != b"write" else sizes.get(name, 0)
    length = max(result, 0)
    if op == "write":
        sizes[name] = max(sizes.get(name, 0), offset + length)
    return FileOperation(op, name, None, 0, 0, offset, length, error)
