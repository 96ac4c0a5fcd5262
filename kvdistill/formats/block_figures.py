"""What imported block requests come to: a probe.json, as `kvreplay probe` writes one, so that reports can read it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from kvdistill.profile.database import named, query
from kvtrace.core.statistics import QUANTILES

if TYPE_CHECKING:
    import duckdb

_UNKNOWN = (
    "requeues", "requests_merged", "bios", "bio_bytes", "bios_merged", "splits", "lost_events", "lost_requests",
    "ends_not_seen", "lost_zones",
)  # fmt: skip
_DEFINITIONS = {
    "q2d": "from when a request was inserted into the scheduler's queue to its last issue",
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
    (duration,) = db.sql(f"SELECT {span} FROM blocks").fetchall()[0]  # noqa: S608 - ours
    sizes = db.sql(
        "SELECT op, bytes, count(*) AS count FROM requests WHERE issue_ns IS NOT NULL GROUP BY ALL ORDER BY ALL"
    )
    found = {"block_sizes": _by(sizes.to_arrow_table().to_pylist()),
             "in_flight_at_dispatch": _by(query(db, "import_depths"))}  # fmt: skip
    times = _times(db)
    directions = {
        row["op"]: {
            **dict.fromkeys(_UNKNOWN), **{name: value for name, value in row.items() if name != "op"},
            **{layer: times[layer, row["op"]] for layer in ("q2d", "d2c")},
            **{name: rows[row["op"]] for name, rows in found.items()},
            "per_second": [], "heat": [],
        }
        for row in query(db, "import_totals")
    }  # fmt: skip
    return {
        "duration_ns": duration, "event_rows": None,
        "block": {"directions": directions, "zone_bytes": None, "in_flight_at_end": None},
        "application": None, "definitions": _DEFINITIONS,
    }  # fmt: skip


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
            "count": row["count"], "mean_ns": row["mean_ns"], "longest_below_ns": row["max_ns"] + 1,
            "log2_ns": [], "fine_ns": [],
        }  # fmt: skip
    names = {part / 10_000: f"{name}_ns" for name, part in QUANTILES.items()}
    for row in query(db, "run_distributions", parts=list(QUANTILES.values())):
        found[row["measure"], row["op"]][names[row["share"]]] = row["time_ns"]
    for row in query(db, "import_powers"):
        bucket = {name: row[name] for name in ("from", "below", "count")}
        found[row["measure"], row["op"]]["log2_ns"].append(bucket)
    return found
