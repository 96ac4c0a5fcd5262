"""DuckDB with bounded memory, the named queries in `kvdistill/queries/sql`, and the figures of a run by them.

Figures are by tier and operation: counts, rates, times; the warm-up is left out, as in run.json.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtrace.core.errors import OutOfMemory
from kvtrace.core.statistics import QUANTILES
from kvtrace.core.units import NS_PER_S, parse_duration_ns

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa


MEMORY_LIMIT = "1GB"
THREADS = 2
BATCH_ROWS = 1 << 17
PERCENTILE = """
CREATE MACRO percentile(x, q) AS CASE WHEN count(x) * (1 - q) >= 1 THEN quantile_disc(x, q) END
"""
"""An aggregate for every query: nearest rank, null with fewer than 1 / (1 - q) values, as everywhere (statistics.py);
`q` is a literal such as 0.99, which DuckDB keeps exact."""


@contextmanager
def connect(scratch: Path | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection whose memory is bounded and which spills into `scratch`, or a folder of its own."""
    import duckdb

    with tempfile.TemporaryDirectory(prefix="kvdistill-", dir=scratch) as folder:
        connection = duckdb.connect(":memory:")
        try:
            connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
            connection.execute(f"SET temp_directory = {literal(Path(folder) / 'spill')}")
            connection.execute(f"SET threads = {THREADS}")
            connection.execute("SET enable_progress_bar = false")
            connection.execute(PERCENTILE)
            yield connection
        except duckdb.OutOfMemoryException as error:
            # It needs more than MEMORY_LIMIT, and cannot spill.
            first = str(error).strip().split("\n")[0]
            why = f"a query needs more than {MEMORY_LIMIT} of memory, and cannot do with less: {first}"
            raise OutOfMemory(why) from None
        finally:
            connection.close()


def literal(value: object) -> str:
    """Return `value` as an SQL string."""
    return "'" + str(value).replace("'", "''") + "'"


def query(connection: duckdb.DuckDBPyConnection, name: str, **values: object) -> list[dict[str, Any]]:
    """Return the rows of the named query in `kvdistill/queries/sql`, with `$name` parameters from `values`."""
    rows: list[dict[str, Any]] = query_table(connection, name, **values).to_pylist()
    return rows


def query_table(connection: duckdb.DuckDBPyConnection, name: str, **values: object) -> pa.Table:
    """Return the result of the named query as an Arrow table."""
    return connection.sql(named(name), params=values or None).to_arrow_table()


def write_query(connection: duckdb.DuckDBPyConnection, name: str, path: Path, **values: object) -> None:
    """Write the result of the named query to the Parquet file `path`, in its order, batch by batch."""
    import pyarrow.parquet as pq

    reader = connection.sql(named(name), params=values).to_arrow_reader(BATCH_ROWS)
    with pq.ParquetWriter(path, reader.schema, compression="zstd", compression_level=1) as out:
        for batch in reader:
            out.write_batch(batch)


def named(name: str) -> str:
    """Return the text of the named query."""
    return resources.files("kvdistill.queries").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")


_ROWS = re.compile(r"\s*([0-9]+)\s*(?:rows?)?\s*")
_TIMES = """
CREATE VIEW times AS
SELECT * FROM (
    SELECT tier, op::VARCHAR AS op, 'latency' AS measure, completed_ns - submitted_ns AS time_ns, outcome, engine
    FROM measured
    UNION ALL
    SELECT tier, op::VARCHAR, 'response', completed_ns - scheduled_ns, outcome, engine FROM measured
    UNION ALL
    SELECT tier, op::VARCHAR, 'lateness', submitted_ns - scheduled_ns, outcome, engine FROM measured
)
WHERE outcome = 'ok' AND engine <> 'sim' AND time_ns IS NOT NULL
"""
"""Service times (as run.json, `latency`), response times and lateness of what completed well; simulated tiers have no
such times, and a closed loop only service times."""
MEASURES = ("latency", "response", "lateness")


def measured_views(db: duckdb.DuckDBPyConnection, warmup: str | None) -> None:
    """Create over the view `ops` the views `measured` (without the warm-up) and `times` (a row a time).

    `warmup` is the run's `--warmup`: rows or a duration.
    """
    condition = "true"
    if warmup is not None:
        rows = _ROWS.fullmatch(warmup)
        started = "coalesce(scheduled_ns, submitted_ns)"
        lasts = "" if rows else f"({started} IS NULL OR {started} >= {parse_duration_ns(warmup)})"
        condition = f"row >= {int(rows.group(1))}" if rows else lasts
    db.execute(f"CREATE VIEW measured AS SELECT * FROM ops WHERE {condition}")
    db.execute(_TIMES)


def figures(db: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    """Return counts, bytes and rates by tier and operation, over the view `measured`."""
    found = query(db, "run_figures")
    for row in found:
        span_ns = row["span_ns"] if row["engine"] != "sim" else None
        moves = row["op"] != "delete" and row["bytes"] is not None
        row["bandwidth_bytes_per_s"] = row["bytes"] * NS_PER_S / span_ns if span_ns and moves else None
        row["operations_per_s"] = row["operations"] * NS_PER_S / span_ns if span_ns else None
    return found


def distributions(
    db: duckdb.DuckDBPyConnection, parts: Sequence[int]
) -> tuple[list[dict[str, Any]], dict[str, list[dict[str, Any]]]]:
    """Return times at `parts` (ten-thousandths, every QUANTILE among them), and summaries by measure.

    Null where there are too few operations. Over the view `times`.
    """
    points = query(db, "run_distributions", parts=list(parts))
    known = {(p["measure"], p["tier"], p["op"], p["share"]): p["time_ns"] for p in points}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in MEASURES}
    for row in query(db, "run_times"):
        key = (row["measure"], row["tier"], row["op"])
        quantiles = {f"{name}_ns": known.get((*key, part / 10_000)) for name, part in QUANTILES.items()}
        counted = {name: row[name] for name in ("tier", "op", "count", "mean_ns")}
        found[row["measure"]].append(counted | quantiles | {"max_ns": row["max_ns"]})
    return points, found
