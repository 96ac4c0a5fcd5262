"""Read block requests of kvreplay (blocks.parquet), blkparse (text) and bpftrace (histograms).

- blocks.parquet becomes a trace that kvreplay replays. Each start address of a request is an object: requests to an
  object keep their order if one of them is a write; all others are issued at their own times. Objects that overlap on
  the device are separate in a replay.
- blkparse's default format becomes one row a request: events between two completions at one device and first sector. A
  requeued request counts once, from its last issue; merged bios are no requests.
- bpftrace's print of the MLPerf benchmark's storage_latency_stack.bt becomes a probe.json. Its buckets are powers of
  two (`[512, 1K)`, `[0]`, `[8M, ...)`) in microseconds, KiB or requests, as the map's name says. A percentile within a
  bucket is null; its bounds are given.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kvdistill.formats.formats import Account, Imported, ImportOptions, Rows
from kvdistill.formats.importing import INPUT, fetch_row, finish, first_lines, leave_out, load
from kvdistill.queries.database import Row, literal, named, query
from kvdistill.queries.recorded import times_of_view
from kvdistill.queries.window import DELETE, OK
from kvtrace.core import duckdb, tables
from kvtrace.core.errors import ConfigError, TraceError, need_file
from kvtrace.core.metrics.distribution import ERROR
from kvtrace.core.run.probe_file import DirectionFigures
from kvtrace.core.run.run_file import BLOCKS_FILE
from kvtrace.core.schema import BLOCKS, MOST
from kvtrace.core.statistics import QUANTILES, at_rank, nearest_rank
from kvtrace.core.text import utf8_lines
from kvtrace.core.units import counted

_NOTES_OF_BLOCKS = [
    (
        "an object is a start address on the device; objects that overlap there are separate in a"
        " replay"
    ),
    "times are queueing times; the application operation of a request is unknown",
]


def read_blocks(
    files: Sequence[Path], options: ImportOptions, db: duckdb.DuckDBPyConnection
) -> Imported:
    """Import the requests of one device; `options.tier` names it if there are several.

    TraceError if the file is damaged, or holds no read or write. ConfigError for several files, an
    ambiguous device, or a device that does not exist.
    """
    if len(files) > 1:
        raise ConfigError(f"blocks: {len(files)} files; import one blocks.parquet at a time")
    (path,) = (file / BLOCKS_FILE if file.is_dir() else file for file in files)
    tables.open_checked(path, BLOCKS)
    if not path.name.endswith(".parquet"):
        raise TraceError("is not Parquet; kvtrace convert makes blocks.parquet of it", path=path)
    db.execute(f"CREATE VIEW measured AS SELECT * FROM read_parquet({literal(path)})")
    devices = [row["device"] for row in query(db, "measured_devices")]
    device = options.tier or (devices[0] if len(devices) == 1 else None)
    if devices and device not in devices:
        problem = (
            "choose a device with --tier"
            if device is None
            else f"device {device!r} has no I/O here"
        )
        raise ConfigError(f"{path}: {problem}: {', '.join(devices)}")
    db.execute(INPUT)
    db.execute(
        "INSERT INTO input SELECT 0, row_number() OVER (ORDER BY ts_ns, address), op,"
        f" printf('%016x', address), 0, length_bytes, ts_ns, NULL, {OK}, NULL FROM"
        f" ({named('measured_blocks')}) WHERE op <> {DELETE}",
        {"device": device, "processes": None},
    )
    account = Account(
        rows_read=fetch_row(db, "SELECT count(*) FROM measured")[0], notes=list(_NOTES_OF_BLOCKS)
    )
    rows, _first_ns = finish(db, [path], account, is_measured=False)
    other_requests = "other devices, discards, flushes, and requests without an issue"
    account.leave_out(other_requests, account.rows_read - account.rows_kept, f"in {path.name}")
    # Objects are numbered by address, because a replay lays them out in order of number: neighbours
    # stay neighbours.
    db.execute(
        "CREATE TABLE numbers AS SELECT object_id, row_number() OVER (ORDER BY key) - 1 AS number"
        " FROM objects"
    )
    for table in ("objects", "ordered"):
        db.execute(
            f"CREATE OR REPLACE TABLE {table} AS SELECT {table}.* REPLACE (number AS object_id) "
            f"FROM {table} JOIN numbers USING (object_id)"
        )
    return Imported(account, rows, [device or "device"])


_EVENT = (
    r"^\s*(\d+,\d+)\s+\d+\s+\d+\s+(\d+)\.(\d{9})\s+(\d+)\s+([A-Za-z]+)\s+([A-Z]+)"
    r"(?:\s+(\d+)(?: \+ (\d+))?)?\s*(?:\[(.*)\])?.*$"
)
_GROUPS = ("device", "seconds", "fraction", "pid", "action", "rwbs", "sector", "sectors", "said")
_MOST_OF_EVENT = {
    "seconds": 10 * 366 * 86_400,
    "pid": (1 << 31) - 1,
    "sector": MOST >> 9,
    "sectors": ((1 << 32) - 1) >> 9,
}


def read_blkparse(
    files: Sequence[Path], _options: ImportOptions, db: duckdb.DuckDBPyConnection
) -> Imported:
    """Import the text of one blktrace; several files must be of different devices.

    TraceError if a file is damaged or holds no request.
    """
    account = Account()
    db.execute(
        "CREATE TABLE events (file INTEGER, line BIGINT, device VARCHAR, ns BIGINT, pid INTEGER,"
        " action VARCHAR, rwbs VARCHAR, sector BIGINT, sectors BIGINT, said VARCHAR)"
    )
    for number, path in enumerate(files):
        _enter_events(db, number, path, account)
    db.execute(f"CREATE TABLE blocks AS {named('import_blocks')}")
    (account.rows_kept,) = fetch_row(db, "SELECT count(*) FROM blocks")
    if not account.rows_kept:
        raise TraceError(
            "holds no issue (D) or completion (C) of a request in blkparse's default format",
            path=files[0],
        )
    merges, requeues, without_end, without_issue = fetch_row(
        db,
        "SELECT (SELECT count(*) FROM events WHERE action IN ('M', 'F')), "
        "(SELECT count(*) FROM events WHERE action = 'R'), count(*) FILTER (complete_ns IS NULL), "
        "count(*) FILTER (issue_ns IS NULL) FROM blocks",
    )
    account.notes.append(
        "a row is a request, combined from its events; devices are major,minor numbers"
    )
    for count, unit, description in (
        (merges, "I/O", "merged into requests"),
        (requeues, "time", "a request was requeued and issued again"),
        (without_end, "request", "without a completion in the text"),
        (without_issue, "request", "without an issue in the text"),
    ):
        if count:
            account.notes.append(f"{counted(count, unit)} {description}")
    ordered = "FROM blocks ORDER BY coalesce(insert_ns, issue_ns, complete_ns), device, sector"
    return Imported(account, [Rows(BLOCKS_FILE, BLOCKS, ordered)], [], probe=block_figures(db))


def _enter_events(db: duckdb.DuckDBPyConnection, number: int, path: Path, account: Account) -> None:
    """Append the events in the text at `path`, file `number`, to the table `events`.

    Rejected lines are counted in `account`.
    """
    first_lines(path)
    # One column: no line holds this delimiter.
    load(db, path, ["text"], account, delimiter="\x01")
    # Ignore messages (action m), and blkparse's summary after the last event.
    (last_line,) = fetch_row(
        db, f"SELECT max(line) FROM raw WHERE regexp_matches(text, '{_EVENT}')"
    )
    if last_line is None:
        raise TraceError(
            "holds no event in blkparse's default form (`blkparse -i NAME` writes it)", path=path
        )
    for ignored in (
        r"regexp_matches(text, '^\s*\d+,\d+\s+\d+\s+\d+\s+\d+\.\d+\s+\d+\s+m\s')",
        f"line > {last_line}",
    ):
        account.rows_read -= fetch_row(db, f"DELETE FROM raw WHERE {ignored}")[0]
    leave_out(
        db,
        path,
        account,
        {"no event in blkparse's default form": f"NOT regexp_matches(text, '{_EVENT}')"},
    )
    fields = ", ".join(f"'{name}'" for name in _GROUPS)
    events = f"SELECT line, regexp_extract(text, '{_EVENT}', [{fields}]) AS e FROM raw"
    beyond = " OR ".join(
        f"(e.{name} <> '' AND coalesce(TRY_CAST(e.{name} AS BIGINT), {largest + 1}) > {largest})"
        for name, largest in _MOST_OF_EVENT.items()
    )
    too_large = f"line IN (SELECT line FROM ({events}) WHERE {beyond})"
    leave_out(db, path, account, {"numbers beyond any device's": too_large})
    db.execute(
        f"INSERT INTO events SELECT {number}, line, e.device, CAST(e.seconds AS BIGINT) *"
        " 1000000000 + CAST(e.fraction AS BIGINT), CAST(e.pid AS INTEGER), e.action, e.rwbs,"
        " coalesce(TRY_CAST(e.sector AS BIGINT), 0), coalesce(TRY_CAST(e.sectors AS BIGINT), 0),"
        f" e.said FROM ({events})"
    )


_NOTHING = {
    "count": 0,
    "mean_ns": None,
    **{f"{name}_ns": None for name in QUANTILES},
    "longest_below_ns": None,
}
_UNKNOWN = {
    field.name: None for field in msgspec.structs.fields(DirectionFigures) if field.default is None
}
_DEFINITIONS_OF_REQUESTS = {
    "q2d": "from a request's first event (queueing) to its last issue",
    "d2c": "from the last issue of a request to its completion",
    "block_sizes": "requests by their bytes when issued",
    "in_flight_at_dispatch": (
        "requests by the number in flight on their disk at their issue, in any direction, including "
        "themselves; one without a completion stays in flight"
    ),
    "percentiles": (
        "nearest rank; exact up to 10 million requests, beyond from a histogram, at most"
        f" {ERROR:.2%} off; null with fewer than 1 / (1 - q) requests"
    ),
}


def block_figures(db: duckdb.DuckDBPyConnection) -> dict[str, object]:
    """Return the content of probe.json for the table `blocks` in `db`.

    A figure that requests do not give is null.
    """
    for view, text in (("requests", "import_requests"), ("times", "import_times")):
        db.execute(f"CREATE VIEW {view} AS {named(text)}")
    span = (
        "max(greatest(insert_ns, issue_ns, complete_ns)) - min(least(insert_ns, issue_ns,"
        " complete_ns))"
    )
    (duration,) = db.sql(f"SELECT {span} FROM blocks").fetchall()[0]
    sizes = db.sql(
        "SELECT op, bytes, count(*) AS count FROM requests WHERE issue_ns IS NOT NULL GROUP BY ALL"
        " ORDER BY ALL"
    )
    figures = {
        "block_sizes": _by_direction(sizes.to_arrow_table().to_pylist()),
        "in_flight_at_dispatch": _by_direction(query(db, "import_depths")),
    }
    # Keyed by layer and direction.
    times: dict[tuple[str, str], Row] = defaultdict(
        lambda: _NOTHING | {"log2_ns": [], "fine_ns": []}
    )
    for layer, rows in times_of_view(db).summaries.items():
        for row in rows:
            # An exclusive upper bound, as a probe gives it.
            figures_of_row = row | {"longest_below_ns": row["max_ns"] + 1}
            times[layer, row["op"]] |= {name: figures_of_row[name] for name in _NOTHING}
    for row in query(db, "import_powers"):
        bucket = {name: row[name] for name in ("from", "below", "count")}
        times[row["measure"], row["op"]]["log2_ns"].append(bucket)
    directions = {
        row["op"]: {
            **_UNKNOWN,
            **{name: value for name, value in row.items() if name != "op"},
            **{layer: times[layer, row["op"]] for layer in ("q2d", "d2c")},
            **{name: rows[row["op"]] for name, rows in figures.items()},
        }
        for row in query(db, "import_totals")
    }
    block = {"directions": directions}
    return {"duration_ns": duration, "block": block, "definitions": _DEFINITIONS_OF_REQUESTS}


def _by_direction(rows: list[Row]) -> dict[str, list[Row]]:
    """Group `rows` by `op`, and drop that column."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["op"]].append({name: value for name, value in row.items() if name != "op"})
    return groups


