"""fio's logs of windows of time, as a series by the second: no I/O stands in them by itself.

- `*_bw.N.log` and `*_iops.N.log`: the rate since the line before, in KiB/s and 1/s (or one I/O a line).
- `*_lat.N.log` and `*_clat.N.log` with `log_avg_msec`: the mean latency of a window, without a count.
- `*_clat_hist.N.log` (`write_hist_log`): ms, direction, bytes of an I/O, then the count of each latency bin since the
  line before. fio has 64 bins for each power of two of nanoseconds; `log_hist_coarseness` joins 2, 4, ... of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvdistill.formats.formats import Account, Rows
from kvdistill.formats.text import first_line, first_lines, leave_out, load, one
from kvdistill.queries.database import literal, named
from kvtrace.core.errors import TraceError
from kvtrace.core.run.run_file import SERIES_FILE
from kvtrace.core.schema import MOST, MOST_BYTES, SERIES, arrow_schema, enum_array
from kvtrace.core.statistics import QUANTILES, nearest_rank
from kvtrace.core.units import NS_PER_S

if TYPE_CHECKING:
    import duckdb

COLUMNS = ("ms", "value", "direction", "bytes", "c5", "c6", "c7")
"""Of every log of fio but histograms; what the last three hold depends on its options."""
LEAST = 4
_OPS = ("read", "write")
_KIB = 1024
_YEAR_MS = 366 * 86_400_000
_MOST = {"ms": MOST // 1_000_000, "value": MOST, "bytes": MOST_BYTES, "direction": 1 << 30}
_PART_BITS = 6
"""Of a latency bin's number: its place within a power of two."""
_BINS = 29 << _PART_BITS
_MOST_COARSENESS = 6
_NOTHING = dict.fromkeys(("mean_ns", "p50_ns", "p95_ns", "p99_ns", "p99_9_ns", "p99_99_ns", "max_ns"))


class Window(StrEnum):
    """What a log says of a window, by the end of its name."""

    BANDWIDTH = "bw"
    RATES = "iops"
    MEANS = "means"
    """Of latencies: a name does not tell them from single ones."""
    HISTOGRAMS = "clat_hist"


def holds_means(path: Path) -> bool:
    """Return whether the latency log at `path` holds means of windows: no line of an I/O has its bytes."""
    found = [line.split(",") for line in first_lines(path)]
    sizes = [fields[3].strip() for fields in found if len(fields) >= LEAST and fields[2].strip() in ("0", "1")]
    return bool(sizes) and all(size == "0" for size in sizes)


def width(path: Path) -> int:
    """Return how many columns the log at `path` has; TraceError if fio writes no such log."""
    count = first_line(path).count(",") + 1
    if not LEAST <= count <= len(COLUMNS):
        raise TraceError(f"has {count} columns, where a log of fio has {LEAST} to {len(COLUMNS)}", path=path, row=0)
    return count


def unlike(name: str) -> str:
    """Return SQL that is true where the text `name` is no whole number that its column may hold."""
    return f"coalesce(TRY_CAST({name} AS BIGINT), -1) NOT BETWEEN 0 AND {_MOST.get(name, MOST)}"


def leave_out_odd(db: duckdb.DuckDBPyConnection, path: Path, account: Account) -> None:
    """Delete the lines of `raw` that are no reads or writes in whole numbers, and count them."""
    leave_out(db, path, account, "no whole numbers", " OR ".join(map(unlike, COLUMNS[:LEAST])))
    leave_out(db, path, account, "trims free a part of a file, not an object", "CAST(direction AS BIGINT) = 2")
    leave_out(db, path, account, "a direction that is not known", "CAST(direction AS BIGINT) > 2")


def window_series(
    db: duckdb.DuckDBPyConnection, files: dict[Path, Window], tier: str, account: Account
) -> tuple[Rows, dict[str, Any]]:
    """Return the series of `files`, all jobs added up, and the figures of the whole."""
    db.execute("CREATE TABLE rates (kind VARCHAR, op TINYINT, from_ms BIGINT, to_ms BIGINT, amount DOUBLE)")
    counts: dict[int, Any] = {}
    for path, kind in files.items():
        if kind is Window.HISTOGRAMS:
            _enter_histograms(db, path, account, counts)
        else:
            _enter(db, path, kind, account)
    if not one(db, "SELECT count(*) FROM rates")[0]:
        raise TraceError("holds no rate", path=next(iter(files)))
    _count_from_the_start(db, account)
    db.execute(f"CREATE TABLE series AS {named('import_series')}")
    return Rows(SERIES_FILE, SERIES, lambda: _batches(db)), _summary(db, tier, counts)


