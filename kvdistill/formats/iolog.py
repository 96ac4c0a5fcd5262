"""fio's iolog, both ways: placed operations written as one, and one read into our tables.

Written: one target, long operations split, lines partitioned round-robin over several jobs; deletes only free space,
since fio knows none. Read: a file is an object, and an operation keeps its offset; trims and syncs have no place in our
tables, since a trim frees a part of a file, where our delete frees an object.

Version 2 holds no times but those of its `wait` lines, in ms from the start; version 3 begins each line with a time in
microseconds. Replayed, the lateness of version 2 is caught up with, that of version 3 only grows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
import numpy as np

from kvdistill.formats.formats import Account, Imported, ImportOptions
from kvdistill.formats.text import INPUT, finish, first_line, leave_out, load, one
from kvdistill.queries.window import OK, READ, WRITE
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.files import aside
from kvtrace.core.units import NS_PER_US, US_PER_MS

if TYPE_CHECKING:
    import duckdb

TIER = "fio"
_HEAD = re.compile(r"fio version ([23]) iolog\s*")
_FILE_ACTIONS = "'add', 'open', 'close'"
_IO = "'read', 'write'"
_IO_FIELDS = 5
"""Time, file, action, offset and length; lines of other actions have fewer."""
FIRST_US = 1
"""fio drops the gap after timestamp 0."""
ABSOLUTE, RELATIVE = 2, 3
"""The versions of the log, by their times."""
MAX_JOBS = 1024
_GRANULE_BYTES = 4096
_BUFFER_BYTES, _MAX_DEPTH = 256 << 20, 1024
_MAX_IO_BYTES = (1 << 32) - _GRANULE_BYTES
# A row may become many lines: 32 MiB objects are 32 each.
_BATCH_ROWS = 1 << 14
_START_MS, _LINES_PER_MS = 1000, 200


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Options of written logs; what is null is chosen by the version of fio and the source's times."""

    max_io_bytes: int = 1 << 20
    """Longer operations are split at this."""
    jobs: int | None = None
    version: int | None = None
    issue_us: tuple[float, float] = (0.0, 0.0)
    """What fio takes to issue an I/O, and each MiB of it: delays of version 3, which add to it, are so much shorter."""

    def __post_init__(self) -> None:
        """Raise ConfigError for values that fio does not take."""
        if not _GRANULE_BYTES <= self.max_io_bytes <= _MAX_IO_BYTES or self.max_io_bytes % _GRANULE_BYTES:
            raise ConfigError(f"--io-bytes {self.max_io_bytes}: it must be a multiple of 4096 below 4 GiB")
        if self.jobs is not None and not 1 <= self.jobs <= MAX_JOBS:
            raise ConfigError(f"--jobs {self.jobs}: it must be 1 to {MAX_JOBS}")
        if self.version not in (None, ABSOLUTE, RELATIVE):
            raise ConfigError(f"--log-version {self.version}: it must be {ABSOLUTE} or {RELATIVE}")


class LogSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the written logs, in fio's terms: each line is one I/O."""

    files: list[str]
    """One a job; line i of the whole is in file i modulo their number."""
    version: int
    target: str
    max_io_bytes: int
    """Longer operations are split at this."""
    start_ms: int
    """When the first line is due, from fio's start: time to read the logs; 0 in version 3."""
    read_ios: int
    write_ios: int
    read_bytes: int
    write_bytes: int
    split_ops: int
    last_us: int
    """The last line's time; the first is 1."""
    largest_io_bytes: int
    max_burst_ios: int
    """The most lines due at one time."""
    issue_us: tuple[float, float] = (0.0, 0.0)
    """What issuing an I/O and each MiB of it was taken to take: delays are so much shorter."""

    @property
    def depth(self) -> int:
        """The most I/Os in flight of one asynchronous job: its longest burst, where its buffers are not too much."""
        return max(1, min(_MAX_DEPTH, _BUFFER_BYTES // self.largest_io_bytes, max(32, self.max_burst_ios)))


def split_ios(ios: Path, max_io_bytes: int) -> Iterator[dict[str, Any]]:
    """Yield the operations of the Parquet file `ios` as the I/Os that fio issues, in order, as numpy arrays.

    `us` (timestamp), `is_read`, `offset`, `length`, and `part` (0 for the first of a split operation).
    """
    import pyarrow.parquet as pq

    first = None
    for batch in pq.ParquetFile(ios).iter_batches(
        batch_size=_BATCH_ROWS, columns=["ts_ns", "op", "address", "io_bytes"], use_threads=False
    ):
        ts, op, address, length = (column.to_numpy() for column in batch.columns)
        kept = np.flatnonzero(length > 0)
        if not len(kept):
            continue
        ts, op = ts[kept], op[kept]
        first = ts[0] if first is None else first
        yield from split(FIRST_US + (ts - first) // NS_PER_US, op == READ, address[kept], length[kept], max_io_bytes)


def split(us: Any, is_read: Any, offset: Any, length: Any, max_io_bytes: int) -> Iterator[dict[str, Any]]:
    """Yield operations as `split_ios` does."""
    for start in range(0, len(us), _BATCH_ROWS):
        part_of = slice(start, start + _BATCH_ROWS)
        longer = length[part_of]
        parts = -(-longer // max_io_bytes)
        row = np.repeat(np.arange(len(parts)), parts)
        part = np.arange(len(row)) - np.repeat(np.cumsum(parts) - parts, parts)
        yield {
            "us": us[part_of][row],
            "is_read": is_read[part_of][row],
            "offset": offset[part_of][row] + part * max_io_bytes,
            "length": np.minimum(longer[row] - part * max_io_bytes, max_io_bytes),
            "part": part,
        }


def write_iologs(
    folder: Path, name: str, parts: Callable[[], Iterator[dict[str, Any]]], target: str, options: LogOptions
) -> LogSummary:
    """Write what `parts` yields (as `split_ios` does) to logs in `folder` on the file or device `target`.

    The number of jobs and the version are as `options` say, and one job and absolute times if they do not.
    They are called `name`.iolog, or `name`.1.iolog and so on. Logs of an earlier number are removed.
    """
    version, jobs = options.version or ABSOLUTE, options.jobs or 1
    counts = _Counts()
    lines = 0
    for part in parts():
        counts.add(part)
        lines += len(part["us"])
    start_ms = _START_MS + lines // _LINES_PER_MS if version == ABSOLUTE else 0
    for old in folder.glob(f"{name}.*iolog"):
        old.unlink()
    # fio takes a log without I/O for an error.
    jobs = max(1, min(jobs, lines))
    width = len(str(jobs))
    files = [f"{name}.iolog"] if jobs == 1 else [f"{name}.{i:0{width}d}.iolog" for i in range(1, jobs + 1)]
    with ExitStack() as stack:
        outs = [stack.enter_context(stack.enter_context(aside(folder / file)).open("wb")) for file in files]
        logs = [_Log(out, target, options, version, start_ms) for out in outs]
        done = 0
        for part in parts():
            for index, log in enumerate(logs):
                # Line i goes to log i modulo their number.
                log.write({name: values[(index - done) % jobs :: jobs] for name, values in part.items()})
            done += len(part["us"])
        for log in logs:
            log.close()
    return LogSummary(
        files=files,
        version=version,
        target=target,
        max_io_bytes=options.max_io_bytes,
        start_ms=start_ms,
        **counts.total,
        max_burst_ios=counts.max_burst_ios,
        issue_us=options.issue_us if version == RELATIVE else (0.0, 0.0),
    )


def _joined(*columns: Any, by: str = " ") -> Any:
    """Join `columns`, arrays or a text for all rows, row by row with `by` between; return an Arrow array."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text = pa.large_string()
    parts = [pa.scalar(c, text) if isinstance(c, str) else pa.array(c).cast(text) for c in columns]
    return pc.binary_join_element_wise(*parts, pa.scalar(by, text))


class _Log:
    """One log being written."""

    def __init__(self, out: BinaryIO, target: str, options: LogOptions, version: int, start_ms: int) -> None:
        self._out, self._target, self._start_ms = out, target, start_ms
        self._is_absolute = version == ABSOLUTE
        self._issue = _IssueDelays(*options.issue_us)
        self._last = FIRST_US if not self._is_absolute else -1
        stamp = "" if self._is_absolute else f"{FIRST_US} "
        out.write(f"fio version {version} iolog\n{stamp}{target} add\n{stamp}{target} open\n".encode())

    def write(self, part: dict[str, Any]) -> None:
        """Append lines."""
        import pyarrow as pa
        import pyarrow.compute as pc

        us = part["us"]
        if not len(us):
            return
        op = np.where(part["is_read"], "read", "write")
        line = _joined(self._target, op, part["offset"], part["length"])
        if self._is_absolute:
            ms = self._start_ms + (us - FIRST_US) // US_PER_MS
            waits = np.diff(ms, prepend=self._last) != 0
            line = _joined(pc.if_else(pa.array(waits), _joined(self._target, "wait", ms, "0\n"), ""), line, by="")
            self._last = int(ms[-1])
        else:
            us = self._issue.times(us, part["length"])
            line = _joined(us, line)
            self._last = int(us[-1])
        lines = _joined(line, "", by="\n")
        self._out.write(lines.buffers()[2][: pc.sum(pc.binary_length(lines)).as_py()])

    def close(self) -> None:
        """End the log."""
        stamp = "" if self._is_absolute else f"{self._last} "
        self._out.write(f"{stamp}{self._target} close\n".encode())


class _IssueDelays:
    """Times to write for fio, so that it issues I/Os when they are asked for, or as soon after as it can."""

    def __init__(self, us: float, us_per_mib: float) -> None:
        self._us, self._us_per_mib = us, us_per_mib
        self._free: float = FIRST_US
        """When the last I/O is issued."""
        self._written: float = FIRST_US

    def times(self, us: Any, length: Any) -> Any:
        """Return the times to write for I/Os that are asked for at `us`."""
        if not self._us and not self._us_per_mib:
            return us
        cost = self._us + self._us_per_mib * length / (1 << 20)
        before = np.concatenate([[0.0], np.cumsum(cost)[:-1]])
        # An I/O is issued when it is asked, or when those before are, with what each takes.
        begins = before + np.maximum.accumulate(np.maximum(us - before, self._free))
        written = np.cumsum(begins - np.concatenate([[self._free], (begins + cost)[:-1]])) + self._written
        self._free, self._written = float(begins[-1] + cost[-1]), float(written[-1])
        return np.round(written).astype(np.int64)


class _Counts:
    """Counts lines as they pass."""

    def __init__(self) -> None:
        self.total = dict.fromkeys(
            ("read_ios", "write_ios", "read_bytes", "write_bytes", "split_ops", "last_us", "largest_io_bytes"), 0
        )
        self.max_burst_ios = self._burst = 0
        self._burst_us = -1

    def add(self, part: dict[str, Any]) -> None:
        """Count the lines of `part`."""
        for name, chosen in (("read", part["is_read"]), ("write", ~part["is_read"])):
            self.total[f"{name}_ios"] += int(chosen.sum())
            self.total[f"{name}_bytes"] += int(part["length"][chosen].sum())
        self.total["split_ops"] += int((part["part"] == 1).sum())
        self.total["largest_io_bytes"] = max(self.total["largest_io_bytes"], int(part["length"].max()))
        times, lines = np.unique(part["us"], return_counts=True)
        lines[0] += self._burst if times[0] == self._burst_us else 0
        self._burst_us, self._burst = int(times[-1]), int(lines[-1])
        self.max_burst_ios = max(self.max_burst_ios, int(lines.max()))
        self.total["last_us"] = self._burst_us


def read(files: Sequence[Path], options: ImportOptions, db: duckdb.DuckDBPyConnection) -> Imported:
    """Import one log, or the logs of jobs that ran at the same time, merged by time.

    Raises:
        TraceError: a file is no iolog, is damaged, or has no read or write.

    """
    account = Account()
    db.execute(INPUT)
    for number, path in enumerate(files):
        found = _HEAD.fullmatch(first_line(path))
        if found is None:
            raise TraceError("its first line is not 'fio version 2 iolog' or 'fio version 3 iolog'", path=path, row=1)
        version = int(found[1])
        names = ["name", "action", "offset_bytes", "length_bytes"]
        load(db, path, ["us", *names] if version == RELATIVE else names, account, delimiter=" ", skip=1)
        actions, waits = one(
            db,
            f"SELECT count(*) FILTER (action IN ({_FILE_ACTIONS})), count(*) FILTER (action = 'wait') FROM raw",
        )
        account.rows -= actions + waits
        no_place = " OR ".join(f"coalesce(TRY_CAST({n} AS BIGINT), -1) < 0" for n in ("offset_bytes", "length_bytes"))
        conditions = [
            ("syncs have no place in our tables", "action IN ('sync', 'datasync', 'sync_file_range')"),
            ("trims free a part of a file, not an object", "action = 'trim'"),
            ("an action that is not known", f"coalesce(action, '') NOT IN ('wait', 'read', 'write', {_FILE_ACTIONS})"),
            ("no offset and length in whole bytes", f"action IN ({_IO}) AND ({no_place})"),
        ]
        if version == RELATIVE:
            conditions.append(("no time in whole microseconds", "coalesce(TRY_CAST(us AS BIGINT), -1) < 0"))
        for reason, condition in conditions:
            leave_out(db, path, account, reason, condition)
        # With `us`, the time in microseconds.
        waited = "CASE WHEN action = 'wait' THEN TRY_CAST(offset_bytes AS BIGINT) END"
        timed = f"SELECT *, 1000 * coalesce(max({waited}) OVER (ORDER BY line), 0) AS us FROM raw"
        if version == RELATIVE:
            timed = "SELECT * REPLACE (CAST(us AS BIGINT) AS us) FROM raw"
        db.execute(
            f"INSERT INTO input SELECT {number}, line, CASE action WHEN 'read' THEN {READ} ELSE {WRITE} END, name, "
            "CAST(offset_bytes AS BIGINT), CAST(length_bytes AS BIGINT), us * 1000, NULL, "
            f"{OK}, NULL FROM ({timed}) WHERE action IN ({_IO})"
        )
        if version == ABSOLUTE:
            account.notes.append(
                f"{path.name} is of version 2: "
                + (
                    "its times are those of its wait lines, in ms from the start"
                    if waits
                    else "it has no times, so all operations share one instant"
                )
            )
    rows, _first_ns = finish(db, files, is_measured=False)
    (account.kept,) = one(db, "SELECT count(*) FROM input")
    account.notes.append("requests, stages and phases are not in the log; the size of a file is the furthest byte used")
    return Imported(account, rows, [options.tier or TIER])


def logged_ios(path: Path) -> dict[str, Any]:
    """Return the I/Os of a log of version 3, as fio writes one, in order: numpy arrays as `split_ios` yields them."""
    fields = [line.split() for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    lines = [f for f in fields if len(f) == _IO_FIELDS]
    return {
        "us": np.array([int(f[0]) for f in lines], dtype=np.int64),
        "is_read": np.array([f[2] == "read" for f in lines], dtype=bool),
        "offset": np.array([int(f[3]) for f in lines], dtype=np.int64),
        "length": np.array([int(f[4]) for f in lines], dtype=np.int64),
    }
