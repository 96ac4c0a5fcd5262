"""What reports share.

The provenance of what is reported on, what it wears out, and tables with their charts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypedDict, Unpack

import msgspec

from kvdistill.queries.database import Row
from kvtrace.core.document.document import (
    Cell,
    Chapter,
    Chart,
    ChartShape,
    Document,
    ReportColumn,
    ReportTable,
    Series,
    Sheet,
    Unit,
    table_of,
)
from kvtrace.core.files import at
from kvtrace.core.metadata import Metadata
from kvtrace.core.statistics import SECONDS_PER_DAY, Endurance, is_memory
from kvtrace.core.units import DAYS_PER_YEAR, NS_PER_S, format_bytes, format_duration

_NS_PER_DAY = SECONDS_PER_DAY * NS_PER_S
LEAST_DRIVE_BYTES = 100 * 10**9
"""No drive for a server is smaller.

Of a tier with less capacity no writes of the whole drive are told.
"""
_USUAL = Endurance(writes_per_day=1, years=5)
"""What a drive for mixed reading is sold to endure.

A write of all of it a day, for so many years.
"""


Key = tuple[str, str, str]
"""Of what is compared: tier or layer, operation, figure."""


JsonObject = dict[str, Any]
"""An object within the metadata of a trace, as the simulator wrote it."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a path holds.

    Its fields are its JSON. Each kind shows itself and names the figures that are compared.
    """

    kind: ClassVar[str]

    def document(self) -> Document:
        """Return it for people."""
        raise NotImplementedError

    def compared(self) -> Iterator[tuple[Key, float | None]]:
        """Yield what is compared with others of its kind."""
        yield from ()

    def settings(self) -> dict[str, object]:
        """Return what it was made with; where two differ, that is said."""
        return {}

    # What charts compare; a kind without measured times has none.

    @property
    def response(self) -> list[Row]:
        """Response times, by tier and operation."""
        return []

    @property
    def distributions(self) -> list[Row]:
        """Times at each share of operations."""
        return []

    @property
    def bucket_ns(self) -> int | None:
        """How long a stretch of `over_time` is; null without."""
        return None

    @property
    def over_time(self) -> list[Row]:
        """Bytes and operations, by stretch and tier."""
        return []


@dataclass(frozen=True, slots=True)
class ReportedTrials:
    """The reports of one side: of a trace, of a run, or of each trial of several."""

    name: str
    reports: Sequence[Report]
    names: Sequence[str] = ()
    """What each is called."""

    @property
    def counted(self) -> Sequence[Report]:
        """Those that ran to their end, which are compared; all if none did."""
        return [
            report for report in self.reports if not getattr(report, "is_partial", False)
        ] or self.reports


def of_rows(
    rows: Sequence[Row], names: Sequence[str], prefix: str = ""
) -> Iterator[tuple[Key, float | None]]:
    """Yield the figures `names` of each of `rows`, which have a tier and an operation."""
    for row in rows:
        for name in names:
            yield (row["tier"], row["op"], prefix + name), row[name]


class HasObjects(Protocol):
    """The report of a trace or a run, which has rows on objects."""

    @property
    def sizes(self) -> list[Row]:
        """Sizes of operations."""

    @property
    def reuse(self) -> list[Row]:
        """Reuse of objects, by tier."""

    @property
    def writes_per_day(self) -> list[Row]:
        """Writes, by tier."""


def of_objects(report: HasObjects) -> Iterator[tuple[Key, float | None]]:
    """Yield the figures that the report of a trace or a run has of its objects.

    Sizes, reuse, wear.
    """
    yield from of_rows(report.sizes, ("p50_bytes", "mean_bytes", "max_bytes"), "size_")
    yield from of_rows([row | {"op": "read"} for row in report.reuse], ("p50_bytes",), "reuse_")
    yield from of_rows(
        [row | {"op": "write"} for row in report.writes_per_day], ("capacity_writes_per_day",)
    )


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
    source: dict[str, object] | None
    is_simulated: bool
    notes: list[str]
    load: dict[str, object] = {}
    """Which requests came.

    Of which file or users, how reshaped, for how long, and of which seed if any was drawn.
    """

    def settings(self) -> dict[str, object]:
        """Return what the table was made with."""
        return {
            name: getattr(self, name) for name in ("preset", "model", "load", "seed", "version")
        }


def subject_of(path: Path, meta: Metadata) -> Subject:
    """Return the provenance of the table at `path`."""
    same = set(Subject.__struct_fields__) - {"file", "model", "load"}
    facts = {name: getattr(meta, name) for name in same}
    return Subject(file=path.name, model=meta.model_name, load=_load(meta), **facts)


_DRAWN = (
    "users",
    "arrivals",
    "request_rate_per_s",
    "conversation_rate_per_s",
    "start_ratio",
    "jitter_ns",
    "scale",
)
"""Where one of these is said, the seed has a part in which requests come, and when."""
_ASKED = (
    "file",
    "sha256",
    "burstiness_cv",
    "day_ns",
    "day_amplitude",
    "live_conversations",
    "idle_cap_ns",
    *_DRAWN,
)


def _load(meta: Metadata) -> dict[str, object]:
    made = at(meta.source, "metadata") or {
        "source": meta.source,
        "config": meta.config,
        "seed": meta.seed,
    }
    # A table of requests says where they came from, and each may have been reshaped.
    parts = [
        of for of in (at(made, "source", "of"), at(made, "source")) if of and isinstance(of, dict)
    ]
    shapes = [shape for of in parts if isinstance(shape := of.get("shape"), dict)]
    asked = [{name: of[name] for name in _ASKED if name in of} for of in parts[:1]]
    found = {name: value for part in (*asked, *shapes) for name, value in part.items()}
    if "users" in found:
        found["workload"] = at(made, "config", "hierarchy", "workload")
    found |= {name: at(made, "config", name) for name in ("duration_ns", "max_requests") if found}
    return found | {"seed": at(made, "seed")} if set(_DRAWN) & set(found) else found


def writes_per_day(
    written: dict[str, int],
    span_ns: int | None,
    meta: Metadata,
    endurance: Endurance | None,
    *,
    is_trace: bool = False,
) -> list[Row]:
    """Return for each tier that was written the bytes a day at this rate; null without a time span.

    `capacity_writes_per_day` is in the capacity that the trace gave the tier: drive writes per day
    of such a drive. `years_of_life` are those of a drive of that `endurance`; without that, of one
    of the tier's capacity that endures `_USUAL`, if a drive may be so small. Of a tier that each
    node of a fleet has its own of, it is all these drives together. Of a trace, what is named as
    memory has no drive: neither is known of it.
    """
    tiers = {tier.name: tier for tier in meta.tiers}
    rows = []
    for tier, count in written.items():
        # Whole numbers first: a rate of a day has more digits than it is worth, but no rounding on
        # the way.
        daily = count * _NS_PER_DAY / span_ns if span_ns else None
        capacity, drives = (
            (None, 1)
            if tier not in tiers
            else (tiers[tier].capacity_bytes, meta.instances(tiers[tier]))
        )
        is_drive = capacity is not None and capacity >= LEAST_DRIVE_BYTES
        rated = _USUAL if endurance is None and is_drive else endurance or Endurance()
        life = None if is_trace and is_memory(tier) else rated.rated_bytes(capacity)
        life, capacity = life and life * drives, capacity and capacity * drives
        per_day = (
            daily / capacity
            if daily is not None and capacity and not (is_trace and is_memory(tier))
            else None
        )
        rows.append(
            {
                "tier": tier,
                "written_bytes": count,
                "span_ns": span_ns,
                "written_bytes_per_day": daily,
                "capacity_bytes": capacity,
                "capacity_writes_per_day": per_day,
                "endurance_bytes": life,
                "years_of_life": life / daily / DAYS_PER_YEAR if life and daily else None,
            }
        )
    return rows


def origin(subject: Subject) -> dict[str, object]:
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
    """Return who asked for what a trace holds, in a few words.

    Its preset, and its users, its source's file or kind.
    """
    users, source = meta.config.get("users"), meta.source or {}
    asked = f"{users} users" if isinstance(users, int) else source.get("file") or source.get("kind")
    return ", ".join(str(part) for part in (meta.preset, asked) if part)


def pictures_of(chapters: Sequence[Chapter], *titles: str) -> tuple[Chart, ...]:
    """Return the charts of `chapters` that have these titles, in this order."""
    charts = {
        chart.title: chart
        for chapter in chapters
        for table in chapter.tables
        for chart in table.charts
    }
    return tuple(charts[title] for title in titles if title in charts)


_UNITS = {
    "bytes_per_s": Unit.BYTES_PER_S,
    "_per_s": Unit.PER_S,
    "_ns": Unit.NS,
    "bytes": Unit.BYTES,
    "_ratio": Unit.SHARE,
    "_share": Unit.SHARE,
    "_per_day": Unit.NUMBER,
}


def unit_of(name: str, other: Unit = Unit.COUNT) -> Unit:
    """Return the unit that a figure's name ends in, or the `other`."""
    return next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), other)


