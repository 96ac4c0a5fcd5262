"""What a simulation looks like: as sentences and tables."""

from __future__ import annotations

from typing import Any

from kvtrace.core.document.chapters import event_lines, event_tables, fleet_headline, fleet_tables
from kvtrace.core.document.document import (
    Chapter,
    Document,
    ReportColumn,
    ReportTable,
    Sheet,
    Unit,
    table_of,
)
from kvtrace.core.metadata import STALLS
from kvtrace.core.units import (
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_years,
)
from kvtrace.llm.serving import serving_text

_STREAMS_SHOWN = 8


def _computed(summary: dict[str, Any]) -> list[str]:
    """Return what computes, how long tokens took on average, and how long prompts waited."""
    stats, said = summary["stats"], [serving_text(summary["serving"])]
    if mean_ns := stats["decode"]["mean_ns_per_token"]:
        tokens = format_count(stats["decode"]["tokens"])
        said.append(
            f"computed: {tokens} tokens were generated, {format_duration(mean_ns)} each on average"
        )
    if mean_ns := stats["prefill"]["mean_wait_ns"]:
        prefills = format_count(stats["prefill"]["requests"])
        said[-1] += f"; {prefills} prompts waited {format_duration(mean_ns)} for others on average"
    return said


def simulation_document(summary: dict[str, Any]) -> Document:
    """Return what the simulation counted as a document."""
    stats, first = summary["stats"], summary["stats"]["first_token"]
    rows = stats["tiers"]
    has_refusals = any("refused_bytes" in tier for tier in rows)
    columns = [
        ReportColumn("name", "tier", Unit.TEXT),
        *([ReportColumn("scope", "scope", Unit.TEXT)] if "fleet" in stats else []),
        ReportColumn("hit_ratio", "hits", Unit.SHARE),
        ReportColumn("read_bytes", "read", Unit.BYTES),
        ReportColumn("written_bytes", "written", Unit.BYTES),
        ReportColumn("deleted_bytes", "deleted", Unit.BYTES),
        ReportColumn("live_bytes", "live at end", Unit.BYTES),
        *([ReportColumn("refused_bytes", "not admitted", Unit.BYTES)] if has_refusals else []),
    ]
    if has_refusals:
        rows = [{"refused_bytes": None} | tier for tier in rows]
    tables = [table_of("simulated", Sheet.SUMMARY, columns, rows)]
    tables += [] if first is None else [first_token_table(first)]
    worn = _computed(summary)
    for tier in summary["endurance"]:
        line = f"{tier['name']}: {format_bytes(tier['written_bytes_per_day'])} written a day"
        line += f" to each of {tier['instances']} on average" if "instances" in tier else ""
        if tier["drive_writes_per_day"] is not None:
            line += f", {tier['drive_writes_per_day']:.3g} drive writes per day"
        if tier.get("years_of_life") is not None:
            line += f", {format_years(tier['years_of_life'])} of life"
        elif "years_of_life" in tier and tier["written_bytes_per_day"]:
            line += ", life unknown without --drive-size"
        worn.append(line + " (this trace's rate, kept up)")
    basis = "simulated; at the preset's prices and this trace's rate, kept up"
    worn += [
        cost_line(cost, " at the trace's end", basis) for cost in summary.get("costs", [])
    ] + _beside(stats)
    headline = (
        f"{counted(summary['rows'], 'row')}, preset {summary['preset']}, model {summary['model']}, "
        f"seed {summary['seed']}, {counted(stats['requests'], 'request')}"
    )
    if stalled := stats.get("stalled_requests"):
        headline = f"{STALLS} in {stalled:,} of {stats['requests']:,} requests; {headline}"
    if of_fleet := stats.get("fleet"):
        headline = f"{fleet_headline(of_fleet)}; {headline}"
        tables = [*fleet_tables(of_fleet), *tables]
    if events := stats.get("incidents"):
        tables += event_tables(events)
        worn = [*event_lines(events), *worn]
    return Document(summary["file"], headline, [Chapter("", tables, worn)])


def _beside(stats: dict[str, Any]) -> list[str]:
    """Return what tiers do beside reads and writes.

    Look-ups, refusals, what was not stored, collecting, streams.
    """
    tiers = stats["tiers"]
    said = [
        f"{tier['name']}: {counted(tier['file_lookups'], 'look-up')} of files (simulated; no rows"
        " of the trace)"
        for tier in tiers
        if "file_lookups" in tier
    ]
    if (offers := stats.get("offers")) is not None and offers["refused"]:
        said.append(
            f"{format_count(offers['refused'])} of {format_count(offers['count'])} offers were"
            f" refused for lack of space, {counted(offers['refused_objects'], 'object')} in all;"
            " each is offered again"
        )
    said += [
        f"{tier['name']}: {counted(tier['lost_objects'], 'object')}"
        f" ({format_bytes(tier['lost_bytes'])}) had left the tier above before they were stored,"
        f" {format_count(tier['dropped_objects'])} ({format_bytes(tier['dropped_bytes'])}) found"
        f" the queue full and were dropped, {format_count(tier['waiting_objects'])} still wait"
        for tier in tiers
        if "lost_objects" in tier
    ]
    said += [
        f"{tier['name']}: {format_bytes(tier['collected_bytes'])} were rewritten by bucket garbage"
        " collection: written"
        f" {tier['written_bytes'] / (tier['written_bytes'] - tier['collected_bytes']):.3g} times"
        " what was stored"
        for tier in tiers
        if tier.get("collected_bytes")
    ]
    for tier in tiers:
        most = sorted(tier.get("streams", []), key=lambda stream: -stream["written_bytes"])
        parts = [
            f"{of['stream']} ({of['holds']}) {format_bytes(of['written_bytes'])}"
            for of in most[:_STREAMS_SHOWN]
        ]
        rest = f" and {len(most) - _STREAMS_SHOWN} more" if len(most) > _STREAMS_SHOWN else ""
        if "streams" in tier:
            said.append(f"{tier['name']}: written by stream: {', '.join(parts) or 'nothing'}{rest}")
    return said


def first_token_table(first: dict[str, Any]) -> ReportTable:
    """Return the modelled times to the first token of `stats`, and in the same queue had each alone
    found nothing.
    """
    rows = [
        first["with_cache"] | {"kind": "with cache"},
        first["without_cache"] | {"kind": "without any hit"},
    ]
    spec = "text: kind =; ns: p50_ns = p50, p95_ns = p95, p99_ns = p99, p99_9_ns = p99.9"
    return table_of("modelled time to first token", Sheet.SUMMARY, spec, rows)


def cost_line(cost: dict[str, Any], when: str, basis: str) -> str:
    """Return a monthly cost in a sentence: what is stored `when`, and on what `basis`."""
    requests, storage = cost["requests_cost_per_month"], cost["storage_cost_per_month"]
    puts, gets = (format_count(cost[f"{kind}_per_month"]) for kind in ("puts", "gets"))
    return (
        f"{cost['name']}: {requests + storage:,.2f} a month: {puts} PUTs and {gets} GETs"
        f" {requests:,.2f}, {format_bytes(cost['stored_bytes'])} stored{when} {storage:,.2f}"
        f" ({basis})"
    )
