"""What reports share: the provenance of what is reported on, what it wears out, and tables with their charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec

from kvtrace.core.document.document import (
    Cell,
    Chapter,
    Chart,
    ChartShape,
    ReportColumn,
    ReportTable,
    Series,
    Sheet,
    Unit,
    columns_of,
    table_of,
)
from kvtrace.core.metadata import Metadata
from kvtrace.core.statistics import SECONDS_PER_DAY, Endurance
from kvtrace.core.units import DAYS_PER_YEAR, NS_PER_S, format_bytes, format_duration

_NS_PER_DAY = SECONDS_PER_DAY * NS_PER_S
LEAST_DRIVE_BYTES = 100 * 10**9
"""No drive for a server is smaller: of a tier with less capacity no writes of the whole drive are told."""
_USUAL = Endurance(writes_per_day=1, years=5)
"""What a drive for mixed reading is sold to endure: a write of all of it a day, for so many years."""


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """The table that is reported on and its provenance; null where the file does not say."""

    file: str
    table: str
    rows: int | None = None
    program: str
    version: str
    argv: list[str]
    preset: str | None = None
    seed: int | None = None
    config_sha256: str
    model: str | None = None
    source: dict[str, Any] | None
    is_simulated: bool
    notes: list[str]


def subject_of(path: Path, meta: Metadata) -> Subject:
    """Return the provenance of the table at `path`."""
    same = set(Subject.__struct_fields__) - {"file", "model"}
    return Subject(file=path.name, model=meta.model_name, **{name: getattr(meta, name) for name in same})


def hit_ratio(meta: Metadata) -> float | None:
    """Return the share of lookups that any tier answered, as the simulation that made a trace counted; else null."""
    stats = meta.stats or {}
    hits = [tier.get("hits") for tier in stats.get("tiers") or [] if isinstance(tier, dict)]
    lookups = stats.get("lookups")
    if not lookups or not hits or not all(isinstance(count, int) for count in (*hits, lookups)):
        return None
    return sum(count for count in hits if count) / lookups


def writes_per_day(
    written: dict[str, int], span_ns: int | None, meta: Metadata, endurance: Endurance | None
) -> list[dict[str, Any]]:
    """Return for each tier that was written the bytes a day at this rate; null without a time span.

    `capacity_writes_per_day` is in the capacity that the trace gave the tier: drive writes per day of such a drive.
    `years_of_life` are those of a drive of that `endurance`; without that, of one of the tier's capacity that endures
    `_USUAL`, if a drive may be so small. Of a tier that each node of a fleet has its own of, it is all these drives
    together.
    """
    tiers = {tier.name: tier for tier in meta.tiers}
    rows = []
    for tier, count in written.items():
        # Whole numbers first: a rate of a day has more digits than it is worth, but no rounding on the way.
        daily = count * _NS_PER_DAY / span_ns if span_ns else None
        capacity, drives = (None, 1) if tier not in tiers else (tiers[tier].capacity_bytes, meta.instances(tiers[tier]))
        is_drive = capacity is not None and capacity >= LEAST_DRIVE_BYTES
        life = (_USUAL if endurance is None and is_drive else endurance or Endurance()).rated_bytes(capacity)
        life, capacity = life and life * drives, capacity and capacity * drives
        rows.append(
            {
                "tier": tier,
                "written_bytes": count,
                "span_ns": span_ns,
                "written_bytes_per_day": daily,
                "capacity_bytes": capacity,
                "capacity_writes_per_day": daily / capacity if daily is not None and capacity else None,
                "endurance_bytes": life,
                "years_of_life": life / daily / DAYS_PER_YEAR if life and daily else None,
            }
        )
    return rows


def origin(subject: Subject) -> dict[str, Any]:
    """Return where a table came from, as names and values."""
    return {
        "file": subject.file,
        "table": subject.table,
        "rows": Cell(subject.rows, Unit.COUNT),
        "written by": f"{subject.program} {subject.version}",
        "command": " ".join(subject.argv),
        "preset": subject.preset,
        "model": subject.model,
        "seed": subject.seed,
        "source": (subject.source or {}).get("file") or (subject.source or {}).get("kind"),
        "simulated": subject.is_simulated,
        "configuration SHA-256": subject.config_sha256 or None,
    }


def workload_of(meta: Metadata) -> str:
    """Return who asked for what a trace holds, in a few words: its preset, and its users, its source's file or kind."""
    users, source = meta.config.get("users"), meta.source or {}
    asked = f"{users} users" if isinstance(users, int) else source.get("file") or source.get("kind")
    return ", ".join(str(part) for part in (meta.preset, asked) if part)


def pictures_of(chapters: Sequence[Chapter], *titles: str) -> tuple[Chart, ...]:
    """Return the charts of `chapters` that have these titles, in this order."""
    charts = {chart.title: chart for chapter in chapters for table in chapter.tables for chart in table.charts}
    return tuple(charts[title] for title in titles if title in charts)


