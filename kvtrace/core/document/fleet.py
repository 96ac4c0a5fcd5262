"""What a simulated fleet did, as tables: hits in its nodes' own tiers and in shared ones, how even its nodes are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvtrace.core.document.document import Cell, Sheet, Unit, parameters, show, table_of

if TYPE_CHECKING:
    from kvtrace.core.document.document import ReportTable

MOST_NODES: Final = 16
"""A larger fleet is shown by its least, median and largest node."""


def headline(fleet: dict[str, Any]) -> str:
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


def tables(fleet: dict[str, Any]) -> list[ReportTable]:
    """Return the tables of a fleet's stats: the whole, and its nodes."""
    imbalance = fleet["imbalance"]
    whole = {
        "hits, all": Cell(fleet["hit_ratio"], Unit.SHARE),
        "hits in the node's own tiers": Cell(fleet["local_hit_ratio"], Unit.SHARE),
        "hits in shared tiers": Cell(fleet["shared_hit_ratio"], Unit.SHARE),
        "prompt tokens computed": Cell(fleet["computed_tokens"], Unit.COUNT),
        "held by more than one node, beside the first (at end)": Cell(fleet["duplicate_bytes"], Unit.BYTES),
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
        lookups = of["lookups"]
        ratios = {
            "hit_ratio": of["local_hits"] + of["shared_hits"],
            "local_hit_ratio": of["local_hits"],
            "shared_hit_ratio": of["shared_hits"],
        }
        rows.append(
            {"node": str(node)} | of | {name: hits / lookups if lookups else None for name, hits in ratios.items()}
        )
    if count <= MOST_NODES:
        return rows
    shown = []
    for name, at in (("least", 0), ("median", (count - 1) // 2), ("largest", count - 1)):
        columns = {column: sorted((row[column] for row in rows), key=lambda v: v or 0)[at] for column in rows[0]}
        shown.append(columns | {"node": name})
    return shown
