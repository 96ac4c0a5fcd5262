"""Read LMCache's trace of its L2 adapter (`l2.lct`): the I/O of LMCache on its storage.

LMCache stores and loads the chunks of a task together. A task has a record when it is submitted,
with the keys and sizes of its objects, and one when it is completed:
https://github.com/daegyu94/lmcache-tracebench (docs/l2-tracing.md)

    l2.store.submitted, .completed          writes; the completion counts the objects that failed
    l2.load_task.submitted, .completed      reads; the completion lists the objects that succeeded
    l2.delete.submitted                     deletes, without an end
    l2.lookup_task.*, l2.unlock.submitted   no I/O of data: counted, and left out
    l2.trace.end                            counts of records that were lost

Each object is an operation from its task's submission to its task's completion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec

from kvdistill.formats.formats import Account, Imported, ImportOptions
from kvdistill.formats.importing import INPUT, finish
from kvdistill.queries.window import DELETE, ERROR, OK, READ, WRITE
from kvtrace.core import duckdb, pa
from kvtrace.core.errors import TraceError
from kvtrace.core.files import place_of
from kvtrace.core.lmcache_frames import LmcacheTrace, TraceRecord, untagged
from kvtrace.core.schema import MOST, MOST_BYTES
from kvtrace.core.units import NS_PER_S, counted

T = TypeVar("T")
TIER: Final = "l2"
"""Default name of the tier of an import."""
_OPERATIONS: Final = {"l2.store": WRITE, "l2.load_task": READ, "l2.delete": DELETE}
_END: Final = "l2.trace.end"

_Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
_Bytes = Annotated[int, msgspec.Meta(ge=0, le=MOST_BYTES)]


class _Key(msgspec.Struct):
    """The name of an object."""

    chunk_hash: bytes
    model_name: str
    kv_rank: int
    object_group_id: int = 0
    cache_salt: str = ""

    @property
    def text(self) -> str:
        """The key as one word."""
        salt = f"{self.cache_salt}/" if self.cache_salt else ""
        group = f"{self.model_name}/{self.kv_rank}/{self.object_group_id}"
        return f"{salt}{group}/{self.chunk_hash.hex()}"


class _Submission(msgspec.Struct):
    keys: list[_Key]
    object_sizes: list[_Bytes] | None = None
    task_id: int | None = None
    adapter_index: int = 0


class _Completion(msgspec.Struct):
    task_id: int
    adapter_index: int = 0
    succeeded_count: _Count | None = None
    failed_count: _Count = 0
    success_indices: list[_Count] | None = None


class _TraceEnd(msgspec.Struct):
    recorder_dropped_count: _Count = 0
    event_bus_dropped_count: _Count = 0


_TaskName = tuple[str, int, int]
"""Kind of a task, adapter, and number."""


@dataclass(slots=True)
class _Task:
    """A task that was submitted, and how it ended."""

    row: int
    operation: int
    start_ns: int
    keys: list[_Key]
    sizes: list[int]
    end_ns: int | None = None
    completion: _Completion | None = None


@dataclass(slots=True)
class _Tasks:
    """The tasks of a trace, and counts of its other records."""

    trace: LmcacheTrace
    tasks: list[_Task] = field(default_factory=list)
    open_tasks: dict[_TaskName, _Task] = field(default_factory=dict)
    other_records: Counter[str] = field(default_factory=Counter)
    unmatched_completions: int = 0
    end: _TraceEnd | None = None

    def add(self, number: int, record: TraceRecord) -> None:
        """Enter the record `number`; TraceError if it does not have the fields of its kind."""
        kind, _, event = record.qualname.rpartition(".")
        if record.qualname == _END:
            self.end = self._fields(record, _TraceEnd, number)
        elif kind not in _OPERATIONS or event not in ("submitted", "completed"):
            self.other_records[record.qualname] += 1
        elif event == "submitted":
            self._submit(kind, record, number)
        else:
            self._complete(kind, record, number)

    def _submit(self, kind: str, record: TraceRecord, number: int) -> None:
        submission = self._fields(record, _Submission, number)
        operation = _OPERATIONS[kind]
        sizes = submission.object_sizes
        if sizes is None and operation == DELETE:
            sizes = [0] * len(submission.keys)
        if sizes is None or len(sizes) != len(submission.keys):
            problem = f"{len(submission.keys)} keys need as many object_sizes"
            raise TraceError(problem, path=self.trace.path, row=number, column="object_sizes")
        task = _Task(number, operation, _ns(record), submission.keys, sizes)
        self.tasks.append(task)
        if submission.task_id is not None:
            self.open_tasks[kind, submission.adapter_index, submission.task_id] = task

    def _complete(self, kind: str, record: TraceRecord, number: int) -> None:
        completion = self._fields(record, _Completion, number)
        task = self.open_tasks.pop((kind, completion.adapter_index, completion.task_id), None)
        if task is None:
            self.unmatched_completions += 1
            return
        task.end_ns, task.completion = _ns(record), completion

    def _fields(self, record: TraceRecord, kind: type[T], number: int) -> T:
        try:
            return msgspec.convert(untagged(record.args), kind)
        except msgspec.ValidationError as error:
            message, place = place_of(error)
            raise TraceError(message, path=self.trace.path, row=number, column=place) from None


def read_l2_trace(
    files: Sequence[Path], options: ImportOptions, db: duckdb.DuckDBPyConnection
) -> Imported:
    """Import the trace of one LMCache server, or those of several that ran at the same time.

    Raises:
        TraceError: if a file is no such trace, is damaged, or has no store, load or delete.
    """
    account = Account()
    db.execute(INPUT)
    starts_unix_ns = []
    is_measured = False
    for number, path in enumerate(files):
        tasks = _Tasks(LmcacheTrace(path, "l2"))
        for row, record in tasks.trace:
            tasks.add(row, record)
        start_unix_ns = round(tasks.trace.header.t_wall_start * NS_PER_S)
        starts_unix_ns.append(start_unix_ns)
        rows = _operations(tasks, path, account)
        is_measured = is_measured or any(row[3] is not None for row in rows)
        _insert(db, number, start_unix_ns, rows)
        account.notes += _notes(tasks, path)
    written_rows, first_ns = finish(db, files, account, is_measured=is_measured)
    account.notes += [
        "an operation is one object; it lasts from its task's submission to its task's completion",
        "the trace holds tasks of the adapter, not requests: prompts and hits are unknown",
    ]
    has_date = all(starts_unix_ns)
    tiers = [options.tier or TIER]
    return Imported(account, written_rows, tiers, first_unix_ns=first_ns if has_date else None)


_Row = tuple[int, int, str, int | None, int, int, int]
"""Number of the object among all of the file, operation, key, end, start, bytes, outcome."""


def _operations(tasks: _Tasks, path: Path, account: Account) -> list[_Row]:
    """Return an operation for each object of the tasks, and account for those that are left out."""
    rows: list[_Row] = []
    for task in tasks.tasks:
        account.rows_read += len(task.keys)
        outcomes = _outcomes(task)
        if outcomes is None:
            reason = (
                "a store of which some objects failed, without their names"
                if task.completion
                else "a task without a completion"
            )
            account.leave_out(reason, len(task.keys), f"{path.name}, record {task.row}")
            continue
        for key, size, outcome in zip(task.keys, task.sizes, outcomes, strict=True):
            times = task.end_ns, task.start_ns
            rows.append((len(rows), task.operation, key.text, *times, size, outcome))
    return rows


def _outcomes(task: _Task) -> list[int] | None:
    """Return the outcome of each object of a task; None if it is unknown."""
    count, completion = len(task.keys), task.completion
    if task.operation == DELETE:
        return [OK] * count
    if completion is None:
        return None
    if task.operation == READ and completion.success_indices is not None:
        succeeded = set(completion.success_indices)
        return [OK if index in succeeded else ERROR for index in range(count)]
    if completion.failed_count == 0 and completion.succeeded_count in (None, count):
        return [OK] * count
    return [ERROR] * count if completion.succeeded_count == 0 else None


def _insert(
    db: duckdb.DuckDBPyConnection, file: int, start_unix_ns: int, rows: Sequence[_Row]
) -> None:
    """Append the operations of file number `file` to the table `input`."""
    lines, operations, names, ends, starts, sizes, outcomes = (
        zip(*rows, strict=True) if rows else ((),) * 7
    )
    table = pa.table(
        {
            "line": pa.array(lines, pa.int64()),
            "op": pa.array(operations, pa.int8()),
            "name": pa.array(names, pa.string()),
            "length_bytes": pa.array(sizes, pa.int64()),
            "start_ns": pa.array(starts, pa.int64()),
            "end_ns": pa.array(ends, pa.int64()),
            "outcome": pa.array(outcomes, pa.int8()),
        }
    )
    db.register("l2_operations", table)
    db.execute(
        f"INSERT INTO input SELECT {file}, line, op, name, 0, length_bytes, start_ns +"
        f" {start_unix_ns}, if(end_ns >= start_ns, end_ns + {start_unix_ns}, NULL), outcome, NULL"
        " FROM l2_operations"
    )
    db.unregister("l2_operations")


def _notes(tasks: _Tasks, path: Path) -> list[str]:
    """Return notes on records that are not used, and on records that the trace lost."""
    notes = []
    if tasks.other_records:
        names = ", ".join(f"{count} {name}" for name, count in sorted(tasks.other_records.items()))
        notes.append(f"{path.name}: records without I/O of data are not used: {names}")
    if tasks.unmatched_completions:
        completions = counted(tasks.unmatched_completions, "completion")
        notes.append(f"{path.name}: {completions} of tasks whose submission is not in the trace")
    if tasks.end is None:
        notes.append(f"{path.name}: without the record of its end: the recording may be cut short")
    elif lost := tasks.end.recorder_dropped_count + tasks.end.event_bus_dropped_count:
        notes.append(f"{path.name}: {counted(lost, 'record')} were lost by the recorder")
    return notes


def _ns(record: TraceRecord) -> int:
    return round(record.t_mono * NS_PER_S)