TIME_COLUMNS = "mean_ns = mean, p50_ns = p50, p95_ns = p95, p99_ns = p99, p99_9_ns = p99.9, p99_99_ns = p99.99"
"""Columns of a distribution of times, for `columns_of`."""


def size_tables(sizes: list[dict[str, Any]], size_bins: list[dict[str, Any]]) -> list[ReportTable]:
    """Return the summary of operation sizes, and a histogram by tier."""
    spec = """
        text: tier, op
        count: ops = operations, distinct
        bytes: min_bytes = min, p50_bytes = p50, p99_bytes = p99, max_bytes = max, mean_bytes = mean
    """
    tables = [table_of("Sizes of operations", Sheet.SUMMARY, spec, sizes, keys=2)]
    spec = "text: op; bytes: low_bytes = from; count: ops = operations; bytes: bytes"
    for tier, rows in by(size_bins, "tier"):
        series = lines_by([row for row in rows if row["op"] != "delete"] or rows, "op", "low_bytes", "ops")
        chart = Chart(f"Sizes on {tier}", ChartShape.BARS, Unit.BYTES, Unit.COUNT, series)
        note = "Each row holds the sizes from its first up to, but not including, twice that."
        title = f"Size distribution: {tier}"
        tables.append(table_of(title, Sheet.HISTOGRAMS, spec, rows, note, keys=2, charts=(chart,)))
    return tables


def rate_tables(over_time: list[dict[str, Any]], bucket_ns: int | None, note: str) -> list[ReportTable]:
    """Return bandwidth and rate over time, a table a tier; none if no time passed."""
    if bucket_ns is None:
        return []
    spec = """
        ns: start_ns = from
        per_s: reads_per_s = reads/s, writes_per_s = writes/s, deletes_per_s = deletes/s
        bytes_per_s: read_bytes_per_s = read, written_bytes_per_s = written
    """
    seconds = bucket_ns / NS_PER_S
    counted = ("reads", "writes", "deletes", "read_bytes", "written_bytes")
    counts = {"read": "reads_per_s", "write": "writes_per_s", "delete": "deletes_per_s"}
    text = f"Means over stretches of {format_duration(bucket_ns)}: shorter bursts are higher. {note}"
    tables = []
    for tier, stretches in by(over_time, "tier"):
        rows = [{"start_ns": r["start_ns"]} | {f"{n}_per_s": r[n] / seconds for n in counted} for r in stretches]
        charts = (
            steps_chart(f"Bandwidth of {tier}", Unit.BYTES_PER_S, rows, BANDWIDTHS, bucket_ns),
            steps_chart(f"Operations a second on {tier}", Unit.PER_S, rows, counts, bucket_ns),
        )
        tables.append(table_of(f"Over time: {tier}", Sheet.HISTOGRAMS, spec, rows, text, charts=charts))
    return tables


BANDWIDTHS = {"read": "read_bytes_per_s", "write": "written_bytes_per_s"}
"""Columns of bandwidth over time, by what they are called in a chart."""


def steps_chart(
    title: str, unit: Unit, rows: list[dict[str, Any]], lines: dict[str, str], step_ns: int, **axes: Any
) -> Chart:
    """Return a chart over time of `lines`, each a column of `rows` by its label; where it is null it has no point.

    The first column is the time at which a step begins.
    """
    series = []
    for label, name in lines.items():
        known = [(float(next(iter(row.values()))), row[name]) for row in rows if row[name] is not None]
        series.append(Series(label, [at for at, _ in known], [value for _, value in known]))
    return Chart(title, ChartShape.STEPS, Unit.NS, unit, series, float(step_ns), **axes)


def reuse_tables(reuse: list[dict[str, Any]]) -> list[ReportTable]:
    """Return how far apart accesses to an object are, a summary and a distribution a tier."""
    if not reuse:
        return []
    spec = """
        text: tier
        count: reads = reads looked at, first_reads = without an access before
        bytes: p50_bytes = p50, p95_bytes = p95, max_bytes = max
        text: is_whole = all of the trace
    """
    note = (
        "Bytes of other objects read or written in the tier between two accesses to one: what a cache that evicts "
        "the least recently used must hold for the second to be a hit."
    )
    tables = [table_of("Reuse distance", Sheet.SUMMARY, spec, reuse, note)]
    columns = columns_of("bytes: low_bytes = from; count: reads; share: share_below = share up to twice that")
    for row in reuse:
        bins = row["bins"]
        if not bins:
            continue
        total = sum(b["reads"] for b in bins)
        rows, done = [], 0
        for each in bins:
            done += each["reads"]
            rows.append([each["low_bytes"], each["reads"], done / total])
        series = Series("read", [float(b["low_bytes"] or 1) for b in bins], [float(b["reads"]) for b in bins])
        chart = Chart(f"Reuse distance on {row['tier']}", ChartShape.BARS, Unit.BYTES, Unit.COUNT, [series])
        text = "Reads by distance: from the first bytes up to, but not including, twice that."
        tables.append(ReportTable(f"Reuse distances: {row['tier']}", Sheet.HISTOGRAMS, columns, rows, (chart,), text))
    return tables


