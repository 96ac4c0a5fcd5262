"""What an engine did, as its driver wrote it down or as strace saw it: file operations, and requests about them."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kvtrace.core.errors import DeviceError

_NS_PER_S = 10**9
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

    facts: dict[str, Any] = field(default_factory=dict)
    operations: list[FileOperation] = field(default_factory=list)
    requests: list[tuple[int, int]] = field(default_factory=list)
    """When each began and ended."""
    hit_tokens: int = 0
    seen: dict[str, int] | None = None
    """Files that Python saw opened and removed, by operation; None unless the driver ended well."""

    @property
    def untimed(self) -> dict[str, int]:
        """Of `seen`: how many more than were recorded."""
        counts = {op: sum(1 for done in self.operations if done.op == op) for op in self.seen or {}}
        return {op: count - counts[op] for op, count in (self.seen or {}).items() if count > counts[op]}


def read_events(path: Path) -> EngineRecord:
    """Return what the driver wrote to `path`; a line that it did not end is left out."""
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


def read_strace(path: Path, directory: Path, to_monotonic_ns: int, requests: list[tuple[int, int]]) -> EngineRecord:
    """Return the operations on files below `directory` in the output of STRACE at `path`.

    `to_monotonic_ns` is added to its times. A read is of the request that was served when it began; what an engine
    writes and deletes in the background is of none.

    Raises:
        DeviceError: there is no such output.

    """
    found, sizes = EngineRecord(), dict[str, int]()
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
            took = int(done[3]) * _NS_PER_S + int(done[4])
            found.operations.append(
                operation._replace(request=of if is_within else None, start_ns=start, end_ns=start + took)
            )
    return found


def _whole_calls(lines: Any) -> Iterator[tuple[int, bytes, bytes]]:
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
        at, name, arguments = int(call[2]) * _NS_PER_S + int(call[3]), call[4], call[5]
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