def size_tables(sizes: list[Row], size_bins: list[Row]) -> list[ReportTable]:
    """Return the summary of operation sizes, and a histogram by tier."""
    columns = [
        ReportColumn("tier"),
        ReportColumn("op"),
        ReportColumn("ops", "operations", Unit.COUNT),
        ReportColumn("distinct", unit=Unit.COUNT),
        ReportColumn("min_bytes", "min", Unit.BYTES),
        ReportColumn("p50_bytes", "p50", Unit.BYTES),
        ReportColumn("p99_bytes", "p99", Unit.BYTES),
        ReportColumn("max_bytes", "max", Unit.BYTES),
        ReportColumn("mean_bytes", "mean", Unit.BYTES),
    ]
    tables = [table_of("Sizes of operations", Sheet.SUMMARY, columns, sizes, keys=2)]
    columns = [
        ReportColumn("op"),
        ReportColumn("low_bytes", "from", Unit.BYTES),
        ReportColumn("ops", "operations", Unit.COUNT),
        ReportColumn("bytes", unit=Unit.BYTES),
    ]
    note = "Each row holds the sizes from its first up to, but not including, twice that."
    for tier, rows in by(size_bins, "tier"):
        drawn = [row for row in rows if row["op"] != "delete"] or rows
        chart = Chart(
            f"Sizes on {tier}",
            ChartShape.BARS,
            Unit.BYTES,
            Unit.COUNT,
            lines_by(drawn, "low_bytes", "ops"),
        )
        tables.append(histogram(f"Size distribution: {tier}", chart, columns, rows, note))
    return tables


