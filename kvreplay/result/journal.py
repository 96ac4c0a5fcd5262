"""The journal: completed operations on disk while the run goes on, so that `kvreplay recover` can make a run of them.

Once a second a thread appends the newly completed operations to an Arrow stream beside run.partial.json. Both are
removed when the run is written; the lock on the stream tells a run that goes on from a dead one.
"""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic_ns
from typing import Any

import numpy as np

from kvreplay.data.copies import fence
from kvreplay.engine.job import NOT_DONE, SKIPPED, Record
from kvreplay.plan.held.column import column, give_back
from kvtrace.core.compiled import njit
from kvtrace.core.errors import ConfigError, DeviceError
from kvtrace.core.run.run_file import PARTIAL_OPS_FILE, PARTIAL_RUN_FILE, PartialRunFile, read_partial_run, write_run
from kvtrace.core.units import NS_PER_S

_PERIOD_S = 1.0
_RETRIES = "retries"
_MAX_SHARE = 0.01
"""Of the time, at most, goes into looking for what has ended."""
_BATCH_ROWS = 1 << 14
"""Operations that are appended together, at most."""
_NONE = -1


class Journal:
    """Appends completed operations to the stream, from a thread of its own."""

    def __init__(
        self, output: Path, record: Record, content: PartialRunFile, seen: Callable[[Any], None] | None = None
    ) -> None:
        """Write `content` to `output`, which exists, and begin the stream; `seen` takes the rows of each look.

        Raises:
            DeviceError: the disk refuses, or another run is being written there.

        """
        import pyarrow as pa

        self.trouble: str | None = None
        """Why nothing more is kept; None if all is."""
        self._arrow, self._record, self._output, self._seen = pa, record, output, seen
        # By row, whether it is kept; the first that is not; how many were passed by.
        self._is_kept, self._low, self._passed = column(len(record.outcome), np.bool_), 0, 0
        self._lock = threading.Lock()
        names = ["place_step", "submitted_step_ns", "service_ns"] + ["ready_ns"] * (record.ready_ns is not None)
        self._schema = pa.schema([*((n, pa.int64()) for n in names), ("outcome", pa.int8()), (_RETRIES, pa.int32())])
        most = min(_BATCH_ROWS, len(record.outcome))
        self._places = np.empty(most, np.int64)
        self._fresh = [np.empty(most, of.type.to_pandas_dtype()) for of in self._schema]
        self._fresh[-1].fill(0)
        # What compiled code takes as well where there is none.
        self._ready_ns = record.submitted_ns if record.ready_ns is None else record.ready_ns
        try:
            self._file = (output / PARTIAL_OPS_FILE).open("ab")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file.truncate(0)
            # Steps and LZ4: 3 to 8 bytes a row instead of 29, in the time that it takes to write those.
            options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
            self._stream = pa.ipc.new_stream(self._file, self._schema, options=options)
        except BlockingIOError:
            self._file.close()
            raise DeviceError(f"{output}: another kvreplay writes its run there; name another with -o") from None
        except OSError as error:
            raise DeviceError(f"{output}: {error.strerror or error}") from None
        write_run(output, content)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._keep_all, name="journal", daemon=True)
        self._thread.start()

    def _keep_all(self) -> None:
        pause_s = _PERIOD_S
        while not self._is_over.wait(pause_s):
            started = monotonic_ns()
            if not self._try_to_keep():
                return
            pause_s = max(_PERIOD_S, (monotonic_ns() - started) / NS_PER_S / _MAX_SHARE)

    def _try_to_keep(self) -> bool:
        try:
            with self._lock:
                self.keep()
        except OSError as error:
            # The run itself goes on.
            self.trouble = f"{self._output}: {error.strerror or error}"
        return self.trouble is None

    def keep(self) -> None:
        """Append the operations that completed since the last call."""
        record, at, last, low = self._record, self._low, self._record.begun, _NONE
        place_step, submitted_step_ns, service_ns, *ready_ns, outcome, retries = self._fresh
        found = []
        while at < last:
            at, count, left = _collect(
                at, last, self._is_kept, record.submitted_ns, record.completed_ns, self._ready_ns, record.outcome,
                self._places, place_step, submitted_step_ns, service_ns, ready_ns[0] if ready_ns else service_ns,
                outcome, len(ready_ns),
            )  # fmt: skip
            low = left if low == _NONE else low
            if not count:
                continue
            if record.retries:
                again, places = record.retries, self._places[:count].tolist()
                retries[:count] = np.fromiter((again.get(row, 0) for row in places), np.int32, count)
            self._stream.write_batch(
                self._arrow.RecordBatch.from_arrays(
                    [self._arrow.array(column[:count]) for column in self._fresh], schema=self._schema
                )
            )
            if self._seen is not None:
                found.append(self._places[:count].copy())
        self._low = last if low == _NONE else low
        self._file.flush()
        if self._seen is not None and found:
            self._seen(np.concatenate(found))

    def pass_by(self, row: int) -> None:
        """Append what has completed, and never look at the rows before `row` again."""
        if self.trouble is None:
            self._try_to_keep()
        with self._lock:
            self._low = max(self._low, row)
            give_back(self._is_kept, self._passed, row)
            self._passed = row

    def stop(self) -> None:
        """Append what has completed since the last look, and stop."""
        if self._is_over.is_set():
            return
        self._is_over.set()
        self._thread.join()
        if self.trouble is None:
            self._try_to_keep()

    def remove(self) -> None:
        """Remove what was kept: the run has been written."""
        for name in (PARTIAL_RUN_FILE, PARTIAL_OPS_FILE):
            (self._output / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the stream, which releases its lock."""
        self.stop()
        with suppress(OSError):
            self._file.close()


@njit
def _collect(
    begin: int,
    end: int,
    is_kept: Any,
    submitted_ns: Any,
    completed_ns: Any,
    ready_ns: Any,
    outcome: Any,
    places: Any,
    place_step: Any,
    submitted_step_ns: Any,
    service_ns: Any,
    to_ready_ns: Any,
    to_outcome: Any,
    has_ready: int,
) -> tuple[int, int, int]:
    """Take the rows from `begin` to before `end` that have ended and are not kept, as many as `places` has room for.

    Returns:
        The first row that was not looked at, how many were taken, and the first that is not kept (-1: none).

    """
    found, row = 0, begin
    while row < end and found < len(places):
        if outcome[row] != SKIPPED and not is_kept[row]:
            places[found] = row
            found += 1
        row += 1
    # What is measured of an operation is there before its outcome.
    fence()
    count, before, before_ns = 0, 0, 0
    for i in range(found):
        at = places[i]
        if submitted_ns[at] == NOT_DONE:
            continue
        places[count], to_outcome[count] = at, outcome[at]
        place_step[count], submitted_step_ns[count] = at - before, submitted_ns[at] - before_ns
        service_ns[count] = completed_ns[at] - submitted_ns[at]
        if has_ready:
            to_ready_ns[count] = ready_ns[at]
        before, before_ns = at, submitted_ns[at]
        is_kept[at] = True
        count += 1
    left = begin
    while left < row and is_kept[left]:
        left += 1
    return row, count, left if left < row else _NONE


@contextmanager
def journal(
    output: Path, record: Record, content: PartialRunFile, seen: Callable[[Any], None] | None = None
) -> Iterator[Journal]:
    """Keep a journal of `record` in `output` until the run is written there; a failure leaves it for `recover`.

    `seen` takes the rows that have ended, about once a second.
    """
    kept = Journal(output, record, content, seen)
    try:
        yield kept
        kept.remove()
    finally:
        kept.close()


def is_unrecovered(path: Path) -> bool:
    """Return whether a run in `path` was cut off, or is going on."""
    return (path / PARTIAL_RUN_FILE).is_file()


@contextmanager
def unrecovered(path: Path) -> Iterator[PartialRunFile]:
    """Yield the manifest of the run in `path` that was cut off, and hold its lock.

    Raises:
        ConfigError: there is none.
        TraceError: its file is damaged.
        DeviceError: it is still going on, or cannot be read.

    """
    if not is_unrecovered(path):
        raise ConfigError(f"{path}: no run of kvreplay was cut off there; nothing to recover")
    try:
        content = read_partial_run(path)
        with (path / PARTIAL_OPS_FILE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield content
    except BlockingIOError:
        raise DeviceError(f"{path}: that run is still going on; wait for it, or stop it first") from None
    except OSError as error:
        raise DeviceError(f"{path}: cannot be read: {error}") from None


class JournaledRecord:
    """What the journal of a run kept, in a record whose rows are told as they are laid."""

    def __init__(self, path: Path, rows: int, *, is_open_loop: bool) -> None:
        """Look through the journal in `path` of `rows` rows; a last batch that is not whole is left out."""
        self.record = Record.empty(rows, is_open_loop=is_open_loop, laid=0)
        ends = [(int(columns["place"][0]), int(columns["place"][-1])) for columns in _batches(path)]
        self.reached = max((last for _, last in ends), default=NOT_DONE)
        """The last row that it tells of."""
        firsts = np.array([first for first, _ in ends], np.int64)
        # Of each batch and all after it: nothing more is told of the rows before.
        self._lows = np.minimum.accumulate(firsts[::-1])[::-1].tolist()
        self._batches, self._taken = _batches(path), 0

    def begin(self, _first: int, last: int) -> None:
        """Tell what was done of the rows before `last`."""
        self._begin(last)
        while self._taken < len(self._lows) and self._lows[self._taken] < last:
            self._take(next(self._batches))
            self._taken += 1

    def _begin(self, last: int) -> None:
        if last > self.record.begun:
            self.record.begin(self.record.begun, last)

    def _take(self, columns: dict[str, Any]) -> None:
        record, place = self.record, columns["place"]
        self._begin(int(place[-1]) + 1)
        record.submitted_ns[place] = submitted_ns = np.cumsum(columns["submitted_step_ns"])
        record.completed_ns[place] = submitted_ns + columns["service_ns"]
        record.outcome[place] = columns["outcome"]
        again = columns[_RETRIES] > 0
        record.retries.update(zip(place[again].tolist(), columns[_RETRIES][again].tolist(), strict=True))
        if record.ready_ns is not None:
            record.ready_ns[place] = columns["ready_ns"]

    def columns(self) -> list[Any]:
        """Return the arrays."""
        return self.record.columns()


def _batches(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the columns of each whole batch of the journal in `path`, and `place`."""
    import pyarrow as pa

    with (path / PARTIAL_OPS_FILE).open("rb") as file, suppress(pa.ArrowInvalid, OSError, StopIteration):
        stream = pa.ipc.open_stream(file)
        if "place_step" not in stream.schema.names:
            raise ConfigError(f"{path}: its journal is of another version of kvreplay; recover it with that one")
        while True:
            batch = stream.read_next_batch()
            columns = {name: batch.column(name).to_numpy() for name in batch.schema.names}
            yield columns | {"place": np.cumsum(columns["place_step"])}