_MAP = re.compile(r"@(\w+):\s*")
_SCALAR = re.compile(r"@(\w+)(?:\[[^\]]*\])?:\s+-?\d+\s*")
_BOUND = r"\d{1,18}[KMGT]?"
_BUCKET = re.compile(
    rf"(?:\[({_BOUND})|\(\.\.\.)(?:, ({_BOUND}|\.\.\.)\)|\])\s+(\d{{1,18}})\s+\|.*"
)
"""`[512, 1K)`, `[0]`, `[8M, ...)` or `(..., 0)`, and a count."""
_SCALE = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_MOST_IN_BUCKET = 1 << 50
"""No time, size or count of a bucket is larger, whatever its unit."""
_US, _KIB, _GIB = 1000, 1 << 10, 1 << 30
_BLOCK = re.compile(r"(q2d|d2c|bssplit|qd|lba)_(read|write)(?:_us|_kb|_gb)?")
_CALLS = {
    "vfs_read_us": "read",
    "vfs_write_us": "write",
    "fsync_us": "fsync",
    "write_to_fsync_us": "write_to_fsync",
    "fadvise_to_read_us": "fadvise_to_read",
}
_COUNTED = {"bssplit": ("block_size_bins", _KIB), "qd": ("in_flight_bins", 1)}
_ZONE_BYTES = 10 * _GIB
_DEFINITIONS_OF_HISTOGRAMS = {
    "q2d": (
        "from the insertion of a request into the scheduler's queue to its issue; empty without a"
        " scheduler"
    ),
    "d2c": "from the issue of a request to its completion, matched by device and sector",
    "block_size_bins": "requests by their bytes when issued",
    "in_flight_bins": ("requests by the number in flight of their direction at their issue"),
    "application": "read, write: time within vfs_read and vfs_write; gaps: on the same thread",
    "percentiles": "null: percentiles_within gives the bucket of each",
}