def histogram(
    title: str,
    chart: Chart,
    columns: Sequence[ReportColumn],
    rows: list[Row],
    note: str,
    keys: int = 2,
) -> ReportTable:
    """Return the table of a histogram, beside its chart."""
    return table_of(title, Sheet.HISTOGRAMS, columns, rows, note, keys=keys, charts=(chart,))


def rate_tables(over_time: list[Row], bucket_ns: int | None, note: str) -> list[ReportTable]:
    """Return bandwidth and rate over time, a table a tier; none if no time passed."""
    if bucket_ns is None:
        return []
    columns = [
        ReportColumn("start_ns", "from", Unit.NS),
        ReportColumn("reads_per_s", "reads/s", Unit.PER_S),
        ReportColumn("writes_per_s", "writes/s", Unit.PER_S),
        ReportColumn("deletes_per_s", "deletes/s", Unit.PER_S),
        ReportColumn("read_bytes_per_s", "read", Unit.BYTES_PER_S),
        ReportColumn("written_bytes_per_s", "written", Unit.BYTES_PER_S),
    ]
    seconds = bucket_ns / NS_PER_S
    counted = ("reads", "writes", "deletes", "read_bytes", "written_bytes")
    counts = {"read": "reads_per_s", "write": "writes_per_s", "delete": "deletes_per_s"}
    text = (
        f"Means over stretches of {format_duration(bucket_ns)}: shorter bursts are higher. {note}"
    )
    tables = []
    for tier, stretches in by(over_time, "tier"):
        rows = [
            {"start_ns": r["start_ns"]} | {f"{n}_per_s": r[n] / seconds for n in counted}
            for r in stretches
        ]
        charts = (
            steps_chart(f"Bandwidth of {tier}", Unit.BYTES_PER_S, rows, BANDWIDTHS, bucket_ns),
            steps_chart(f"Operations a second on {tier}", Unit.PER_S, rows, counts, bucket_ns),
        )
        tables.append(
            table_of(f"Over time: {tier}", Sheet.HISTOGRAMS, columns, rows, text, charts=charts)
        )
    return tables


