"""The text of blkparse (of blktrace, in its default form) as block requests: one row a request.

Events of one request share its device and first sector, and lie between two completions there. A request issued again
after the driver gave it back counts once, from its last issue; I/Os that were merged into others are no requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvdistill.formats.block_figures import block_figures
from kvdistill.formats.formats import Account, Imported, Rows
from kvdistill.formats.rows import BLOCKS_FILE
from kvdistill.formats.text import first_line, leave_out, load, one
from kvdistill.profile.database import named
from kvtrace.core.errors import TraceError
from kvtrace.core.schema import BLOCKS, arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import duckdb

    from kvdistill.formats.formats import Options

_EVENT = (
    r"^\s*(\d+,\d+)\s+\d+\s+\d+\s+(\d+)\.(\d{9})\s+(\d+)\s+([A-Za-z]+)\s+([A-Z]+)"
    r"(?:\s+(\d+)(?: \+ (\d+))?)?\s*(?:\[(.*)\])?.*$"
)
_GROUPS = ("device", "seconds", "fraction", "pid", "action", "rwbs", "sector", "sectors", "said")
_BATCH_ROWS = 1 << 17


def read(files: Sequence[Path], _options: Options, db: duckdb.DuckDBPyConnection) -> Imported:
    """Import the text of one blktrace; of several files, each must be of devices of its own.

    Raises:
        TraceError: a file is damaged or holds no request.

    """
    account = Account()
    db.execute(
        "CREATE TABLE events (file INTEGER, line BIGINT, device VARCHAR, ns BIGINT, pid INTEGER, action VARCHAR, "
        "rwbs VARCHAR, sector BIGINT, sectors BIGINT, said VARCHAR)"
    )
    for number, path in enumerate(files):
        first_line(path)
        # One column: no line holds this delimiter.
        load(db, path, ["text"], account, delimiter="\x01")
        _leave_out(db, path, account)
        fields = ", ".join(f"'{name}'" for name in _GROUPS)
        db.execute(
            f"INSERT INTO events SELECT {number}, line, e.device, CAST(e.seconds AS BIGINT) * 1000000000 "  # noqa: S608 - ours
            "+ CAST(e.fraction AS BIGINT), CAST(e.pid AS INTEGER), e.action, e.rwbs, "
            "coalesce(TRY_CAST(e.sector AS BIGINT), 0), coalesce(TRY_CAST(e.sectors AS BIGINT), 0), e.said "
            f"FROM (SELECT line, regexp_extract(text, '{_EVENT}', [{fields}]) AS e FROM raw)"
        )
    db.execute(f"CREATE TABLE blocks AS {named('import_blocks')}")
    (account.kept,) = one(db, "SELECT count(*) FROM blocks")
    if not account.kept:
        raise TraceError("holds no issue (D) or completion (C) of a request in blkparse's default form", path=files[0])
    account.notes += _about(db)
    return Imported(account, [Rows(BLOCKS_FILE, BLOCKS, lambda: _batches(db))], [], probe=block_figures(db))


def _leave_out(db: duckdb.DuckDBPyConnection, path: Path, account: Account) -> None:
    """Delete lines that are no events: what follows the last event is blkparse's own summary."""
    (last,) = one(db, f"SELECT max(line) FROM raw WHERE regexp_matches(text, '{_EVENT}')")  # noqa: S608 - ours
    after, messages = one(
        db, f"SELECT count(*) FILTER (line > {-1 if last is None else last}), "  # noqa: S608 - ours
            r"count(*) FILTER (regexp_matches(text, '^\s*\d+,\d+\s+\d+\s+\d+\s+\d+\.\d+\s+\d+\s+m\s')) FROM raw",
    )  # fmt: skip
    account.rows -= after + messages
    if last is None:
        raise TraceError("holds no event in blkparse's default form (`blkparse -i NAME` writes it)", path=path)
    db.execute(r"DELETE FROM raw WHERE regexp_matches(text, '^\s*\d+,\d+\s+\d+\s+\d+\s+\d+\.\d+\s+\d+\s+m\s')")
    db.execute(f"DELETE FROM raw WHERE line > {last}")  # noqa: S608 - ours
    leave_out(db, path, account, "no event in blkparse's default form", f"NOT regexp_matches(text, '{_EVENT}')")


def _about(db: duckdb.DuckDBPyConnection) -> list[str]:
    merged, again, endless, unseen = one(
        db, "SELECT (SELECT count(*) FROM events WHERE action IN ('M', 'F')), "
            "(SELECT count(*) FROM events WHERE action = 'R'), count(*) FILTER (complete_ns IS NULL), "
            "count(*) FILTER (issue_ns IS NULL) FROM blocks",
    )  # fmt: skip
    notes = ["rows are requests, made of several events each; devices are major,minor numbers"]
    for count, what in (
        (merged, "I/Os were merged into requests"), (again, "times a request was given back and issued again"),
        (endless, "requests have no completion in the text"), (unseen, "requests have no issue in the text"),
    ):  # fmt: skip
        if count:
            notes.append(f"{count:,} {what}")
    return notes


def _batches(db: duckdb.DuckDBPyConnection) -> Iterator[Any]:
    import pyarrow as pa

    schema = arrow_schema(BLOCKS)
    ordered = "SELECT * FROM blocks ORDER BY coalesce(insert_ns, issue_ns, complete_ns), device, sector"
    for batch in db.sql(ordered).to_arrow_reader(_BATCH_ROWS):
        columns = [batch.column(name).cast(schema.field(name).type) for name in schema.names]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
