"""What a simulated fleet did, as tables: hits in its nodes' own tiers and in shared ones, how even its nodes are.

And what happened to it: the time around each incident.
"""

from __future__ import annotations

from typing import Any, Final

from kvtrace.core.document.document import (
    Cell,
    ReportTable,
    Sheet,
    Unit,
    parameters,
    show,
    table_of,
)
from kvtrace.core.units import format_count, format_duration

MOST_NODES: Final = 16
"""A larger fleet is shown by its least, median and largest node."""


def hit_ratios(counts: dict[str, int]) -> dict[str, float | None]:
    """Return which shares of look-ups hit in a node's own tiers, in shared ones and in any; null without look-ups."""
    local, shared, lookups = (counts[name] for name in ("local_hits", "shared_hits", "lookups"))
    hits = {"local_hit_ratio": local, "shared_hit_ratio": shared, "hit_ratio": local + shared}
    return {name: count / lookups if lookups else None for name, count in hits.items()}


def fleet_headline(fleet: dict[str, Any]) -> str:
    """Return the first line of what `fleet`, the stats of a fleet, did."""
    hits = ", ".join(
        f"{show(fleet[name], Unit.SHARE)} {words}"
        for name, words in (
            ("hit_ratio", "of look-ups hit"),
            ("local_hit_ratio", "in the node's own tiers"),
            ("shared_hit_ratio", "in shared ones"),
        )
    )
    return f"{fleet['nodes']} nodes, router {fleet['router']}: {hits}"


def fleet_tables(fleet: dict[str, Any]) -> list[ReportTable]:
    """Return the tables of a fleet's stats: the whole, and its nodes."""
    imbalance = fleet["imbalance"]
    whole = {
        "hits, all": Cell(fleet["hit_ratio"], Unit.SHARE),
        "hits in the node's own tiers": Cell(fleet["local_hit_ratio"], Unit.SHARE),
        "hits in shared tiers": Cell(fleet["shared_hit_ratio"], Unit.SHARE),
        "prompt tokens computed": Cell(fleet["computed_tokens"], Unit.COUNT),
        "copies on further nodes (at end)": Cell(fleet["duplicate_bytes"], Unit.BYTES),
        **({"sent over the link": Cell(fleet["link_bytes"], Unit.BYTES)} if "link_bytes" in fleet else {}),
        "requests, busiest node over the mean": Cell(imbalance["requests"], Unit.RATIO),
        "computing, busiest node over the mean": Cell(imbalance["computing_ns"], Unit.RATIO),
    }
    spec = "text: node; count: requests; share: hit_ratio = hits, local_hit_ratio = own tiers, shared_hit_ratio = "
    spec += "shared tiers; count: computed_tokens = tokens computed; ns: computing_ns = computing"
    return [parameters("fleet", Sheet.SUMMARY, whole), table_of("nodes", Sheet.SUMMARY, spec, _rows(fleet["by_node"]))]


def _rows(by_node: dict[str, list[int]]) -> list[dict[str, Any]]:
    """Return a row for each node, or for the least, median and largest of each figure."""
    count = len(by_node["requests"])
    rows = []
    for node in range(count):
        of = {name: values[node] for name, values in by_node.items()}
        rows.append({"node": str(node)} | of | hit_ratios(of))
    if count <= MOST_NODES:
        return rows
    shown = []
    for name, at in (("least", 0), ("median", (count - 1) // 2), ("largest", count - 1)):
        columns = {column: sorted((row[column] for row in rows), key=lambda v: v or 0)[at] for column in rows[0]}
        shown.append(columns | {"node": name})
    return shown


def event_lines(events: dict[str, Any]) -> list[str]:
    """Return a line for each event: hits before it and in the minute after it, and when they were back."""
    return [_event_line(of) for of in events["around"]]


def _event_line(of: dict[str, Any]) -> str:
    if not of["is_reached"]:
        return f"{of['event']}: the trace ends before it"
    windows = {window["window"]: window for window in of["windows"]}
    parts = [
        f"{show(windows[name]['hit_ratio'], Unit.SHARE)} {words}"
        for name, words in (
            ("before", "in the minute before"),
            ("during", "during it"),
            ("minute 1 after", "in the minute after"),
        )
        if name in windows
    ]
    back = of["hits_back_ns"]
    if back is not None:
        parts.append(f"back as before within {format_duration(back)}")
    elif "before" in windows:
        parts.append("not back as before by the end of the trace")
    restarted = sum(window["restarted"] for window in of["windows"] if window["window"] != "before")
    if restarted:
        parts.append(f"{format_count(restarted)} requests began again")
    return f"{of['event']}: hits {', '.join(parts)}"


def event_tables(events: dict[str, Any]) -> list[ReportTable]:
    """Return what there was around each event: hits and tokens, and the load of the slowest tier."""
    spec = """
        text: event, window
        ns: from_ns = from, lasts_ns = lasts
        share: hit_ratio = hits, local_hit_ratio = own tiers, shared_hit_ratio = shared tiers
        per_s: computed_per_s = tokens computed/s
        count: restarted = requests begun again
    """
    rows = [w | {"computed_per_s": _rate(w["computed_tokens"], w["lasts_ns"])} for w in _windows(events)]
    note = "Simulated. Hits of look-ups; tokens of prompts that were computed, for nothing that was found had them."
    store = len(events["tiers"]) - 1
    return [table_of("around each event", Sheet.SUMMARY, spec, rows, note, keys=2), storage_table(events, store)]


def _windows(events: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"event": of["event"]} | window | {"lasts_ns": window["to_ns"] - window["from_ns"]}
        for of in events["around"]
        for window in of["windows"]
    ]


def storage_table(events: dict[str, Any], t: int) -> ReportTable:
    """Return the load of tier `t` around each event."""
    spec = """
        text: event, window
        bytes_per_s: read_bytes_per_s = read, peak_read_bytes = most in a second
        per_s: reads_per_s = reads/s
        bytes_per_s: written_bytes_per_s = written, peak_written_bytes = most in a second
        per_s: writes_per_s = writes/s
        bytes: lost_bytes = lost
    """
    rows = []
    for window in _windows(events):
        tier = window["tiers"][t]
        counts = {name: _rate(tier[name], window["lasts_ns"]) for name in ("reads", "read_bytes", "writes")}
        counts["written_bytes"] = _rate(tier["written_bytes"], window["lasts_ns"])
        rows.append(window | tier | {f"{name}_per_s": rate for name, rate in counts.items()})
    note = "Simulated. What is lost was deleted by nobody: its rows in the trace have phase lose."
    return table_of(f"{events['tiers'][t]['name']} around each event", Sheet.SUMMARY, spec, rows, note, keys=2)


def _rate(count: int, lasts_ns: int) -> float | None:
    return count * 1e9 / lasts_ns if lasts_ns else None