BANDWIDTHS = {"read": "read_bytes_per_s", "write": "written_bytes_per_s"}
"""Columns of bandwidth over time, by what they are called in a chart."""


class ChartAxes(TypedDict, total=False):
    """Fields of a `Chart` that say how its axes are drawn."""

    x_end: float
    y_end: float
    y_title: str
    marks: tuple[tuple[float, str], ...]


def steps_chart(
    title: str,
    unit: Unit,
    rows: list[Row],
    lines: dict[str, str],
    step_ns: int,
    **axes: Unpack[ChartAxes],
) -> Chart:
    """Return a chart over time of `lines`, each a column of `rows` by its label.

    Where it is null it has no point.

    The first column is the time at which a step begins.
    """
    series = []
    for label, name in lines.items():
        known = [
            (float(next(iter(row.values()))), row[name]) for row in rows if row[name] is not None
        ]
        series.append(Series(label, [at for at, _ in known], [value for _, value in known]))
    return Chart(title, ChartShape.STEPS, Unit.NS, unit, series, float(step_ns), **axes)


def reuse_tables(reuse: list[Row]) -> list[ReportTable]:
    """Return how far apart accesses to an object are, a summary and a distribution a tier."""
    if not reuse:
        return []
    columns = [
        ReportColumn("tier"),
        ReportColumn("reads", "reads looked at", Unit.COUNT),
        ReportColumn("first_reads", "without an access before", Unit.COUNT),
        ReportColumn("p50_bytes", "p50", Unit.BYTES),
        ReportColumn("p95_bytes", "p95", Unit.BYTES),
        ReportColumn("max_bytes", "max", Unit.BYTES),
        ReportColumn("is_whole", "all of the trace"),
    ]
    note = (
        "Bytes of other objects read or written in the tier between two accesses to one: what a"
        " cache that evicts the least recently used must hold for the second to be a hit."
    )
    tables = [table_of("Reuse distance", Sheet.SUMMARY, columns, reuse, note)]
    columns = [
        ReportColumn("low_bytes", "from", Unit.BYTES),
        ReportColumn("reads", unit=Unit.COUNT),
        ReportColumn("share_below", "share up to twice that", Unit.SHARE),
    ]
    note = "Reads by distance: from the first bytes up to, but not including, twice that."
    for row in (row for row in reuse if row["bins"]):
        done = accumulate(b["reads"] for b in row["bins"])
        total = sum(b["reads"] for b in row["bins"])
        rows = [
            b | {"op": "read", "share_below": upto / total}
            for b, upto in zip(row["bins"], done, strict=True)
        ]
        title, lines = f"Reuse distance on {row['tier']}", lines_by(rows, "low_bytes", "reads")
        chart = Chart(title, ChartShape.BARS, Unit.BYTES, Unit.COUNT, lines)
        tables.append(
            histogram(f"Reuse distances: {row['tier']}", chart, columns, rows, note, keys=1)
        )
    return tables


def wear_table(rows: list[Row], note: str, *, is_trace: bool = False) -> ReportTable:
    """Return drive writes per day; of a trace, what is named as memory has no drive."""
    columns = [
        ReportColumn("tier"),
        ReportColumn("written_bytes", "written", Unit.BYTES),
        ReportColumn("span_ns", "in", Unit.NS),
        ReportColumn("written_bytes_per_day", "a day", Unit.BYTES_PER_DAY),
        ReportColumn("capacity_bytes", "capacity", Unit.BYTES),
        ReportColumn("drive_writes_per_day", "drive writes a day", Unit.NUMBER),
        ReportColumn("endurance_bytes", "endurance", Unit.BYTES),
        ReportColumn("years_of_life", "life", Unit.YEARS),
    ]
    said = [f"Extrapolated: the mean rate, kept up day and night. {note}"]
    spans = [row["span_ns"] for row in rows if row["span_ns"]]
    if spans and max(spans) < SECONDS_PER_DAY * NS_PER_S:
        said.append(
            f"{format_duration(max(spans))} cannot tell what a day brings: loads rise and fall, and"
            " a tier that still fills up evicts less, and so writes otherwise, than a full one."
        )
    if any(
        row["endurance_bytes"] is None and not (is_trace and is_memory(row["tier"])) for row in rows
    ):
        said.append(
            f"A tier of less than {format_bytes(LEAST_DRIVE_BYTES)} is no whole drive, so its"
            " drive's writes a day and life are not known: --endurance says what the drive may be"
            " written."
        )
    elif any(row["endurance_bytes"] for row in rows):
        said.append("Endurance: --endurance, else one write of the capacity a day for 5 years.")
    small = {row["tier"] for row in rows if (row["capacity_bytes"] or 0) < LEAST_DRIVE_BYTES}
    shown = [
        row
        | {"drive_writes_per_day": None if row["tier"] in small else row["capacity_writes_per_day"]}
        for row in rows
    ]
    return table_of("Wear", Sheet.SUMMARY, columns, shown, " ".join(said))


