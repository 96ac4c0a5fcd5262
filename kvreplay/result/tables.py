"""The files of a run: its tables (`ops`, one row a replayed trace row, and `series`), and run.json, written last.

A directory without `run.json` is no run, so a run that died is not taken for a whole one; see journal.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kvreplay.config.setting import Setting
from kvreplay.engine.job import NOT_DONE, OK, SKIPPED, Record
from kvreplay.plan.plan import DELETE, Plan
from kvreplay.result.figures import io_bytes
from kvreplay.result.journal import is_unrecovered
from kvreplay.tiers.sharded import SeveralDrives
from kvreplay.tiers.tier import Tier
from kvtrace.core.errors import DeviceError
from kvtrace.core.metadata import Metadata
from kvtrace.core.run.run_file import (
    OPS_FILE,
    RUN_FILE,
    SERIES_FILE,
    SERVED_FILE,
    SWEEP_FILE,
    TRIALS_FILE,
)
from kvtrace.core.schema import OPS, SERIES, TABLES, Table, arrow_schema, enum_array, enum_code
from kvtrace.core.tables import create
from kvtrace.core.units import NS_PER_S

if TYPE_CHECKING:
    import pyarrow as pa

_FROM_TRACE = ("op", "tier", "phase", "object_id", "request_id")


def check_output(path: Path, *, is_forced: bool) -> None:
    """Raise DeviceError unless a run may be written to `path`: new, empty, or `is_forced`."""
    if not path.exists():
        if not path.parent.is_dir():
            raise DeviceError(f"{path.parent}: no such directory; make it first")
        return
    if not path.is_dir():
        raise DeviceError(f"{path} is not a directory; name the run's directory with -o")
    cut_off = next((run for run in (path, *sorted(path.glob("*/"))) if is_unrecovered(run)), None)
    if cut_off is not None and not is_forced:
        raise DeviceError(
            f"{cut_off} holds a run that goes on or was cut off; say kvreplay recover {cut_off}, or name another "
            "directory with -o, or say --force"
        )
    if is_forced or not any(path.iterdir()):
        return
    if _is_run(path):
        raise DeviceError(f"{path} holds a finished run; name another directory with -o, or say --force to replace it")
    raise DeviceError(f"{path} is not empty and holds no kvreplay run; name another with -o, or say --force")


def _is_run(path: Path) -> bool:
    """Return whether `path` holds a run, finished or not, or nothing but directories of runs."""
    if is_unrecovered(path):
        return True
    for name in (RUN_FILE, TRIALS_FILE, SWEEP_FILE):
        with suppress(OSError, msgspec.DecodeError, KeyError, TypeError):
            if msgspec.json.decode((path / name).read_bytes())["program"] == "kvreplay":
                return True
    inside = list(path.iterdir())
    return bool(inside) and all(entry.is_dir() and not entry.is_symlink() and _is_run(entry) for entry in inside)


def remove_stale(path: Path, kept: Collection[str]) -> None:
    """Remove runs of ours below `path`, of an earlier series, that no new one of `kept` will replace.

    Only files that a run consists of go; a directory goes if nothing is left in it.
    """
    for entry in sorted(path.glob("*/")):
        if entry.name in kept or entry.is_symlink() or not (entry / RUN_FILE).is_file() or not _is_run(entry):
            continue
        for name in (RUN_FILE, OPS_FILE, SERVED_FILE, SERIES_FILE):
            (entry / name).unlink(missing_ok=True)
        with suppress(OSError):
            entry.rmdir()


def make_directory(path: Path, manifest: str) -> None:
    """Make `path`, and remove an old `manifest` from it: it must not stand beside new results."""
    try:
        path.mkdir(exist_ok=True)
        (path / manifest).unlink(missing_ok=True)
    except OSError as error:
        raise DeviceError(f"{path}: {error.strerror}") from None


@dataclass(frozen=True, slots=True)
class Output:
    """One table of a run."""

    file: str
    meta: Metadata
    batches: Iterable[pa.RecordBatch]
    extras: tuple[str, ...] = ()


def write_table(path: Path, output: Output) -> None:
    """Write a table of the run in `path`."""
    with create(path / output.file, TABLES[output.meta.table], output.meta, output.extras) as out:
        for batch in output.batches:
            out.write(batch)


def shared_extras(table: Table, setting: Setting) -> tuple[str, ...]:
    """Return the extra columns that `table` of a run has: those that it shares with the run's trace."""
    return tuple(column.name for column in table.extras if column.name in setting.reader.extras)