def wear_table(rows: list[dict[str, Any]], note: str) -> ReportTable:
    """Return drive writes per day."""
    spec = """
        text: tier
        bytes: written_bytes = written
        ns: span_ns = in
        bytes_per_day: written_bytes_per_day = a day
        bytes: capacity_bytes = capacity
        number: drive_writes_per_day = drive writes a day
        bytes: endurance_bytes = endurance
        years: years_of_life = life
    """
    said = [f"Extrapolated: the mean rate, kept up day and night. {note}"]
    spans = [row["span_ns"] for row in rows if row["span_ns"]]
    if spans and max(spans) < SECONDS_PER_DAY * NS_PER_S:
        said.append(
            f"{format_duration(max(spans))} cannot tell what a day brings: loads rise and fall, and a tier that still "
            "fills up evicts less, and so writes otherwise, than a full one."
        )
    if any(row["endurance_bytes"] is None for row in rows):
        said.append(
            f"A tier of less than {format_bytes(LEAST_DRIVE_BYTES)} is no whole drive, so its drive's writes a "
            "day and life are not known: --endurance says what the drive may be written."
        )
    else:
        said.append("Endurance: --endurance, else one write of the capacity a day for 5 years.")
    small = {row["tier"] for row in rows if (row["capacity_bytes"] or 0) < LEAST_DRIVE_BYTES}
    shown = [
        row | {"drive_writes_per_day": None if row["tier"] in small else row["capacity_writes_per_day"]} for row in rows
    ]
    return table_of("Wear", Sheet.SUMMARY, spec, shown, " ".join(said))


def distribution_tables(points: list[dict[str, Any]]) -> list[ReportTable]:
    """Return latency, response time and lateness by share of operations, a table and a curve a tier."""
    tables = []
    for (measure, tier), rows in by(points, "measure", "tier"):
        ops = [op for op, _ in by(rows, "op")]
        columns = [ReportColumn("share", "share", Unit.SHARE), *(ReportColumn(f"{op}_ns", op, Unit.NS) for op in ops)]
        found = {(row["op"], row["share"]): row["time_ns"] for row in rows}
        cells = [[share, *(found.get((op, share)) for op in ops)] for share in sorted({row["share"] for row in rows})]
        series = lines_by([row for row in rows if row["share"] < 1], "op", "share", "time_ns")
        name = "Response time" if measure == "response" else measure.capitalize()
        chart = Chart(f"{name} on {tier}", ChartShape.QUANTILES, Unit.NUMBER, Unit.NS, series, y_title=name.lower())
        note = f"{name} that the given share of operations did not exceed, by nearest rank; - with too few of them."
        tables.append(ReportTable(f"{name} distribution: {tier}", Sheet.HISTOGRAMS, columns, cells, (chart,), note))
    return tables


def heat_tables(heat: list[dict[str, Any]], bucket_ns: int | None, measure: str) -> list[ReportTable]:
    """Return counts of operations by completion and by `measure`, which names a time, a map a tier and op."""
    tables = []
    end, step = float(max((row["start_ns"] for row in heat), default=0) + (bucket_ns or 0)), float(bucket_ns or 0)
    y_title = measure.lower()
    spec = f"ns: start_ns = from, low_ns = {y_title} from; count: operations"
    span = f"{format_duration(bucket_ns)} and times up to twice its first"
    for (tier, op), rows in by(heat, "tier", "op"):
        title = f"{measure} of {op}s on {tier} over time"
        chart = Chart(title, ChartShape.CELLS, Unit.NS, Unit.NS, [], step, x_end=end, y_title=y_title)
        tables.append(heat_table(f"{measure} over time: {tier} {op}", chart, op, rows, spec, "", span))
    return tables


def heat_table(
    title: str, chart: Chart, op: str, rows: list[dict[str, Any]], spec: str, counted: str, span: str
) -> ReportTable:
    """Return the table of a map's cells, whose columns `spec` are x, y and a count, and `chart` with them in it."""
    x, y, count = (column.name for column in columns_of(spec)[:3])
    most = max(row[count] for row in rows)
    cells = Series(op, [float(r[x]) for r in rows], [float(r[y]) for r in rows], [r[count] / most for r in rows])
    note = f"The strongest colour is {most:,}{f' {counted}' if counted else ''} in a cell, which spans {span}."
    return table_of(title, Sheet.HISTOGRAMS, spec, rows, note, keys=2, charts=(replace(chart, series=[cells]),))


def by(rows: list[dict[str, Any]], *names: str) -> list[tuple[Any, list[dict[str, Any]]]]:
    """Return `rows` in groups of one value of `names` (a tuple, of several), in order of first sight."""
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(itemgetter(*names)(row), []).append(row)
    return list(groups.items())


def lines_by(rows: list[dict[str, Any]], name: str, x: str, y: str) -> list[Series]:
    """Return a series for each `name` among `rows`; what begins at 0 is drawn from 1, since axes are logarithmic."""
    return [
        Series(label, [float(r[x] or 1) for r in part], [float(r[y]) for r in part]) for label, part in by(rows, name)
    ]