def read_bpftrace(
    files: Sequence[Path], _options: ImportOptions, _db: duckdb.DuckDBPyConnection
) -> Imported:
    """Import the text of one tracing session; of several files, all must hold different histograms.

    TraceError if a file is missing, holds no histogram, or repeats one.
    """
    account = Account()
    maps: dict[str, list[_Bucket]] = {}
    for path in files:
        for name, buckets in _maps(path, account).items():
            if not _BLOCK.fullmatch(name) and name not in _CALLS:
                example = f"{path.name}: @{name}, {counted(sum(bucket.count for bucket in buckets), 'value')}"
                account.leave_out("histograms that the script does not have", 1, example)
                continue
            if name in maps:
                raise TraceError(f"@{name} appears twice; import sessions one by one", path=path)
            negative = [bucket for bucket in buckets if bucket.low is None]
            account.leave_out(
                "below 0, which is not a time",
                sum(bucket.count for bucket in negative),
                f"{path.name}: @{name}",
            )
            maps[name] = [bucket for bucket in buckets if bucket.low is not None]
    if not maps:
        raise TraceError("holds no histogram of storage_latency_stack.bt", path=files[0])
    account.rows_kept = sum(len(buckets) for buckets in maps.values())
    account.notes += [
        (
            "buckets are powers of two, so percentiles are null; percentiles_within gives the"
            " bucket that each lies in"
        ),
        (
            "the script counts block requests of all processes and devices unless it was filtered,"
            " and a requeue twice"
        ),
        (
            "the script's queue depths stay too high after a requeue or an error: treat them as"
            " upper bounds"
        ),
    ]
    application = {kind: _histogram(maps[name]) for name, kind in _CALLS.items() if name in maps}
    probe: dict[str, object] = {
        "block": {"directions": _directions(maps), "zone_bytes": _ZONE_BYTES},
        "application": {"times": application} if application else None,
        "definitions": _DEFINITIONS_OF_HISTOGRAMS,
    }
    return Imported(account, [], [], probe=probe)


