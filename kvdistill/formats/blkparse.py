"""The text of blkparse (of blktrace, in its default form) as block requests: one row a request.

Events of one request share its device and first sector, and lie between two completions there. A request issued again
after the driver gave it back counts once, from its last issue; I/Os that were merged into others are no requests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvdistill.formats.formats import Account, Imported, ImportOptions, Rows
from kvdistill.formats.text import first_line, leave_out, load, one
from kvdistill.queries.database import named, query
from kvtrace.core.errors import TraceError
from kvtrace.core.run.run_file import BLOCKS_FILE
from kvtrace.core.schema import BLOCKS, MOST, arrow_schema
from kvtrace.core.statistics import QUANTILES

if TYPE_CHECKING:
    import duckdb

_EVENT = (
    r"^\s*(\d+,\d+)\s+\d+\s+\d+\s+(\d+)\.(\d{9})\s+(\d+)\s+([A-Za-z]+)\s+([A-Z]+)"
    r"(?:\s+(\d+)(?: \+ (\d+))?)?\s*(?:\[(.*)\])?.*$"
)
_GROUPS = ("device", "seconds", "fraction", "pid", "action", "rwbs", "sector", "sectors", "said")
_MOST = {"seconds": 10 * 366 * 86_400, "pid": (1 << 31) - 1, "sector": MOST >> 9, "sectors": ((1 << 32) - 1) >> 9}
_BATCH_ROWS = 1 << 17


def read(files: Sequence[Path], _options: ImportOptions, db: duckdb.DuckDBPyConnection) -> Imported:
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
        events = f"SELECT line, regexp_extract(text, '{_EVENT}', [{fields}]) AS e FROM raw"
        beyond = " OR ".join(
            f"(e.{name} <> '' AND coalesce(TRY_CAST(e.{name} AS BIGINT), {most + 1}) > {most})"
            for name, most in _MOST.items()
        )
        leave_out(
            db, path, account, "numbers beyond any device's", f"line IN (SELECT line FROM ({events}) WHERE {beyond})"
        )
        db.execute(
            f"INSERT INTO events SELECT {number}, line, e.device, CAST(e.seconds AS BIGINT) * 1000000000 "
            "+ CAST(e.fraction AS BIGINT), CAST(e.pid AS INTEGER), e.action, e.rwbs, "
            "coalesce(TRY_CAST(e.sector AS BIGINT), 0), coalesce(TRY_CAST(e.sectors AS BIGINT), 0), e.said "
            f"FROM ({events})"
        )
    db.execute(f"CREATE TABLE blocks AS {named('import_blocks')}")
    (account.kept,) = one(db, "SELECT count(*) FROM blocks")
    if not account.kept:
        raise TraceError("holds no issue (D) or completion (C) of a request in blkparse's default form", path=files[0])
    account.notes += _about(db)
    return Imported(account, [Rows(BLOCKS_FILE, BLOCKS, lambda: _batches(db))], [], probe=block_figures(db))


def _leave_out(db: duckdb.DuckDBPyConnection, path: Path, account: Account) -> None:
    """Delete lines that are no events: what follows the last event is blkparse's own summary."""
    (last,) = one(db, f"SELECT max(line) FROM raw WHERE regexp_matches(text, '{_EVENT}')")
    after, messages = one(
        db,
        f"SELECT count(*) FILTER (line > {-1 if last is None else last}), "
        r"count(*) FILTER (regexp_matches(text, '^\s*\d+,\d+\s+\d+\s+\d+\s+\d+\.\d+\s+\d+\s+m\s')) FROM raw",
    )
    account.rows -= after + messages
    if last is None:
        raise TraceError("holds no event in blkparse's default form (`blkparse -i NAME` writes it)", path=path)
    db.execute(r"DELETE FROM raw WHERE regexp_matches(text, '^\s*\d+,\d+\s+\d+\s+\d+\s+\d+\.\d+\s+\d+\s+m\s')")
    db.execute(f"DELETE FROM raw WHERE line > {last}")
    leave_out(db, path, account, "no event in blkparse's default form", f"NOT regexp_matches(text, '{_EVENT}')")