def ops_batches(setting: Setting, record: Record, due_ns: Any) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the window with what was measured of them; null where nothing was."""
    import numpy as np

    plan, tiers, rows = setting.window.plan, setting.tiers, setting.window.rows
    engines = np.array([enum_code(OPS, "engine", "none" if t is None else t.engine) for t in tiers], dtype=np.int8)
    at = 0
    for batch in setting.reader.batches(_FROM_TRACE + shared_extras(OPS, setting)):
        batch = batch.slice(0, rows - at)  # noqa: PLW2901 - the window ends within it
        first, last = np.searchsorted(plan.row, [at, at + batch.num_rows])
        part = slice(int(first), int(last))
        measured = _measured(plan, record, due_ns, tiers, part)
        yield _with_retries(_ops_batch(batch, at, measured, plan.row[part] - at, engines), record, plan, part, at)
        at += batch.num_rows
        if at >= rows:
            return


def _measured(plan: Plan, record: Record, due_ns: Any, tiers: Sequence[Tier | None], part: slice) -> dict[str, Any]:
    """Return the measured columns of a part of the planned rows, -1 where there is nothing."""
    import numpy as np

    simulated = np.array([t is not None and t.is_simulated for t in tiers])[plan.tier[part]]
    outcome = record.outcome[part]
    is_done = (outcome == OK) & ~simulated
    # A delete moves no bytes: 0 is what was measured.
    moved = np.where(plan.op[part] == DELETE, 0, plan.length[part])
    return {
        "scheduled_ns": np.full(len(outcome), NOT_DONE) if due_ns is None else due_ns[part],
        "submitted_ns": record.submitted_ns[part],
        "completed_ns": record.completed_ns[part],
        "bytes": np.where(is_done, moved, NOT_DONE),
        "io_bytes": np.where(is_done, io_bytes(plan, tiers, part), NOT_DONE),
        "outcome": outcome,
    }


def _ops_batch(batch: pa.RecordBatch, at: int, measured: dict[str, Any], places: Any, engines: Any) -> pa.RecordBatch:
    import numpy as np
    import pyarrow as pa

    count = batch.num_rows
    columns: dict[str, Any] = dict(zip(batch.schema.names, batch.columns, strict=True))
    extras = tuple(batch.schema.names[len(_FROM_TRACE) :])
    columns["row"] = pa.array(np.arange(at, at + count), pa.int64())
    for name, values in measured.items():
        if name == "outcome":
            codes = np.full(count, SKIPPED, np.int8)
            codes[places] = values
            columns[name] = enum_array(OPS, name, codes)
        else:
            spread = np.full(count, NOT_DONE, np.int64)
            spread[places] = values
            columns[name] = pa.array(spread, pa.int64(), mask=spread == NOT_DONE)
    used = np.full(count, enum_code(OPS, "engine", "none"), np.int8)
    used[places] = engines[batch.column("tier").to_numpy()[places]]
    columns["engine"] = enum_array(OPS, "engine", used)
    names = [*OPS.names, *extras]
    return pa.RecordBatch.from_arrays([columns[n] for n in names], schema=arrow_schema(OPS, extras))


def extras_of(table: Table, setting: Setting, record: Record) -> tuple[str, ...]:
    """Return the extra columns of a run's table: the trace's, and of operations their retries where there were any."""
    return shared_extras(table, setting) + ((_RETRIES,) if table is OPS and record.retries else ())


def _with_retries(batch: pa.RecordBatch, record: Record, plan: Plan, part: slice, at: int) -> pa.RecordBatch:
    """Return `batch`, the rows from `at` and planned as `part`, with their retries if any operation had some."""
    import numpy as np
    import pyarrow as pa

    if not record.retries:
        return batch
    retries = np.zeros(batch.num_rows, np.int32)
    for planned, count in record.retries.items():
        if part.start <= planned < part.stop:
            retries[plan.row[planned] - at] = count
    return batch.append_column(arrow_schema(OPS, (_RETRIES,)).field(_RETRIES), pa.array(retries))


_RETRIES = "retries"
_P99_NEEDS = 100
_OPS = 3


def series_batch(plan: Plan, record: Record, tiers: Sequence[Tier | None]) -> pa.RecordBatch:
    """Return the table `series`: a row for each second, tier, drive and op with a completion, simulated tiers aside."""
    import numpy as np
    import pyarrow as pa

    moves = np.array([t is not None and not t.is_simulated for t in tiers])[plan.tier]
    rows = np.flatnonzero(moves & (record.outcome != SKIPPED) & (record.submitted_ns != NOT_DONE))
    # What failed has no completion: it counts where it was submitted.
    ended = np.where(record.completed_ns[rows] == NOT_DONE, record.submitted_ns[rows], record.completed_ns[rows])
    places = [tier.drives if isinstance(tier, SeveralDrives) else [tier] for tier in tiers]
    starts = np.cumsum([0, *(len(of_tier) for of_tier in places)])
    place = starts[plan.tier[rows]]
    for index, tier in enumerate(tiers):
        if isinstance(tier, SeveralDrives):
            here = plan.tier[rows] == index
            place[here] += tier.drive_of[plan.object_id[rows[here]]]
    count = int(starts[-1])
    key = (ended // NS_PER_S * count + place) * _OPS + plan.op[rows]
    order = np.argsort(key, kind="stable")
    rows, key = rows[order], key[order]
    keys, firsts = np.unique(key, return_index=True)
    groups = np.split(rows, firsts[1:]) if len(keys) else []
    found: list[tuple[Any, ...]] = [_figures(plan, record, group) for group in groups]
    columns = [list(c) for c in zip(*found, strict=True)] if found else [[] for _ in range(6)]
    at = keys // _OPS % count
    tier_of = np.searchsorted(starts, at, side="right") - 1
    is_alone = np.array([len(of_tier) == 1 for of_tier in places])[tier_of]
    arrays = [
        pa.array(keys // _OPS // count, pa.int64()),
        pa.array(tier_of, pa.int8()),
        pa.array(at - starts[tier_of], pa.int16(), mask=is_alone),
        enum_array(SERIES, "op", (keys % _OPS).astype(np.int8)),
        *(pa.array(c, pa.int64()) for c in columns),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(SERIES))


def _figures(plan: Plan, record: Record, rows: Any) -> tuple[int | None, ...]:
    import numpy as np

    good = rows[record.outcome[rows] == OK]
    latency = np.sort(record.completed_ns[good] - record.submitted_ns[good])
    count = len(good)
    moved = int(plan.length[good].sum()) if plan.op[rows[0]] != DELETE else 0
    return (
        count,
        len(rows) - count,
        moved,
        int(latency.mean()) if count else None,
        int(latency[-(-count * 99 // 100) - 1]) if count >= _P99_NEEDS else None,
        int(latency[-1]) if count else None,
    )