def _enter(db: duckdb.DuckDBPyConnection, path: Path, kind: Window, account: Account) -> None:
    """Append what each line of `path` says to `rates`: an amount, or a mean times its time."""
    load(db, path, COLUMNS[: width(path)], account, delimiter=",")
    leave_out_odd(db, path, account)
    kept, averages = one(db, "SELECT count(*), count(*) FILTER (CAST(bytes AS BIGINT) = 0) FROM raw")
    account.kept += kept
    if kind is Window.MEANS:
        account.notes.append(
            f"{path.name} holds mean latencies of windows (log_avg_msec; the longest, with log_max_value), no I/Os: a "
            "second's mean is that of its windows, each by its time, since the log has no counts"
        )
    elif averages:
        account.notes.append(
            f"{path.name} holds mean rates: amounts are rate times time; what came after its last line is absent"
        )
    # One I/O counts as itself; a mean counts for the time since the line before.
    numbers = ", ".join(f"CAST({name} AS BIGINT) AS {name}" for name in COLUMNS[:LEAST])
    each, unit = {Window.BANDWIDTH: ("bytes", _KIB / 1000), Window.RATES: ("1", 1 / 1000)}.get(kind, ("value", 1))
    db.execute(
        f"INSERT INTO rates SELECT '{kind}', direction, if(bytes > 0, ms, before), ms, "
        f"if(bytes > 0, {each}, value::DOUBLE * {unit} * (ms - before)) FROM ("
        f"SELECT *, lag(ms, 1, {_START}) OVER (PARTITION BY direction ORDER BY line) AS before FROM ("
        f"SELECT line, {numbers} FROM raw))"
    )


_START = f"if(ms > {_YEAR_MS}, ms, 0)"
"""SQL for when the first window began: fio's start, or unknown where the log has the date (log_unix_epoch)."""


def _enter_histograms(db: duckdb.DuckDBPyConnection, path: Path, account: Account, counts: dict[int, Any]) -> None:
    """Append the I/Os and bytes of each line of `path` to `rates`, and its bins to `counts`, by operation."""
    bins = first_line(path).count(",") - 2
    coarseness = next((c for c in range(_MOST_COARSENESS + 1) if bins == _BINS >> c), None)
    if coarseness is None:
        raise TraceError(f"has {bins} latency bins, where fio from 2.99 on writes {_BINS}, or 1/2, 1/4, ...", path=path)
    names = ["ms", "direction", "bytes", *(f"b{n}" for n in range(bins))]
    load(db, path, names, account, delimiter=",")
    odd = " OR ".join(map(unlike, names[:3]))
    db.execute(
        f"CREATE OR REPLACE TABLE raw AS SELECT line, ms, direction, bytes, "
        f"list_transform([{', '.join(names[3:])}], lambda n: coalesce(TRY_CAST(n AS BIGINT), -1)) AS bins FROM raw"
    )
    wrong = f"list_min(bins) < 0 OR list_max(bins) > {1 << 40}"
    leave_out(db, path, account, "no whole numbers", f"{odd} OR {wrong}")
    leave_out(db, path, account, "trims free a part of a file, not an object", "CAST(direction AS BIGINT) = 2")
    leave_out(db, path, account, "a direction that is not known", "CAST(direction AS BIGINT) > 2")
    account.kept += one(db, "SELECT count(*) FROM raw")[0]
    account.notes.append(
        f"{path.name} holds histograms of completion latencies, no I/Os: a percentile is the longest time of its bin, "
        f"1/{64 >> coarseness} of a power of two wide; what came after its last line is absent"
    )
    for kind, amount in ((Window.RATES, "list_sum(bins)"), (Window.BANDWIDTH, "list_sum(bins) * bytes::DOUBLE")):
        db.execute(
            f"INSERT INTO rates SELECT {literal(kind)}, direction, before, ms, {amount} FROM ("
            f"SELECT *, lag(ms, 1, {_START}) OVER (PARTITION BY direction ORDER BY line) AS before FROM ("
            "SELECT line, ms::BIGINT AS ms, direction::TINYINT AS direction, bytes, bins FROM raw))"
        )
    for op in (0, 1):
        # As text: a column a bin would be 1,856 columns of a query.
        for (row,) in db.execute(f"SELECT bins FROM raw WHERE CAST(direction AS BIGINT) = {op}").fetchall():
            fine = counts.setdefault(op, np.zeros(_BINS, dtype=np.int64))
            fine[(np.arange(bins) + 1 << coarseness) - 1] += np.array(row, dtype=np.int64)