def _about(db: duckdb.DuckDBPyConnection) -> list[str]:
    merged, again, endless, unseen = one(
        db,
        "SELECT (SELECT count(*) FROM events WHERE action IN ('M', 'F')), "
        "(SELECT count(*) FROM events WHERE action = 'R'), count(*) FILTER (complete_ns IS NULL), "
        "count(*) FILTER (issue_ns IS NULL) FROM blocks",
    )
    notes = ["rows are requests, made of several events each; devices are major,minor numbers"]
    for count, what in (
        (merged, "I/Os were merged into requests"),
        (again, "times a request was given back and issued again"),
        (endless, "requests have no completion in the text"),
        (unseen, "requests have no issue in the text"),
    ):
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


_UNKNOWN = (
    "requeues",
    "requests_merged",
    "bios",
    "bio_bytes",
    "bios_merged",
    "splits",
    "lost_events",
    "lost_requests",
    "ends_not_seen",
    "lost_zones",
)
_DEFINITIONS = {
    "q2d": "from a request's first event, when its I/O was queued, to its last issue",
    "d2c": "from the last issue of a request to its completion",
    "block_sizes": "requests by their bytes when issued",
    "in_flight_at_dispatch": "requests by how many their disk had in flight when they were issued, in any direction, "
    "themselves included; one without a completion stays in flight",
    "percentiles": "nearest rank, exact; null with fewer than 1 / (1 - q) requests",
}


def block_figures(db: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    """Return the content of probe.json for the table `blocks` in `db`; null is what requests do not tell."""
    for view, text in (("requests", "import_requests"), ("times", "import_times")):
        db.execute(f"CREATE VIEW {view} AS {named(text)}")
    span = "max(greatest(insert_ns, issue_ns, complete_ns)) - min(least(insert_ns, issue_ns, complete_ns))"
    (duration,) = db.sql(f"SELECT {span} FROM blocks").fetchall()[0]
    sizes = db.sql(
        "SELECT op, bytes, count(*) AS count FROM requests WHERE issue_ns IS NOT NULL GROUP BY ALL ORDER BY ALL"
    )
    found = {
        "block_sizes": _by(sizes.to_arrow_table().to_pylist()),
        "in_flight_at_dispatch": _by(query(db, "import_depths")),
    }
    times = _times(db)
    directions = {
        row["op"]: {
            **dict.fromkeys(_UNKNOWN),
            **{name: value for name, value in row.items() if name != "op"},
            **{layer: times[layer, row["op"]] for layer in ("q2d", "d2c")},
            **{name: rows[row["op"]] for name, rows in found.items()},
            "per_second": [],
            "heat": [],
        }
        for row in query(db, "import_totals")
    }
    return {
        "duration_ns": duration,
        "event_rows": None,
        "block": {"directions": directions, "zone_bytes": None, "in_flight_at_end": None},
        "application": None,
        "definitions": _DEFINITIONS,
    }


def _by(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return `rows` by their `op`, without it."""
    kept: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        kept[row["op"]].append({name: value for name, value in row.items() if name != "op"})
    return kept


def _times(db: duckdb.DuckDBPyConnection) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the times of each layer and direction."""
    nothing = {"count": 0, "mean_ns": None, **{f"{name}_ns": None for name in QUANTILES}, "longest_below_ns": None}
    found: dict[tuple[str, str], dict[str, Any]] = defaultdict(lambda: nothing | {"log2_ns": [], "fine_ns": []})
    for row in query(db, "run_times"):
        # A bound, as the probe gives: the longest is below it.
        found[row["measure"], row["op"]] = nothing | {
            "count": row["count"],
            "mean_ns": row["mean_ns"],
            "longest_below_ns": row["max_ns"] + 1,
            "log2_ns": [],
            "fine_ns": [],
        }
    names = {part / 10_000: f"{name}_ns" for name, part in QUANTILES.items()}
    for row in query(db, "run_distributions", parts=list(QUANTILES.values())):
        found[row["measure"], row["op"]][names[row["share"]]] = row["time_ns"]
    for row in query(db, "import_powers"):
        bucket = {name: row[name] for name in ("from", "below", "count")}
        found[row["measure"], row["op"]]["log2_ns"].append(bucket)
    return found