def quantiles(
    title: str,
    chart_title: str,
    rows: list[Row],
    by_name: str,
    column: str,
    y_title: str,
    note: str,
) -> ReportTable:
    """Return times by share of operations, a column (called as `column` says) and a curve for each
    `by_name`.
    """
    groups = by(rows, by_name)
    columns = [ReportColumn("share", "share", Unit.SHARE)]
    columns += [ReportColumn(column.format(name), name, Unit.NS) for name, _ in groups]
    found = {(row[by_name], row["share"]): row["time_ns"] for row in rows}
    cells = [
        [at, *(found.get((name, at)) for name, _ in groups)]
        for at in sorted({row["share"] for row in rows})
    ]
    drawn = lines_by([row for row in rows if row["share"] < 1], "share", "time_ns", by_name)
    chart = Chart(chart_title, ChartShape.QUANTILES, Unit.NUMBER, Unit.NS, drawn, y_title=y_title)
    return ReportTable(title, Sheet.HISTOGRAMS, columns, cells, (chart,), note)


def heat_tables(heat: list[Row], bucket_ns: int | None, measure: str) -> list[ReportTable]:
    """Return counts of operations by completion and by `measure`, which names a time, a map a tier
    and op.
    """
    tables = []
    end, step = (
        float(max((row["start_ns"] for row in heat), default=0) + (bucket_ns or 0)),
        float(bucket_ns or 0),
    )
    y_title = measure.lower()
    columns = [
        ReportColumn("start_ns", "from", Unit.NS),
        ReportColumn("low_ns", f"{y_title} from", Unit.NS),
        ReportColumn("operations", unit=Unit.COUNT),
    ]
    span = f"{format_duration(bucket_ns)} and times up to twice its first"
    for (tier, op), rows in by_two(heat, "tier", "op"):
        title = f"{measure} of {op}s on {tier} over time"
        chart = Chart(
            title, ChartShape.CELLS, Unit.NS, Unit.NS, [], step, x_end=end, y_title=y_title
        )
        tables.append(
            heat_table(f"{measure} over time: {tier} {op}", chart, op, rows, columns, "", span)
        )
    return tables


def heat_table(
    title: str,
    chart: Chart,
    op: str,
    rows: list[Row],
    columns: Sequence[ReportColumn],
    counted: str,
    span: str,
) -> ReportTable:
    """Return the table of a map's cells and `chart` with them in it.

    The first three `columns` are x, y and a count.
    """
    x, y, count = (column.name for column in columns[:3])
    most = max(row[count] for row in rows)
    cells = Series(
        op,
        [float(r[x]) for r in rows],
        [float(r[y]) for r in rows],
        [r[count] / most for r in rows],
    )
    note = (
        f"The strongest colour is {most:,}{f' {counted}' if counted else ''} in a cell, which spans"
        f" {span}."
    )
    return table_of(
        title,
        Sheet.HISTOGRAMS,
        columns,
        rows,
        note,
        keys=2,
        charts=(replace(chart, series=[cells]),),
    )