@dataclass(frozen=True, slots=True)
class _Bucket:
    """One bucket of a histogram, in the map's own unit."""

    low: int | None
    """Lower edge; null for values below 0."""
    below: int | None
    """Upper edge (exclusive); null without one."""
    count: int


def _maps(path: Path, account: Account) -> dict[str, list[_Bucket]]:
    """Return the buckets of each histogram in the text, with edges in the map's unit."""
    need_file(path)
    maps: dict[str, list[_Bucket]] = {}
    current: list[_Bucket] | None = None
    for number, line in enumerate(utf8_lines(path), 1):
        text = line.decode(errors="replace").strip()
        head = _MAP.fullmatch(text)
        if head:
            if head[1] in maps:
                raise TraceError(
                    f"@{head[1]} appears twice; import sessions one by one",
                    path=path,
                    row=number,
                )
            current = maps[head[1]] = []
        elif text.startswith(("[", "(")) and current is not None:
            bucket = _BUCKET.fullmatch(text)
            low, below = (None, None) if bucket is None else map(_number, bucket.groups()[:2])
            if bucket is not None and bucket[2] is None and low is not None:
                below = low + 1
            count = 0 if bucket is None else int(bucket[3])
            if bucket is None or max(low or 0, below or 0, count) > _MOST_IN_BUCKET:
                raise TraceError(
                    f"{text[:60]!r} is not a bucket of a histogram", path=path, row=number
                )
            current.append(_Bucket(low, below, count))
            account.rows_read += 1
        elif text and not _SCALAR.fullmatch(text):
            current = None
    return {name: buckets for name, buckets in maps.items() if buckets}


