"""The files of a run: its tables (`ops`, one row a replayed trace row, and `series`), and run.json, written last.

A directory without `run.json` is no run, so a run that died is not taken for a whole one; see journal.py.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from kvreplay.config.setting import Setting
from kvreplay.native.rows import NONE
from kvreplay.result.counts import KINDS, RETRIES, CountedOperations
from kvreplay.result.journal import is_unrecovered
from kvreplay.tiers.objects import ObjectTier
from kvtrace.core.errors import DeviceError
from kvtrace.core.run.run_file import (
    OPS_FILE,
    RUN_FILE,
    SERIES_FILE,
    SERVED_FILE,
    SWEEP_FILE,
    TRIALS_FILE,
)
from kvtrace.core.schema import OPS, SERIES, Table, batch_of

if TYPE_CHECKING:
    import pyarrow as pa

FROM_TRACE = ("op", "tier", "phase", "object_id", "request_id")
"""Columns that operations have of their trace."""


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
        remove_empty(entry)


def make_directory(path: Path, manifest: str) -> None:
    """Make `path`, and remove an old `manifest` from it: it must not stand beside new results."""
    try:
        path.mkdir(exist_ok=True)
        (path / manifest).unlink(missing_ok=True)
    except OSError as error:
        raise DeviceError(f"{path}: {error.strerror}") from None


def remove_empty(path: Path) -> None:
    """Remove `path` if nothing is in it."""
    with suppress(OSError):
        path.rmdir()


def shared_extras(table: Table, setting: Setting) -> tuple[str, ...]:
    """Return the extra columns that `table` of a run has: those that it shares with the run's trace."""
    return tuple(column.name for column in table.extras if column.name in setting.reader.extras)


def ops_extras(setting: Setting) -> tuple[str, ...]:
    """Return the extra columns of a run's operations: the trace's, and their retries where object stores count them."""
    has_retries = any(isinstance(tier, ObjectTier) for tier in setting.tiers)
    return shared_extras(OPS, setting) + ((RETRIES,) if has_retries else ())


def series_batch(found: CountedOperations) -> pa.RecordBatch:
    """Return the table `series`: a row for each second, tier, drive and op with a completion, simulated tiers aside."""
    second, kind, each = found.seconds.found()
    place, op = kind // KINDS, kind % KINDS
    tier, count = found.places.tier_of[place], each["operations"]
    is_alone = np.array([len(drives) == 1 for drives in found.places.drives])[tier]
    columns = {
        "second": second,
        "tier": tier,
        "drive": np.where(is_alone, NONE, place - found.places.starts[tier]),
        "op": op.astype(np.int8),
        "operations": count,
        "errors": each["errors"],
        "bytes": each["bytes"],
        "mean_ns": np.where(count == 0, NONE, each["latency_ns"] // np.maximum(count, 1)),
        "p99_ns": each["p99_ns"],
        "max_ns": np.where(count == 0, NONE, each["most_ns"]),
    }
    return batch_of(SERIES, columns)
