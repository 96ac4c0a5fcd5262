"""Read fio's iologs (`write_iolog`), the logs that a fio job replays.

A file is an object, and an operation keeps its offset. Trims and syncs cannot be stored: a trim frees
part of a file, a delete of the trace frees an object. Version 2 has times only in its `wait` lines, in
ms from the start; each line of version 3 begins with a time in microseconds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from kvdistill.formats.formats import (
    ABSOLUTE,
    FIO_TIER,
    RELATIVE,
    Account,
    Imported,
    ImportOptions,
)
from kvdistill.formats.importing import INPUT, fetch_row, finish, first_lines, leave_out, load
from kvdistill.queries.window import OK, READ, WRITE
from kvtrace.core import duckdb, pl
from kvtrace.core.errors import TraceError
from kvtrace.core.schema import MOST, MOST_BYTES

_HEAD = re.compile(r"fio version ([23]) iolog\s*")
_FILE_ACTIONS = "'add', 'open', 'close'"
_IO = "'read', 'write'"


def read_iolog(
    files: Sequence[Path], options: ImportOptions, db: duckdb.DuckDBPyConnection
) -> Imported:
    """Import one log, or the logs of jobs that ran at the same time, merged by time.

    TraceError if a file is not an iolog, is damaged, or has no read or write.
    """
    account = Account()
    db.execute(INPUT)
    for number, path in enumerate(files):
        match = _HEAD.fullmatch(first_lines(path)[0])
        if match is None:
            raise TraceError(
                "its first line is not 'fio version 2 iolog' or 'fio version 3 iolog'",
                path=path,
                row=1,
            )
        version = int(match[1])
        names = ["name", "action", "offset_bytes", "length_bytes"]
        load(
            db,
            path,
            ["us", *names] if version == RELATIVE else names,
            account,
            delimiter=" ",
            skip=1,
        )
        actions, waits = fetch_row(
            db,
            f"SELECT count(*) FILTER (action IN ({_FILE_ACTIONS})), count(*) FILTER (action ="
            " 'wait') FROM raw",
        )
        account.rows_read -= actions + waits
        invalid = " OR ".join(
            f"coalesce(TRY_CAST({column} AS BIGINT), -1) NOT BETWEEN 0 AND {limit}"
            for column, limit in (("offset_bytes", MOST), ("length_bytes", MOST_BYTES))
        )
        reasons = {
            "syncs cannot be stored in a kvtrace table": (
                "action IN ('sync', 'datasync', 'sync_file_range')"
            ),
            "trims free part of a file, not an object": "action = 'trim'",
            "an unknown action": (
                f"coalesce(action, '') NOT IN ('wait', 'read', 'write', {_FILE_ACTIONS})"
            ),
            "offset or length is not in whole bytes": f"action IN ({_IO}) AND ({invalid})",
        }
        if version == RELATIVE:
            reasons["time is not in whole microseconds"] = (
                "coalesce(TRY_CAST(us AS BIGINT), -1) < 0"
            )
        leave_out(db, path, account, reasons)
        # `timed` adds `us`, the time in microseconds.
        wait_ms = "CASE WHEN action = 'wait' THEN TRY_CAST(offset_bytes AS BIGINT) END"
        timed = f"SELECT *, 1000 * coalesce(max({wait_ms}) OVER (ORDER BY line), 0) AS us FROM raw"
        if version == RELATIVE:
            timed = "SELECT * REPLACE (CAST(us AS BIGINT) AS us) FROM raw"
        db.execute(
            f"INSERT INTO input SELECT {number}, line, CASE action WHEN 'read' THEN {READ} ELSE"
            f" {WRITE} END, name, CAST(offset_bytes AS BIGINT), CAST(length_bytes AS BIGINT), us *"
            f" 1000, NULL, {OK}, NULL FROM ({timed}) WHERE action IN ({_IO})"
        )
        if version == ABSOLUTE:
            time_note = "its times come from wait lines, in ms from the start"
            time_note = (
                time_note if waits else "it has no times, so all operations share one instant"
            )
            account.notes.append(f"{path.name} is of version 2: {time_note}")
    rows, _first_ns = finish(db, files, account, is_measured=False)
    account.notes.append(
        "the log has no requests, stages and phases; a file's size is the farthest byte used"
    )
    return Imported(account, rows, [options.tier or FIO_TIER])


class PlacedOperations(TypedDict):
    """Reads and writes in order of time, one value an operation."""

    us: NDArray[np.int64]
    """Due times, in microseconds."""
    is_read: NDArray[np.bool_]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]


def logged_ios(path: Path) -> PlacedOperations:
    """Return the I/Os of a log of version 3, as fio writes it, in order."""
    lines = pl.Series(path.read_text(encoding="utf-8").splitlines()[1:], dtype=pl.String)
    # Lines of other actions than reads and writes are shorter, and do not match.
    ios = lines.str.extract_groups(
        r"^(?<us>\d+) \S+ (?<action>\w+) (?<offset>\d+) (?<length>\d+)$"
    ).struct.unnest()
    us, offset, length = (
        ios[name].drop_nulls().cast(pl.Int64).to_numpy() for name in ("us", "offset", "length")
    )
    is_read = (ios["action"].drop_nulls() == "read").to_numpy()
    return {"us": us, "is_read": is_read, "offset": offset, "length": length}
