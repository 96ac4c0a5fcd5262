"""The tables and charts that reports of traces and of runs share."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from kvdistill.document import Chart, Column, Series, Shape, Sheet, Table, Unit, select
from kvtrace.core.units import format_duration

TIER = Column("tier", "tier")
OP = Column("op", "op")
PARAMETERS = [Column("parameter", "parameter"), Column("value", "value")]
_NS_PER_S = 1e9


def parameters(title: str, sheet: Sheet, facts: dict[str, Any]) -> Table:
    """Return a table of names and values; Quantity gives a value its unit."""
    return Table(title, sheet, PARAMETERS, [[name, value] for name, value in facts.items()])


def size_tables(sizes: list[dict[str, Any]], size_bins: list[dict[str, Any]]) -> list[Table]:
    """Return the summary of operation sizes, and a histogram by tier."""
    columns = [
        TIER, OP, Column("ops", "operations", Unit.COUNT), Column("distinct", "distinct", Unit.COUNT),
        *(Column(f"{n}_bytes", n, Unit.BYTES) for n in ("min", "p50", "p99", "max", "mean")),
    ]  # fmt: skip
    tables = [Table("Sizes of operations", Sheet.SUMMARY, columns, select(sizes, columns), keys=2)]
    columns = [
        OP, Column("low_bytes", "from", Unit.BYTES), Column("ops", "operations", Unit.COUNT),
        Column("bytes", "bytes", Unit.BYTES),
    ]  # fmt: skip
    for tier, group in groupby(size_bins, key=lambda row: row["tier"]):
        rows = list(group)
        series = [
            Series(op, [float(r["low_bytes"] or 1) for r in part], [float(r["ops"]) for r in part])
            for op, part in _by(rows, "op")
        ]
        chart = Chart(f"Sizes on {tier}", Shape.BARS, Unit.BYTES, Unit.COUNT, series)
        note = "Each row holds the sizes from its first up to, but not including, twice that."
        tables.append(
            Table(f"Size distribution: {tier}", Sheet.HISTOGRAMS, columns, select(rows, columns), (chart,), note, 2)
        )
    return tables


def rate_tables(over_time: list[dict[str, Any]], bucket_ns: int | None, note: str) -> list[Table]:
    """Return bandwidth and rate over time, a table a tier; none if no time passed."""
    if bucket_ns is None:
        return []
    seconds = bucket_ns / _NS_PER_S
    columns = [
        Column("start_ns", "from", Unit.NS),
        *(Column(f"{n}_per_s", f"{n}/s", Unit.PER_S) for n in ("reads", "writes", "deletes")),
        Column("read_bytes_per_s", "read", Unit.BYTES_PER_S), Column("written_bytes_per_s", "written",
                                                                    Unit.BYTES_PER_S),
    ]  # fmt: skip
    counts = ("reads", "writes", "deletes", "read_bytes", "written_bytes")
    tables = []
    for tier, group in groupby(over_time, key=lambda row: row["tier"]):
        rows = [[r["start_ns"], *(r[name] / seconds for name in counts)] for r in group]
        start = [float(row[0]) for row in rows]

        def chart(title: str, unit: Unit, picked: dict[str, int], rows: Any = rows, start: Any = start) -> Chart:
            series = [Series(label, start, [row[at] for row in rows]) for label, at in picked.items()]
            return Chart(title, Shape.STEPS, Unit.NS, unit, series, float(bucket_ns))

        charts = (
            chart(f"Bandwidth of {tier}", Unit.BYTES_PER_S, {"read": 4, "write": 5}),
            chart(f"Operations a second on {tier}", Unit.PER_S, {"read": 1, "write": 2, "delete": 3}),
        )
        text = f"Means over stretches of {format_duration(bucket_ns)}: shorter bursts are higher. {note}"
        tables.append(Table(f"Over time: {tier}", Sheet.HISTOGRAMS, columns, rows, charts, text))
    return tables


def wear_table(rows: list[dict[str, Any]], note: str) -> Table:
    """Return drive writes per day."""
    columns = [
        TIER, Column("written_bytes", "written", Unit.BYTES), Column("span_ns", "in", Unit.NS),
        Column("written_bytes_per_day", "a day", Unit.BYTES_PER_DAY),
        Column("capacity_bytes", "capacity", Unit.BYTES),
        Column("capacity_writes_per_day", "capacity writes a day", Unit.NUMBER),
    ]  # fmt: skip
    text = f"Extrapolated: the mean rate, kept up for a day, in the capacity that the trace gave the tier. {note}"
    return Table("Drive writes per day", Sheet.SUMMARY, columns, select(rows, columns), (), text)


def distribution_tables(points: list[dict[str, Any]]) -> list[Table]:
    """Return latency and lateness by share of operations, a table and a curve a tier."""
    tables = []
    for (measure, tier), group in groupby(points, key=lambda row: (row["measure"], row["tier"])):
        rows = list(group)
        ops = [op for op, _ in _by(rows, "op")]
        columns = [Column("share", "share", Unit.SHARE), *(Column(f"{op}_ns", op, Unit.NS) for op in ops)]
        found = {(r["op"], r["share"]): r["time_ns"] for r in rows}
        shares = sorted({r["share"] for r in rows})
        series = [
            Series(op, [float(r["time_ns"]) for r in part], [float(r["share"]) for r in part])
            for op, part in _by(rows, "op")
        ]
        name = measure.capitalize()
        chart = Chart(f"{name} on {tier}", Shape.CURVE, Unit.NS, Unit.SHARE, series)
        tables.append(Table(
            f"{name} distribution: {tier}", Sheet.HISTOGRAMS, columns,
            [[share, *(found.get((op, share)) for op in ops)] for share in shares], (chart,),
            f"{name} that the given share of operations did not exceed, by nearest rank; - with too few of them.",
        ))  # fmt: skip
    return tables


def heat_tables(heat: list[dict[str, Any]], bucket_ns: int | None) -> list[Table]:
    """Return how many operations of each latency completed when, a map a tier and op."""
    tables = []
    for (tier, op), group in groupby(heat, key=lambda row: (row["tier"], row["op"])):
        rows = list(group)
        most = max(r["operations"] for r in rows)
        cells = Series(
            op, [float(r["start_ns"]) for r in rows], [float(r["low_ns"]) for r in rows],
            [r["operations"] / most for r in rows],
        )  # fmt: skip
        chart = Chart(f"Latency of {op}s on {tier} over time", Shape.CELLS, Unit.NS, Unit.NS, [cells],
                      float(bucket_ns or 0))  # fmt: skip
        columns = [
            Column("start_ns", "from", Unit.NS), Column("low_ns", "latency from", Unit.NS),
            Column("operations", "operations", Unit.COUNT),
        ]  # fmt: skip
        tables.append(Table(
            f"Latency over time: {tier} {op}", Sheet.HISTOGRAMS, columns, select(rows, columns), (chart,),
            f"The strongest colour is {most:,} in a cell, which spans {format_duration(bucket_ns)} and latencies up to "
            "twice its first.", 2,
        ))  # fmt: skip
    return tables


def _by(rows: list[dict[str, Any]], name: str) -> list[tuple[str, list[dict[str, Any]]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row[name], []).append(row)
    return list(groups.items())
