"""The files of a run.

Its tables (`ops`, one row a replayed trace row, and `series`), and run.json, written last.

A directory without `run.json` is no run, so a run that died is not taken for a whole one. While a
run goes on, a thread appends the newly completed operations once a second to a journal, an Arrow
stream beside run.partial.json, of which `kvreplay recover` can make a run. Both are removed when
the run is written; the lock on the stream tells a run that goes on from a dead one.
"""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic_ns
from typing import Protocol

import msgspec
import numpy as np

from kvreplay.engine.setting import Setting
from kvreplay.plan.output_directory import is_unrecovered
from kvreplay.plan.row_ring import JOURNAL, NONE, NOT_DONE, RowRing
from kvreplay.result.recording import RETRIES, RunRecorder
from kvreplay.tiers.objects import ObjectTier
from kvtrace.core import pa
from kvtrace.core.errors import ConfigError, DeviceError
from kvtrace.core.files import write_json
from kvtrace.core.metrics.native import OPS_A_PLACE
from kvtrace.core.native.library import call
from kvtrace.core.native.structs import Structure
from kvtrace.core.run.run_file import (
    PARTIAL_OPS_FILE,
    PARTIAL_RUN_FILE,
    RunBegun,
    read_manifest,
)
from kvtrace.core.schema import OPS, SERIES, Table, batch_of
from kvtrace.core.units import NS_PER_S

FROM_TRACE = ("op", "tier", "phase", "object_id", "request_id")
"""Columns that operations have of their trace."""


class Running(msgspec.Struct, frozen=True):
    """The path of the trace of a run that goes on."""

    trace: str
    """Its absolute path."""


class PartialRunFile(RunBegun, frozen=True, kw_only=True):
    """The content of run.partial.json, from which `kvreplay recover` restores a killed run."""

    running: Running


def shared_extras(table: Table, setting: Setting) -> tuple[str, ...]:
    """Return the extra columns that `table` of a run has.

    Those that it shares with the run's trace.
    """
    return tuple(column.name for column in table.extras if column.name in setting.reader.extras)


def ops_extras(setting: Setting) -> tuple[str, ...]:
    """Return the extra columns of a run's operations.

    The trace's, and their retries where object stores count them.
    """
    has_retries = any(isinstance(tier, ObjectTier) for tier in setting.tiers)
    return shared_extras(OPS, setting) + ((RETRIES,) if has_retries else ())


