"""fio's iolog, version 3 (each line begins with a time in microseconds) and 2 (no times, but for `wait`).

A file is an object, and an operation keeps its offset. Trims and syncs have no place in our tables: a trim frees a part
of a file, where our delete frees an object.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvdistill.formats.formats import Account, Imported
from kvdistill.formats.rows import INPUT, OK, READ, WRITE, finish
from kvdistill.formats.text import first_line, leave_out, load, one
from kvtrace.core.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import duckdb

    from kvdistill.formats.formats import Options

TIER = "fio"
_HEAD = re.compile(r"fio version ([23]) iolog\s*")
_FILE_ACTIONS = "'add', 'open', 'close'"
_IO = "'read', 'write'"


def read(files: Sequence[Path], options: Options, db: duckdb.DuckDBPyConnection) -> Imported:
    """Import one log, or the logs of jobs that ran at the same time, merged by time.

    Raises:
        TraceError: a file is no iolog, is damaged, or has no read or write.

    """
    account = Account()
    db.execute(INPUT)
    for number, path in enumerate(files):
        version = _version(path)
        names = ["name", "action", "offset_bytes", "length_bytes"]
        load(db, path, ["us", *names] if version == 3 else names, account, delimiter=" ", skip=1)  # noqa: PLR2004 - the version
        actions, waits = one(
            db,
            f"SELECT count(*) FILTER (action IN ({_FILE_ACTIONS})), count(*) FILTER (action = 'wait') FROM raw",  # noqa: S608 - ours
        )
        account.rows -= actions + waits
        _leave_out(db, path, account, version)
        db.execute(
            f"INSERT INTO input SELECT {number}, line, CASE action WHEN 'read' THEN {READ} ELSE {WRITE} END, name, "  # noqa: S608 - ours
            "CAST(offset_bytes AS BIGINT), CAST(length_bytes AS BIGINT), us * 1000, NULL, "
            f"{OK}, NULL FROM ({_timed(version)}) WHERE action IN ({_IO})"
        )
        if version == 2:  # noqa: PLR2004 - the version
            account.notes.append(
                f"{path.name} is of version 2: "
                + ("its times are those of its wait lines, in ms from the start" if waits else "it has no times, so "
                   "all operations share one instant")
            )  # fmt: skip
    rows, _first_ns = finish(db, files, is_measured=False)
    (account.kept,) = one(db, "SELECT count(*) FROM input")
    account.notes.append("requests, stages and phases are not in the log; the size of a file is the furthest byte used")
    return Imported(account, rows, [options.tier or TIER])


def _version(path: Path) -> int:
    found = _HEAD.fullmatch(first_line(path))
    if found is None:
        raise TraceError("its first line is not 'fio version 2 iolog' or 'fio version 3 iolog'", path=path, row=1)
    return int(found[1])


def _leave_out(db: duckdb.DuckDBPyConnection, path: Path, account: Account, version: int) -> None:
    no_place = " OR ".join(f"coalesce(TRY_CAST({n} AS BIGINT), -1) < 0" for n in ("offset_bytes", "length_bytes"))
    conditions = [
        ("syncs have no place in our tables", "action IN ('sync', 'datasync', 'sync_file_range')"),
        ("trims free a part of a file, not an object", "action = 'trim'"),
        ("an action that is not known", f"coalesce(action, '') NOT IN ('wait', 'read', 'write', {_FILE_ACTIONS})"),
        ("no offset and length in whole bytes", f"action IN ({_IO}) AND ({no_place})"),
    ]
    if version == 3:  # noqa: PLR2004 - the version
        conditions.append(("no time in whole microseconds", "coalesce(TRY_CAST(us AS BIGINT), -1) < 0"))
    for reason, condition in conditions:
        leave_out(db, path, account, reason, condition)


def _timed(version: int) -> str:
    """Return SQL for `raw` with `us`, the time in microseconds."""
    if version == 3:  # noqa: PLR2004 - the version
        return "SELECT * REPLACE (CAST(us AS BIGINT) AS us) FROM raw"
    waited = "CASE WHEN action = 'wait' THEN TRY_CAST(offset_bytes AS BIGINT) END"
    return f"SELECT *, 1000 * coalesce(max({waited}) OVER (ORDER BY line), 0) AS us FROM raw"  # noqa: S608 - ours