def by(rows: list[Row], name: str) -> list[tuple[str, list[Row]]]:
    """Return `rows` in groups of one value of `name`, in order of first sight."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[name], []).append(row)
    return list(groups.items())


def by_two(rows: list[Row], first: str, second: str) -> list[tuple[tuple[str, str], list[Row]]]:
    """Return `rows` in groups of one value of `first` and of `second`, in order of first sight."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row[first], row[second]), []).append(row)
    return list(groups.items())


def lines_by(rows: list[Row], x: str, y: str, name: str = "op") -> list[Series]:
    """Return a series for each `name` among `rows`, of the colour `number` if they have one.

    What begins at 0 is drawn from 1, since axes are logarithmic.
    """
    return [
        Series(
            label,
            [float(r[x] or 1) for r in part],
            [float(r[y]) for r in part],
            colour=part[0].get("number"),
        )
        for label, part in by(rows, name)
    ]


_AIR = 1.05
"""Above the highest step."""


def charts_compared(sides: Sequence[ReportedTrials], drive: str) -> list[Chapter]:
    """Return the chapters that show `sides` in charts beside each other."""
    return [
        Chapter("Distributions compared", _distributions_compared(sides, drive)),
        Chapter("Over time compared", _rates_compared(sides, drive)),
    ]


def _distributions_compared(sides: Sequence[ReportedTrials], drive: str) -> list[ReportTable]:
    """Return the times of each trial of all runs in one picture a tier and operation, if more than
    one has them.

    Those of the `drive` come first.
    """
    runs = [(n, s) for n, s in enumerate(sides) if s.reports[0].kind == "run"]
    reports = [(n, s, at, r) for n, s in runs for at, r in enumerate(s.reports, 1)]
    # An open loop is judged by the response time.
    measure = "response" if reports and all(r.response for *_, r in reports) else "latency"
    points = [
        row
        | {"side": f"[{n}] {s.name}{f' trial {at}' if len(s.reports) > 1 else ''}", "number": n}
        | {"place": f"{row['tier']} {row['op']}"}
        for n, s, at, report in reports
        for row in report.distributions
        if row["measure"] == measure and row["op"] != "delete"
    ]
    points.sort(key=lambda row: bool(row["tier"] != drive))
    title = "Response time" if measure == "response" else "Latency"
    note = f"{title} that the given share of operations did not exceed; a line a trial."
    return [
        quantiles(f"{title}: {place}", f"{title}: {place}", rows, "side", "{}", title.lower(), note)
        for place, rows in by(points, "place")
        if len({row["number"] for row in rows}) > 1
    ]


def _rates_compared(sides: Sequence[ReportedTrials], drive: str) -> list[ReportTable]:
    """Return the bandwidth of the `drive` over time, of each side's first trial, on axes that end
    alike.
    """
    firsts = [(n, s, s.reports[0]) for n, s in enumerate(sides)]
    seen = [
        (n, s, r.bucket_ns, rows)
        for n, s, r in firsts
        if r.kind in ("run", "trace") and r.bucket_ns
        if (rows := [row for row in r.over_time if row["tier"] == drive])
    ]
    if len(seen) < 2:  # noqa: PLR2004 - nothing to compare
        return []
    names = ("read_bytes", "written_bytes")
    most = max(
        (row[name] * NS_PER_S / step for *_, step, rows in seen for row in rows for name in names),
        default=0.0,
    )
    end = max(row["start_ns"] + step for *_, step, rows in seen for row in rows)
    columns = [
        ReportColumn("start_ns", "from", Unit.NS),
        ReportColumn("read_bytes_per_s", "read", Unit.BYTES_PER_S),
        ReportColumn("written_bytes_per_s", "written", Unit.BYTES_PER_S),
    ]
    tables = []
    for number, side, step, rows in seen:
        rates = [
            {"start_ns": r["start_ns"]} | {f"{n}_per_s": r[n] * NS_PER_S / step for n in names}
            for r in rows
        ]
        title = f"Bandwidth of {drive}: [{number}] {side.name}"
        axes: ChartAxes = {"x_end": float(end), "y_end": most * _AIR}
        chart = steps_chart(title, Unit.BYTES_PER_S, rates, BANDWIDTHS, step, **axes)
        note = f"Means over stretches of {format_duration(step)}, of the first trial."
        tables.append(histogram(title, chart, columns, rates, note, keys=1))
    return tables
