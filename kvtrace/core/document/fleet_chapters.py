"""Tables of a simulated fleet that several programs show: its nodes, and the time around incidents.

Hits are counted in the tiers of a node itself and in tiers that all nodes share.
"""

from __future__ import annotations

from typing import Final, TypedDict

import msgspec

from kvtrace.core.document.document import (
    Cell,
    ReportColumn,
    ReportTable,
    Sheet,
    Unit,
    parameters,
    show,
    table_of,
)
from kvtrace.core.json_types import JsonObject
from kvtrace.core.simulation_stats import (
    FleetStats,
    IncidentOutcome,
    IncidentStats,
    RestartCounts,
)
from kvtrace.core.units import counted, format_duration, per_second

_MAX_NODES_SHOWN: Final = 16
"""A larger fleet is shown by the least, median and largest value of each column."""


class HitRatios(TypedDict):
    """The three hit rates of a node, a fleet or a window."""

    local_hit_ratio: float | None
    shared_hit_ratio: float | None
    hit_ratio: float | None


def hit_ratios(local_hits: int, shared_hits: int, lookups: int) -> HitRatios:
    """Return the shares of lookups that hit in a node's own tiers, in shared ones and in any.

    They are None without lookups.
    """
    if not lookups:
        return HitRatios(local_hit_ratio=None, shared_hit_ratio=None, hit_ratio=None)
    return HitRatios(
        local_hit_ratio=local_hits / lookups,
        shared_hit_ratio=shared_hits / lookups,
        hit_ratio=(local_hits + shared_hits) / lookups,
    )


def fleet_headline(fleet: FleetStats) -> str:
    """Return one line: the number of nodes, the router and the hit rates of a fleet."""
    return (
        f"{fleet.nodes} nodes, router {fleet.router}:"
        f" {show(fleet.hit_ratio, Unit.SHARE)} of lookups hit,"
        f" {show(fleet.local_hit_ratio, Unit.SHARE)} in the node's own tiers,"
        f" {show(fleet.shared_hit_ratio, Unit.SHARE)} in shared ones"
    )


def fleet_tables(fleet: FleetStats) -> list[ReportTable]:
    """Return the tables of a fleet: its totals, and a row a node."""
    totals = {
        "hits, all": Cell(fleet.hit_ratio, Unit.SHARE),
        "hits in the node's own tiers": Cell(fleet.local_hit_ratio, Unit.SHARE),
        "hits in shared tiers": Cell(fleet.shared_hit_ratio, Unit.SHARE),
        "prompt tokens computed": Cell(fleet.computed_tokens, Unit.COUNT),
        "copies on further nodes (at end)": Cell(fleet.duplicate_bytes, Unit.BYTES),
    }
    if fleet.link_bytes is not msgspec.UNSET:
        totals["sent over the link"] = Cell(fleet.link_bytes, Unit.BYTES)
    imbalance = fleet.imbalance
    totals["requests, busiest node over the mean"] = Cell(imbalance.requests, Unit.RATIO)
    totals["computing, busiest node over the mean"] = Cell(imbalance.computing_ns, Unit.RATIO)
    columns = [
        ReportColumn("node"),
        ReportColumn("requests", unit=Unit.COUNT),
        ReportColumn("hit_ratio", "hits", Unit.SHARE),
        ReportColumn("local_hit_ratio", "own tiers", Unit.SHARE),
        ReportColumn("shared_hit_ratio", "shared tiers", Unit.SHARE),
        ReportColumn("computed_tokens", "tokens computed", Unit.COUNT),
        ReportColumn("computing_ns", "computing", Unit.NS),
    ]
    rows = _node_rows(fleet)
    if len(rows) > _MAX_NODES_SHOWN:
        rows = _extreme_rows(rows)
    return [
        parameters("fleet", Sheet.SUMMARY, totals),
        table_of("nodes", Sheet.SUMMARY, columns, rows),
    ]


def _node_rows(fleet: FleetStats) -> list[JsonObject]:
    """Return a row for each node."""
    counts = fleet.by_node
    rows: list[JsonObject] = []
    for node in range(len(counts.requests)):
        ratios = hit_ratios(counts.local_hits[node], counts.shared_hits[node], counts.lookups[node])
        rows.append(
            {
                "node": str(node),
                "requests": counts.requests[node],
                "computed_tokens": counts.computed_tokens[node],
                "computing_ns": counts.computing_ns[node],
                **ratios,
            }
        )
    return rows


