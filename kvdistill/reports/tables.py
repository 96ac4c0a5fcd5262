"""Parts that reports share: provenance, wear of drives, and tables with their charts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import ClassVar, Protocol, TypedDict, Unpack

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
"""Smallest capacity of a server drive; a smaller tier is no whole drive and has no DWPD."""
_USUAL = Endurance(writes_per_day=1, years=5)
"""Rating of a typical read-intensive drive: 1 DWPD for 5 years."""


Key = tuple[str, str, str]
"""Key of a compared figure: tier or layer, operation, name."""


"""An object within the metadata of a trace, as the simulator wrote it."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The report of one input; its fields are those of its JSON.

    Each kind has its own document, and its own figures for comparisons.
    """

    kind: ClassVar[str]

    def document(self) -> Document:
        """Return the document of the report."""
        raise NotImplementedError

    def compared(self) -> Iterator[tuple[Key, float | None]]:
        """Yield the figures for a comparison with reports of its kind."""
        yield from ()

    def settings(self) -> dict[str, object]:
        """Return the settings; a comparison lists those that differ."""
        return {}

    # Figures of charts in comparisons; a kind without measured times has none.

    @property
    def response(self) -> list[Row]:
        """Response times, by tier and operation."""
        return []

    @property
    def distributions(self) -> list[Row]:
        """Percentiles of times: one row a share of operations."""
        return []

    @property
    def bucket_ns(self) -> int | None:
        """Length of a window of `over_time`; null without windows."""
        return None

    @property
    def over_time(self) -> list[Row]:
        """Bytes and operations, by window and tier."""
        return []


@dataclass(frozen=True, slots=True)
class ReportedTrials:
    """The reports of one side: of a trace, of a run, or of each trial of several."""

    name: str
    reports: Sequence[Report]
    names: Sequence[str] = ()
    """Name of each report."""

    @property
    def counted(self) -> Sequence[Report]:
        """Reports that ran to their end, which are compared; all if none did."""
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
    """Yield the figures of objects of a trace or run: sizes, reuse distances, DWPD."""
    yield from of_rows(report.sizes, ("p50_bytes", "mean_bytes", "max_bytes"), "size_")
    yield from of_rows([row | {"op": "read"} for row in report.reuse], ("p50_bytes",), "reuse_")
    yield from of_rows(
        [row | {"op": "write"} for row in report.writes_per_day], ("capacity_writes_per_day",)
    )


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """The reported table and its provenance; null if unknown."""

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
    """The load: request file or users, reshaping, duration, and the seed if it was random."""

    def settings(self) -> dict[str, object]:
        """Return the settings that produced the table."""
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
"""Settings that make the load random, so that it depends on the seed."""
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
    provenance = at(meta.source, "metadata") or {
        "source": meta.source,
        "config": meta.config,
        "seed": meta.seed,
    }
    # A table of requests names its own source, and either may have been reshaped.
    sources = [
        source
        for source in (at(provenance, "source", "of"), at(provenance, "source"))
        if source and isinstance(source, dict)
    ]
    shapes = [shape for source in sources if isinstance(shape := source.get("shape"), dict)]
    requested = [
        {name: source[name] for name in _ASKED if name in source} for source in sources[:1]
    ]
    load = {name: value for fields in (*requested, *shapes) for name, value in fields.items()}
    if "users" in load:
        load["workload"] = at(provenance, "config", "hierarchy", "workload")
    load |= {
        name: at(provenance, "config", name) for name in ("duration_ns", "max_requests") if load
    }
    return load | {"seed": at(provenance, "seed")} if set(_DRAWN) & set(load) else load


def writes_per_day(
    written: dict[str, int],
    span_ns: int | None,
    meta: Metadata,
    endurance: Endurance | None,
    *,
    is_trace: bool = False,
) -> list[Row]:
    """Return the bytes written a day, DWPD and drive life of each written tier.

    They extrapolate the mean rate over `span_ns`, and are null without a time span.
    `capacity_writes_per_day` is DWPD at the tier's capacity in the trace. `years_of_life` is that
    of a drive with the given `endurance`, or else with `_USUAL`, if the capacity is that of a
    drive. A tier with an instance on each node of a fleet counts all drives together. A tier of a
    trace that is named as memory has no drive, so both are null.
    """
    tiers = {tier.name: tier for tier in meta.tiers}
    rows = []
    for tier, count in written.items():
        # Integers are multiplied first, so that only the division rounds.
        daily = count * _NS_PER_DAY / span_ns if span_ns else None
        capacity, drives = (
            (None, 1)
            if tier not in tiers
            else (tiers[tier].capacity_bytes, meta.instances(tiers[tier]))
        )
        is_drive = capacity is not None and capacity >= LEAST_DRIVE_BYTES
        rating = _USUAL if endurance is None and is_drive else endurance or Endurance()
        endurance_bytes = None if is_trace and is_memory(tier) else rating.rated_bytes(capacity)
        endurance_bytes, capacity = (
            endurance_bytes and endurance_bytes * drives,
            capacity and capacity * drives,
        )
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
                "endurance_bytes": endurance_bytes,
                "years_of_life": endurance_bytes / daily / DAYS_PER_YEAR
                if endurance_bytes and daily
                else None,
            }
        )
    return rows


def origin(subject: Subject) -> dict[str, object]:
    """Return the provenance of a table, as names and values."""
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
    """Return the workload of a trace in short: preset, and users or source."""
    users, source = meta.config.get("users"), meta.source or {}
    workload = (
        f"{users} users" if isinstance(users, int) else source.get("file") or source.get("kind")
    )
    return ", ".join(str(text) for text in (meta.preset, workload) if text)


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


def unit_of(name: str, default: Unit = Unit.COUNT) -> Unit:
    """Return the unit that the ending of a figure's name implies, or `default`."""
    return next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), default)


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
    note = "Each row counts sizes from its value up to, but not including, twice that."
    for tier, rows in by(size_bins, "tier"):
        charted_rows = [row for row in rows if row["op"] != "delete"] or rows
        chart = Chart(
            f"Sizes on {tier}",
            ChartShape.BARS,
            Unit.BYTES,
            Unit.COUNT,
            lines_by(charted_rows, "low_bytes", "ops"),
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
    """Return the table of a histogram with its chart."""
    return table_of(title, Sheet.HISTOGRAMS, columns, rows, note, keys=keys, charts=(chart,))


def rate_tables(over_time: list[Row], bucket_ns: int | None, note: str) -> list[ReportTable]:
    """Return bandwidth and IOPS over time, one table a tier; none without a time span."""
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
    count_columns = ("reads", "writes", "deletes", "read_bytes", "written_bytes")
    counts = {"read": "reads_per_s", "write": "writes_per_s", "delete": "deletes_per_s"}
    note_text = (
        f"Means over windows of {format_duration(bucket_ns)}: shorter bursts are higher. {note}"
    )
    tables = []
    for tier, windows in by(over_time, "tier"):
        rows = [
            {"start_ns": window["start_ns"]}
            | {f"{column}_per_s": window[column] / seconds for column in count_columns}
            for window in windows
        ]
        charts = (
            steps_chart(f"Bandwidth of {tier}", Unit.BYTES_PER_S, rows, BANDWIDTHS, bucket_ns),
            steps_chart(f"Operations a second on {tier}", Unit.PER_S, rows, counts, bucket_ns),
        )
        tables.append(
            table_of(
                f"Over time: {tier}", Sheet.HISTOGRAMS, columns, rows, note_text, charts=charts
            )
        )
    return tables


BANDWIDTHS = {"read": "read_bytes_per_s", "write": "written_bytes_per_s"}
"""Columns of bandwidth over time, by their labels in charts."""


class ChartAxes(TypedDict, total=False):
    """Fields of a `Chart` for its axes."""

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
    """Return a chart over time of `lines`: columns of `rows` by label.

    A null has no point. The first column of `rows` is the time at which a step begins.
    """
    series = []
    for label, name in lines.items():
        points = [
            (float(next(iter(row.values()))), row[name]) for row in rows if row[name] is not None
        ]
        series.append(
            Series(label, [moment for moment, _ in points], [value for _, value in points])
        )
    return Chart(title, ChartShape.STEPS, Unit.NS, unit, series, float(step_ns), **axes)


def reuse_tables(reuse: list[Row]) -> list[ReportTable]:
    """Return reuse distances: a summary, and a histogram a tier."""
    if not reuse:
        return []
    columns = [
        ReportColumn("tier"),
        ReportColumn("reads", "reads measured", Unit.COUNT),
        ReportColumn("first_reads", "first accesses", Unit.COUNT),
        ReportColumn("p50_bytes", "p50", Unit.BYTES),
        ReportColumn("p95_bytes", "p95", Unit.BYTES),
        ReportColumn("max_bytes", "max", Unit.BYTES),
        ReportColumn("is_whole", "all of the trace"),
    ]
    note = (
        "Distinct bytes of other objects accessed in the tier between two accesses to an object: the"
        " capacity that an LRU cache needs for a hit."
    )
    tables = [table_of("Reuse distance", Sheet.SUMMARY, columns, reuse, note)]
    columns = [
        ReportColumn("low_bytes", "from", Unit.BYTES),
        ReportColumn("reads", unit=Unit.COUNT),
        ReportColumn("share_below", "share up to twice that", Unit.SHARE),
    ]
    note = (
        "Each row counts reads with a distance from its value up to, but not including, twice that."
    )
    for row in (row for row in reuse if row["bins"]):
        cumulative_reads = accumulate(bin_row["reads"] for bin_row in row["bins"])
        total = sum(bin_row["reads"] for bin_row in row["bins"])
        rows = [
            bin_row | {"op": "read", "share_below": reads_below / total}
            for bin_row, reads_below in zip(row["bins"], cumulative_reads, strict=True)
        ]
        title, lines = f"Reuse distance on {row['tier']}", lines_by(rows, "low_bytes", "reads")
        chart = Chart(title, ChartShape.BARS, Unit.BYTES, Unit.COUNT, lines)
        tables.append(
            histogram(f"Reuse distances: {row['tier']}", chart, columns, rows, note, keys=1)
        )
    return tables


def wear_table(rows: list[Row], note: str, *, is_trace: bool = False) -> ReportTable:
    """Return DWPD and drive life; a tier of a trace that is named as memory has no drive."""
    columns = [
        ReportColumn("tier"),
        ReportColumn("written_bytes", "written", Unit.BYTES),
        ReportColumn("span_ns", "in", Unit.NS),
        ReportColumn("written_bytes_per_day", "per day", Unit.BYTES_PER_DAY),
        ReportColumn("capacity_bytes", "capacity", Unit.BYTES),
        ReportColumn("drive_writes_per_day", "DWPD", Unit.NUMBER),
        ReportColumn("endurance_bytes", "endurance", Unit.BYTES),
        ReportColumn("years_of_life", "endurance exhausted in", Unit.YEARS),
    ]
    notes = [f"Extrapolated from the mean rate, around the clock. {note}"]
    spans = [row["span_ns"] for row in rows if row["span_ns"]]
    if spans and max(spans) < SECONDS_PER_DAY * NS_PER_S:
        notes.append(
            f"{format_duration(max(spans))} do not represent a day: load varies over the day, and a"
            " tier that is still filling up evicts less than a full one."
        )
    if any(
        row["endurance_bytes"] is None and not (is_trace and is_memory(row["tier"])) for row in rows
    ):
        notes.append(
            f"A tier of less than {format_bytes(LEAST_DRIVE_BYTES)} is not a whole drive, so its DWPD"
            " and life are unknown: give the drive's rating with --endurance."
        )
    elif any(row["endurance_bytes"] for row in rows):
        notes.append("Endurance: --endurance, else 1 DWPD for 5 years.")
    small_tiers = {row["tier"] for row in rows if (row["capacity_bytes"] or 0) < LEAST_DRIVE_BYTES}
    shown_rows = [
        row
        | {
            "drive_writes_per_day": None
            if row["tier"] in small_tiers
            else row["capacity_writes_per_day"]
        }
        for row in rows
    ]
    return table_of("Wear", Sheet.SUMMARY, columns, shown_rows, " ".join(notes))


def quantiles(
    title: str,
    chart_title: str,
    rows: list[Row],
    by_name: str,
    column: str,
    y_title: str,
    note: str,
) -> ReportTable:
    """Return percentiles of times: a column (named by `column`) and a curve for each `by_name`."""
    groups = by(rows, by_name)
    columns = [ReportColumn("share", "share", Unit.SHARE)]
    columns += [ReportColumn(column.format(name), name, Unit.NS) for name, _ in groups]
    times = {(row[by_name], row["share"]): row["time_ns"] for row in rows}
    cells = [
        [share, *(times.get((name, share)) for name, _ in groups)]
        for share in sorted({row["share"] for row in rows})
    ]
    series = lines_by([row for row in rows if row["share"] < 1], "share", "time_ns", by_name)
    chart = Chart(chart_title, ChartShape.QUANTILES, Unit.NUMBER, Unit.NS, series, y_title=y_title)
    return ReportTable(title, Sheet.HISTOGRAMS, columns, cells, (chart,), note)


def heat_tables(heat: list[Row], bucket_ns: int | None, measure: str) -> list[ReportTable]:
    """Return heatmaps of completion time and latency (`measure`), one a tier and operation."""
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
    """Return the table of a heatmap's cells with its chart; the first `columns` are x, y and a count."""
    x, y, count = (column.name for column in columns[:3])
    max_count = max(row[count] for row in rows)
    cells = Series(
        op,
        [float(row[x]) for row in rows],
        [float(row[y]) for row in rows],
        [row[count] / max_count for row in rows],
    )
    note = (
        f"The strongest colour is {max_count:,}{f' {counted}' if counted else ''} in a cell; a cell spans"
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
    """Return `rows` in groups of one value of `name`, in order of first appearance."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[name], []).append(row)
    return list(groups.items())


def by_two(rows: list[Row], first: str, second: str) -> list[tuple[tuple[str, str], list[Row]]]:
    """Return `rows` grouped by `first` and `second`, in order of first appearance."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row[first], row[second]), []).append(row)
    return list(groups.items())


def lines_by(rows: list[Row], x: str, y: str, name: str = "op") -> list[Series]:
    """Return a series for each `name` in `rows`, with their `number` as colour and `legend` if any.

    0 is drawn at 1, because axes are logarithmic.
    """
    return [
        Series(
            label,
            [float(row[x] or 1) for row in group],
            [float(row[y]) for row in group],
            colour=group[0].get("number"),
            legend=group[0].get("legend", ""),
        )
        for label, group in by(rows, name)
    ]


_AIR = 1.05
"""The axis ends at this multiple of the highest value."""


def charts_compared(sides: Sequence[ReportedTrials], drive: str) -> list[Chapter]:
    """Return the chapters that show the charts of all `sides`."""
    return [
        Chapter("Distributions compared", _distributions_compared(sides, drive)),
        Chapter("Over time compared", _rates_compared(sides, drive)),
    ]


def _distributions_compared(sides: Sequence[ReportedTrials], drive: str) -> list[ReportTable]:
    """Return one chart of the times of all trials for each tier and operation, the `drive` first.

    A tier and operation of a single side has none.
    """
    runs = [
        (side_number, side)
        for side_number, side in enumerate(sides)
        if side.reports[0].kind == "run"
    ]
    reports = [
        (side_number, side, trial, report)
        for side_number, side in runs
        for trial, report in enumerate(side.reports, 1)
    ]
    # The response time counts in an open loop.
    measure = (
        "response" if reports and all(report.response for *_, report in reports) else "latency"
    )
    points = [
        row
        | {
            "side": f"[{side_number}] {side.name}{f' trial {trial}' if trials > 1 else ''}",
            "legend": f"[{side_number}] {side.name}{f', {trials} trials' if trials > 1 else ''}",
            "number": side_number,
        }
        | {"place": f"{row['tier']} {row['op']}"}
        for side_number, side, trial, report in reports
        for trials in [len(side.reports)]
        for row in report.distributions
        if row["measure"] == measure and row["op"] != "delete"
    ]
    points.sort(key=lambda row: bool(row["tier"] != drive))
    title = "Response time" if measure == "response" else "Latency"
    note = f"{title} that the given share of operations did not exceed; one line a trial."
    return [
        quantiles(f"{title}: {place}", f"{title}: {place}", rows, "side", "{}", title.lower(), note)
        for place, rows in by(points, "place")
        if len({row["number"] for row in rows}) > 1
    ]


def _rates_compared(sides: Sequence[ReportedTrials], drive: str) -> list[ReportTable]:
    """Return the bandwidth of the `drive` over time in each side's first trial, on equal axes."""
    firsts = [(column, side, side.reports[0]) for column, side in enumerate(sides)]
    measured = [
        (column, side, report.bucket_ns, rows)
        for column, side, report in firsts
        if report.kind in ("run", "trace") and report.bucket_ns
        if (rows := [row for row in report.over_time if row["tier"] == drive])
    ]
    if len(measured) < 2:  # noqa: PLR2004 - nothing to compare
        return []
    names = ("read_bytes", "written_bytes")
    max_rate = max(
        (
            row[name] * NS_PER_S / step
            for *_, step, rows in measured
            for row in rows
            for name in names
        ),
        default=0.0,
    )
    end = max(row["start_ns"] + step for *_, step, rows in measured for row in rows)
    columns = [
        ReportColumn("start_ns", "from", Unit.NS),
        ReportColumn("read_bytes_per_s", "read", Unit.BYTES_PER_S),
        ReportColumn("written_bytes_per_s", "written", Unit.BYTES_PER_S),
    ]
    tables = []
    for number, side, step, rows in measured:
        rates = [
            {"start_ns": report["start_ns"]}
            | {f"{column}_per_s": report[column] * NS_PER_S / step for column in names}
            for report in rows
        ]
        title = f"Bandwidth of {drive}: [{number}] {side.name}"
        axes: ChartAxes = {"x_end": float(end), "y_end": max_rate * _AIR}
        chart = steps_chart(title, Unit.BYTES_PER_S, rates, BANDWIDTHS, step, **axes)
        note = f"Means over windows of {format_duration(step)}, first trial."
        tables.append(histogram(title, chart, columns, rates, note, keys=1))
    return tables