def series_batch(
    recorder: RunRecorder, over: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> pa.RecordBatch:
    """Return rows of `series`, by second, tier, drive and op, for the seconds `over`.

    Simulated tiers have no rows.
    """
    second, kind, counters = over
    place, op = kind // OPS_A_PLACE, kind % OPS_A_PLACE
    tier, count = recorder.tier_of[place], counters["operations"]
    is_alone = np.array([len(drives) <= 1 for drives in recorder.drives])[tier]
    columns = {
        "second": second,
        "tier": tier,
        "drive": np.where(is_alone, NONE, place - recorder.first_place[tier]),
        "op": op.astype(np.int8),
        "operations": count,
        "errors": counters["errors"],
        "bytes": counters["bytes"],
        "mean_ns": np.where(count == 0, NONE, counters["latency_ns"] // np.maximum(count, 1)),
        "p99_ns": counters["p99_ns"],
        "max_ns": np.where(count == 0, NONE, counters["most_ns"]),
    }
    return batch_of(SERIES, columns)


_PERIOD_S = 1.0
_MAX_SHARE = 0.01
"""Upper limit of the share of the time spent on scans for rows that have ended."""
_BATCH_ROWS = 1 << 14
"""Operations that are appended together, at most."""
_COLUMNS = {
    **dict.fromkeys(("place_step", "submitted_step_ns", "service_ns", "ready_ns"), np.int64),
    "outcome": np.int8,
    "retries": np.int32,
}
_KEPT = np.dtype(
    [
        *((name, np.int64) for name in ("place", "submitted_ns", "completed_ns", "ready_ns")),
        ("retries", np.int32),
        ("outcome", np.int8),
    ]
)
"""The columns of one row that are told on, with `place`, its number in the plan."""


class Listener(Protocol):
    """Receives the rows that have completed."""

    counters: Structure
    """`Watched` of journal.h."""

    def note(self) -> None:
        """Process the new counters."""


class Journal:
    """Appends completed operations to the stream, from a thread of its own."""

    def __init__(
        self, output: Path, rows: RowRing, content: PartialRunFile, listener: Listener | None = None
    ) -> None:
        """Write `content` to `output`, which exists, and begin the stream.

        `listener` receives the rows that each look found.

        DeviceError if the disk refuses, or another run is being written there.
        """
        self.trouble: str | None = None
        """Why nothing more is kept; None if all is."""
        self._rows, self._output, self._listener = rows, output, listener
        self._low = 0
        """The first row that is not kept."""
        self._lock = threading.Lock()
        self._schema = pa.schema(
            [(name, pa.from_numpy_dtype(kind)) for name, kind in _COLUMNS.items()]
        )
        max_rows = max(1, min(_BATCH_ROWS, len(rows)))
        self._fresh = {name: np.empty(max_rows, kind) for name, kind in _COLUMNS.items()}
        watched = 0 if listener is None else listener.counters
        self._batch = Structure(
            JOURNAL, "JournalBatch", **self._fresh, watched=watched, room=max_rows
        )
        try:
            self._file = (output / PARTIAL_OPS_FILE).open("ab")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file.truncate(0)
            # Steps and LZ4: 3 to 8 bytes a row instead of 29, in the time that it takes to write
            # those.
            options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
            self._stream = pa.ipc.new_stream(self._file, self._schema, options=options)
        except BlockingIOError:
            self._file.close()
            raise DeviceError(
                f"{output}: another kvreplay writes its run there; name another folder with -o"
            ) from None
        except OSError as error:
            raise DeviceError(f"{output}: {error.strerror or error}") from None
        write_json(output / PARTIAL_RUN_FILE, content)
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
                if self.trouble is None:
                    self.keep()
        except OSError as error:
            # The run itself goes on.
            self.trouble = f"{self._output}: {error.strerror or error}"
        return self.trouble is None

    def keep(self) -> None:
        """Append the operations that completed since the last call."""
        last, low = self._rows.struct.laid, NONE
        self._batch.set(at=self._low)
        while self._batch.at < last:
            count = call("journal_take", self._rows.address, self._batch)
            low = self._batch.left if low == NONE else low
            if not count:
                continue
            columns = [pa.array(column[:count]) for column in self._fresh.values()]
            self._stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        self._low = self._batch.at if low == NONE else low
        self._file.flush()
        if self._listener is not None:
            self._listener.note()

    def pass_by(self, row: int) -> None:
        """Append the rows that have completed.

        The rows before `row` will not be read again, because their places are reused.
        """
        self._try_to_keep()
        with self._lock:
            self._low = max(self._low, row)

    def stop(self) -> None:
        """Append the rows that have completed since the last look, and stop."""
        if self._is_over.is_set():
            return
        self._is_over.set()
        self._thread.join()
        self._try_to_keep()

    def close(self) -> None:
        """Close the stream, which releases its lock."""
        self.stop()
        with suppress(OSError):
            self._file.close()


def remove_journal(output: Path) -> None:
    """Remove the journal of the run in `output`, which has been written."""
    for name in (PARTIAL_RUN_FILE, PARTIAL_OPS_FILE):
        (output / name).unlink(missing_ok=True)


@contextmanager
def journal(
    output: Path, rows: RowRing, content: PartialRunFile, listener: Listener | None = None
) -> Iterator[Journal]:
    """Keep a journal of `rows` in `output` until the run is written there.

    A failure leaves it for `recover`.

    `listener` is told of the rows that have ended, about once a second.
    """
    run_journal = Journal(output, rows, content, listener)
    try:
        yield run_journal
        remove_journal(output)
    finally:
        run_journal.close()


@contextmanager
def unrecovered(path: Path) -> Iterator[PartialRunFile]:
    """Yield the manifest of the run in `path` that was cut off, and hold its lock.

    ConfigError if there is none. TraceError if its file is damaged. DeviceError if it is still
    going on, or cannot be read.
    """
    if not is_unrecovered(path):
        raise ConfigError(f"{path}: no unfinished run of kvreplay there; nothing to recover")
    try:
        content = read_manifest(path / PARTIAL_RUN_FILE, PartialRunFile)
        with (path / PARTIAL_OPS_FILE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield content
    except BlockingIOError:
        raise DeviceError(
            f"{path}: that run is still going on; wait for it, or stop it first"
        ) from None
    except OSError as error:
        raise DeviceError(f"{path}: cannot be read: {error}") from None


class JournaledRecord:
    """The content of a run's journal, applied to its rows as they are laid."""

    def __init__(self, path: Path, total: int) -> None:
        """Look through the journal in `path` of `total` rows.

        A last batch that is not whole is left out.
        """
        ends = [
            (int(f["place"][0]), int(f["place"][-1]), int(f["completed_ns"].max()))
            for f in _batches(path)
        ]
        self.reached = min(max((last for _, last, _ in ends), default=NOT_DONE), total - 1)
        """The last row that it tells of."""
        self.ended_ns = max((until_ns for *_, until_ns in ends), default=0)
        """The last completion that it tells of."""
        firsts = np.array([first for first, *_ in ends], np.int64)
        # Of each batch and all after it: nothing more is told of the rows before.
        self._lows = np.minimum.accumulate(firsts[::-1])[::-1].tolist()
        self._batches, self._taken = _batches(path), 0
        self._ahead = np.zeros(0, _KEPT)
        """Records of rows that are not laid yet."""

    def begin(self, first: int, rows: np.ndarray) -> None:
        """Copy the recorded results of the plan's rows from `first` on into `rows` (ROW).

        Calls follow each other in the order of rows.
        """
        last, records = first + len(rows), [self._ahead]
        while self._taken < len(self._lows) and self._lows[self._taken] < last:
            records.append(next(self._batches))
            self._taken += 1
        columns = np.concatenate(records)
        is_laid = columns["place"] < last
        self._ahead = columns[~is_laid]
        here = columns[is_laid]
        for name in ("submitted_ns", "completed_ns", "ready_ns", "retries", "outcome"):
            rows[name][here["place"] - first] = here[name]


def _batches(path: Path) -> Iterator[np.ndarray]:
    """Yield _KEPT of each whole batch of the journal in `path`."""
    with (
        (path / PARTIAL_OPS_FILE).open("rb") as file,
        suppress(pa.ArrowInvalid, OSError, StopIteration),
    ):
        stream = pa.ipc.open_stream(file)
        if stream.schema.names != list(_COLUMNS):
            raise ConfigError(
                f"{path}: its journal is of another version of kvreplay; recover it with that one"
            )
        while True:
            batch = stream.read_next_batch()
            records = np.empty(batch.num_rows, _KEPT)
            for name in ("ready_ns", "outcome", "retries"):
                records[name] = batch.column(name).to_numpy()
            records["place"] = np.cumsum(batch.column("place_step").to_numpy())
            records["submitted_ns"] = np.cumsum(batch.column("submitted_step_ns").to_numpy())
            records["completed_ns"] = (
                records["submitted_ns"] + batch.column("service_ns").to_numpy()
            )
            yield records