def _extreme_rows(rows: list[JsonObject]) -> list[JsonObject]:
    """Return the least, the median and the largest value of each column; null counts as 0."""
    sorted_columns = {
        column: sorted((row[column] for row in rows), key=lambda value: value or 0)
        for column in rows[0]
    }
    ranks = {"least": 0, "median": (len(rows) - 1) // 2, "largest": len(rows) - 1}
    return [
        {column: values[rank] for column, values in sorted_columns.items()} | {"node": name}
        for name, rank in ranks.items()
    ]


_WINDOW_PHRASES: Final = {
    "before": "in the {} before",
    "during": "during it",
    "minute 1 after": "in the {} after",
}
"""How a sentence names a window around an incident; {} is the length of the window."""


def event_lines(events: IncidentStats) -> list[str]:
    """Return a line for each incident: hit rates around it, and when they had recovered.

    If requests restarted, the first line says how many lookups they repeated, for these are part
    of all hit rates.
    """
    lines: list[str] = []
    restarts = events.begun_again
    if isinstance(restarts, RestartCounts) and restarts.requests:
        first_lookups = restarts.of_lookups - restarts.lookups
        first_hits = restarts.of_hits - restarts.hits
        ratio = first_hits / first_lookups if first_lookups else None
        lines.append(
            f"requests restarted {counted(restarts.requests, 'time')} and repeated lookups:"
            f" {restarts.lookups:,} of {restarts.of_lookups:,} lookups and {restarts.hits:,} of"
            f" {restarts.of_hits:,} hits; all hit rates count them; of first lookups"
            f" {show(ratio, Unit.SHARE)} hit"
        )
    lines += [_event_line(incident) for incident in events.around]
    return lines


def _event_line(incident: IncidentOutcome) -> str:
    """Return the hit rates around one incident, its recovery and its restarts in one line."""
    if not incident.is_reached:
        return f"{incident.event}: the trace ends before it"
    windows = {window.window: window for window in incident.windows}
    clauses = []
    for name, phrase in _WINDOW_PHRASES.items():
        if name not in windows:
            continue
        window = windows[name]
        # A window is shorter than a minute where the trace begins or ends within it.
        length = format_duration(window.to_ns - window.from_ns)
        clauses.append(f"{show(window.hit_ratio, Unit.SHARE)} {phrase.format(length)}")
    if incident.hits_back_ns is not None:
        recovery = format_duration(incident.hits_back_ns)
        clauses.append(f"back to the level before within {recovery}")
    elif "before" in windows and windows["before"].hit_ratio is not None:
        clauses.append("not back to the level before by the end of the trace")
    restarts = sum(window.restarted for window in incident.windows if window.window != "before")
    if restarts:
        clauses.append(f"requests restarted {counted(restarts, 'time')} in the windows from it on")
    return f"{incident.event}: hits {', '.join(clauses)}"


def event_tables(events: IncidentStats) -> list[ReportTable]:
    """Return the tables of the windows around each incident.

    The first has hits and computed tokens, the second the load of the slowest tier.
    """
    columns = [
        ReportColumn("event"),
        ReportColumn("window"),
        ReportColumn("from_ns", "from", Unit.NS),
        ReportColumn("lasts_ns", "lasts", Unit.NS),
        ReportColumn("hit_ratio", "hits", Unit.SHARE),
        ReportColumn("local_hit_ratio", "own tiers", Unit.SHARE),
        ReportColumn("shared_hit_ratio", "shared tiers", Unit.SHARE),
        ReportColumn("computed_per_s", "tokens computed/s", Unit.PER_S),
        ReportColumn("restarted", "requests begun again", Unit.COUNT),
    ]
    rows = [
        window | {"computed_per_s": per_second(window["computed_tokens"], window["lasts_ns"])}
        for window in _window_rows(events)
    ]
    note = "Simulated. Hits of lookups; prompt tokens that were computed, as no tier had them."
    slowest_tier = len(events.tiers) - 1
    return [
        table_of("around each event", Sheet.SUMMARY, columns, rows, note, keys=2),
        storage_table(events, slowest_tier),
    ]


def _window_rows(events: IncidentStats) -> list[JsonObject]:
    """Return a row for each window of each incident, with the fields of IncidentWindow."""
    return [
        {
            "event": incident.event,
            **msgspec.structs.asdict(window),
            "lasts_ns": window.to_ns - window.from_ns,
        }
        for incident in events.around
        for window in incident.windows
    ]


def storage_table(events: IncidentStats, tier_index: int) -> ReportTable:
    """Return the load of one tier in the windows around each incident."""
    columns = [
        ReportColumn("event"),
        ReportColumn("window"),
        ReportColumn("read_bytes_per_s", "read", Unit.BYTES_PER_S),
        ReportColumn("peak_read_bytes", "most in a second", Unit.BYTES_PER_S),
        ReportColumn("reads_per_s", "reads/s", Unit.PER_S),
        ReportColumn("written_bytes_per_s", "written", Unit.BYTES_PER_S),
        ReportColumn("peak_written_bytes", "most in a second", Unit.BYTES_PER_S),
        ReportColumn("writes_per_s", "writes/s", Unit.PER_S),
        ReportColumn("lost_bytes", "lost", Unit.BYTES),
    ]
    rows = []
    for window in _window_rows(events):
        counts = msgspec.structs.asdict(window["tiers"][tier_index])
        rates = {
            f"{name}_per_s": per_second(counts[name], window["lasts_ns"])
            for name in ("reads", "read_bytes", "writes", "written_bytes")
        }
        rows.append(window | counts | rates)
    note = "Simulated. Lost data has rows of phase lose in the trace; nothing deletes it."
    return table_of(
        f"{events.tiers[tier_index].name} around each event",
        Sheet.SUMMARY,
        columns,
        rows,
        note,
        keys=2,
    )