def _number(bound: str | None) -> int | None:
    if bound is None or bound == "...":
        return None
    digits = bound.rstrip("KMGT")
    return int(digits) * _SCALE[bound.removeprefix(digits)]


def _scaled(buckets: list[_Bucket], scale: int) -> list[_Bucket]:
    """Convert the edges of `buckets` by `scale`, and drop empty buckets."""
    return [
        _Bucket(
            (bucket.low or 0) * scale,
            None if bucket.below is None else bucket.below * scale,
            bucket.count,
        )
        for bucket in buckets
        if bucket.count
    ]


def _as_json(buckets: list[_Bucket]) -> list[dict[str, int | None]]:
    """Return `buckets` in the format of probe.json."""
    return [
        {"from": bucket.low, "below": bucket.below, "count": bucket.count} for bucket in buckets
    ]


def _directions(maps: dict[str, list[_Bucket]]) -> dict[str, dict[str, object]]:
    """Return the figures of each direction in the format of probe.json; others are null or empty."""
    layers: dict[str, dict[str, list[_Bucket]]] = defaultdict(dict)
    for name, buckets in maps.items():
        if match := _BLOCK.fullmatch(name):
            layers[match[2]][match[1]] = buckets
    return {
        direction: {
            **_UNKNOWN,
            "issued": sum(bucket.count for bucket in buckets_by_layer["bssplit"])
            if "bssplit" in buckets_by_layer
            else None,
            **{layer: _histogram(buckets_by_layer.get(layer, [])) for layer in ("q2d", "d2c")},
            **{name: [] for name in ("block_sizes", "in_flight_at_dispatch")},
            "heat": [
                {"device": None, "from_bytes": bucket.low, "requests": bucket.count, "bytes": None}
                for bucket in _scaled(buckets_by_layer.get("lba", []), _GIB)
            ],
            **{
                name: _as_json(_scaled(buckets_by_layer[layer], unit))
                for layer, (name, unit) in _COUNTED.items()
                if layer in buckets_by_layer
            },
        }
        for direction, buckets_by_layer in layers.items()
    }


def _histogram(buckets: list[_Bucket]) -> dict[str, object]:
    """Convert a histogram of microseconds to ns, with the bucket of each percentile."""
    scaled = _scaled(buckets, _US)
    count = sum(bucket.count for bucket in scaled)
    edges = [({"from": bucket.low, "below": bucket.below}, bucket.count) for bucket in scaled]
    return _NOTHING | {
        "count": count,
        "longest_below_ns": scaled[-1].below if scaled else None,
        "log2_ns": _as_json(scaled),
        "fine_ns": [],
        "percentiles_within": {
            name: at_rank(edges, nearest_rank(count, ten_thousandths))
            for name, ten_thousandths in QUANTILES.items()
        },
    }