def _below_ns(bin_: int) -> int:
    """Return the first time that is above those of a bin."""
    power = max(bin_ >> _PART_BITS, 1) - 1
    return (bin_ - (power << _PART_BITS) + 1) << power


def _count_from_the_start(db: duckdb.DuckDBPyConnection, account: Account) -> None:
    """Let dates count from the first line; leave out what is then more than a year later."""
    (first,) = one(db, "SELECT min(to_ms) FROM rates")
    if first > _YEAR_MS:
        account.notes.append("times are dates (log_unix_epoch): they count from the first line here")
        db.execute(f"UPDATE rates SET from_ms = greatest(from_ms - {first}, 0), to_ms = to_ms - {first}")
    # Out of order, a window would last less than no time.
    (late,) = one(db, f"SELECT count(*) FROM rates WHERE to_ms > {_YEAR_MS} OR to_ms < from_ms")
    account.leave_out("a time before the line above, or a year after the start", late, "in one of the logs")
    account.kept -= late
    db.execute(f"DELETE FROM rates WHERE to_ms > {_YEAR_MS} OR to_ms < from_ms")


def _summary(db: duckdb.DuckDBPyConnection, tier: str, counts: dict[int, Any]) -> dict[str, Any]:
    """Return figures of the whole time, null where no log tells."""
    totals = db.execute(
        "SELECT op, CAST(round(sum(amount) FILTER (kind = 'iops')) AS BIGINT), "
        "CAST(round(sum(amount) FILTER (kind = 'bw')) AS BIGINT), max(to_ms) FROM rates GROUP BY op ORDER BY op"
    ).fetchall()
    figures = []
    for op, operations, moved, span_ms in totals:
        seconds = span_ms / 1000 or None
        figures.append(
            {
                "tier": tier,
                "op": _OPS[op],
                "engine": "other",
                "is_simulated": False,
                "planned": None,
                "operations": operations,
                "errors": None,
                "corrupt": 0,
                "bytes": moved,
                "io_bytes": moved,
                "span_ns": span_ms * NS_PER_S // 1000,
                "bandwidth_bytes_per_s": None if moved is None or seconds is None else moved / seconds,
                "operations_per_s": None if operations is None or seconds is None else operations / seconds,
                "in_flight_mean": None,
                "latency": {"count": 0} | _NOTHING | _percentiles(counts.get(op)),
                "lateness": None,
            }
        )
    known = [f["operations"] for f in figures if f["operations"] is not None]
    return {
        "verdict": "imported from fio-log",
        "wall_ns": max((f["span_ns"] for f in figures), default=None),
        "operations": sum(known) if known else None,
        "errors": None,
        "not_reached": None,
        "pace": None,
        "in_flight_mean": None,
        "warmup": None,
        "skipped_rows": {},
        "figures": figures,
    }


def _percentiles(counts: Any) -> dict[str, Any]:
    """Return what bins tell of a distribution, each value the longest of its bin; nothing without bins."""
    if counts is None or not counts.sum():
        return {}
    total, upto = int(counts.sum()), np.cumsum(counts)
    ranks = {name: nearest_rank(total, part) for name, part in QUANTILES.items()}
    return {"count": total} | {
        f"{name}_ns": None if rank is None else _below_ns(int(np.searchsorted(upto, rank))) - 1
        for name, rank in ranks.items()
    }


def _batches(db: duckdb.DuckDBPyConnection) -> Iterator[Any]:
    import pyarrow as pa

    schema = arrow_schema(SERIES)
    for batch in db.sql("SELECT * FROM series ORDER BY second, op").to_arrow_reader(1 << 17):
        count = batch.num_rows
        columns = {
            "second": batch.column("second"),
            "tier": pa.array(np.zeros(count, dtype=np.int8)),
            "op": enum_array(SERIES, "op", batch.column("op").to_numpy()),
            **{name: batch.column(name) for name in ("operations", "bytes", "mean_ns")},
        }
        arrays = [
            columns[field.name].cast(field.type) if field.name in columns else pa.nulls(count, field.type)
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
