"""The report of a simulation, as sentences and tables."""

from __future__ import annotations

from typing import Final

from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from kvtrace.core.document.document import (
    Chapter,
    Document,
    ReportColumn,
    ReportTable,
    Sheet,
    Unit,
    table_of,
)
from kvtrace.core.document.fleet_chapters import (
    event_lines,
    event_tables,
    fleet_headline,
    fleet_tables,
)
from kvtrace.core.json_types import JsonObject
from kvtrace.core.metadata import STALLS
from kvtrace.core.overload import overload_note
from kvtrace.core.simulation_stats import (
    DecodeStats,
    Goodput,
    SimulationStats,
    StreamStats,
    TierStats,
    TimeToFirstToken,
)
from kvtrace.core.units import (
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_years,
    percent,
)
from kvtrace.llm.serving import serving_text
from kvtrace.sim.baseline import slower_note
from kvtrace.sim.service_level import ServiceLevel

_STREAMS_SHOWN = 8


def _compute_lines(serving: JsonObject, stats: SimulationStats) -> list[str]:
    """Describe the GPU, the mean time of a generated token and the mean wait of a prompt."""
    lines = [serving_text(serving)]
    decode = stats.decode
    if mean_ns := decode.mean_ns_per_token:
        tokens = format_count(decode.tokens)
        lines.append(
            f"computed: {tokens} tokens were generated, {format_duration(mean_ns)} each on average"
        )
        if decode.tokens_per_s is not None:
            lines[-1] += f"; output throughput {decode.tokens_per_s:,.1f} tokens/s"
    if mean_ns := stats.prefill.mean_wait_ns:
        prefills = format_count(stats.prefill.requests)
        lines[-1] += f"; {prefills} prompts waited {format_duration(mean_ns)} for others on average"
    return lines


def simulation_document(summary: JsonObject, stats: SimulationStats) -> Document:
    """Build the report of a simulation from its counters and the facts that `kvtrace gen` prints."""
    is_fleet = stats.fleet is not UNSET
    has_refusals = any(tier.refused_bytes is not UNSET for tier in stats.tiers)
    columns = [
        ReportColumn("name", "tier"),
        *([ReportColumn("scope")] if is_fleet else []),
        ReportColumn("hit_ratio", "hits", Unit.SHARE),
        ReportColumn("read_bytes", "read", Unit.BYTES),
        ReportColumn("written_bytes", "written", Unit.BYTES),
        ReportColumn("deleted_bytes", "deleted", Unit.BYTES),
        ReportColumn("live_bytes", "live at end", Unit.BYTES),
        *([ReportColumn("refused_bytes", "not admitted", Unit.BYTES)] if has_refusals else []),
    ]
    rows = [
        {name: None if value is UNSET else value for name, value in asdict(tier).items()}
        for tier in stats.tiers
    ]
    tables = [table_of("simulated", Sheet.SUMMARY, columns, rows)]
    if stats.first_token is not None:
        tables.append(first_token_table(stats.first_token))
    if stats.decode.time_per_token is not None:
        tables.append(time_per_token_table(stats.decode))
    notes = _compute_lines(summary["serving"], stats)
    notes += [_endurance_line(tier) for tier in summary["endurance"]]
    basis = "simulated; at the preset's prices and this trace's rate, kept up"
    notes += [cost_line(cost, " at the trace's end", basis) for cost in summary.get("costs", [])]
    notes += _tier_notes(stats)
    headline = (
        f"{counted(summary['rows'], 'row')}, preset {summary['preset']}, model {summary['model']}, "
        f"seed {summary['seed']}, {counted(stats.requests, 'request')}"
    )
    if stats.stalled_requests:
        stalled = f"{STALLS} in {stats.stalled_requests:,} of {stats.requests:,} requests"
        headline = f"{stalled}; {headline}"
    if stats.goodput is not UNSET:
        headline = f"{goodput_line(stats.goodput)}; {headline}"
    if slower := slower_note(stats.first_token):
        headline = f"{slower}; {headline}"
    if overload := overload_note(stats.prefill, stats.first_token):
        headline = f"{overload}; {headline}"
    if stats.fleet is not UNSET:
        headline = f"{fleet_headline(stats.fleet)}; {headline}"
        tables = [*fleet_tables(stats.fleet), *tables]
    if stats.incidents is not UNSET:
        tables += event_tables(stats.incidents)
        notes = [*event_lines(stats.incidents), *notes]
    return Document(summary["file"], headline, [Chapter("", tables, notes)])


def _endurance_line(tier: JsonObject) -> str:
    """Describe how much a tier is written a day and how that wears its drive."""
    line = f"{tier['name']}: {format_bytes(tier['written_bytes_per_day'])} written a day"
    if "instances" in tier:
        line += f" to each of {tier['instances']} on average"
    if tier["drive_writes_per_day"] is not None:
        line += f", {tier['drive_writes_per_day']:.3g} drive writes per day"
    if tier.get("years_of_life") is not None:
        line += f", {format_years(tier['years_of_life'])} of life"
    elif "years_of_life" in tier and tier["written_bytes_per_day"]:
        line += ", life unknown without --drive-size"
    return f"{line} (this trace's rate, kept up)"


def _tier_notes(stats: SimulationStats) -> list[str]:
    """Describe the work of tiers other than reads and writes.

    File lookups, refused offers, objects that were lost or dropped, garbage collection, streams.
    """
    notes = [
        f"{tier.name}: {counted(tier.file_lookups, 'lookup')} of files (simulated; no rows"
        " of the trace)"
        for tier in stats.tiers
        if tier.file_lookups is not UNSET
    ]
    offers = stats.offers
    if offers is not UNSET and offers.refused:
        notes.append(
            f"{format_count(offers.refused)} of {format_count(offers.count)} offers were"
            f" refused for lack of space, {counted(offers.refused_objects, 'object')} in all;"
            " each is offered again"
        )
    notes += [_store_queue_line(tier) for tier in stats.tiers if tier.lost_objects is not UNSET]
    notes += [
        f"{tier.name}: {format_bytes(tier.collected_bytes)} were rewritten by bucket garbage"
        f" collection: written"
        f" {tier.written_bytes / (tier.written_bytes - tier.collected_bytes):.3g} times"
        " what was stored"
        for tier in stats.tiers
        if tier.collected_bytes
    ]
    notes += [
        f"{tier.name}: written by stream: {_largest_streams(tier.streams)}"
        for tier in stats.tiers
        if tier.streams is not UNSET
    ]
    return notes


def _store_queue_line(tier: TierStats) -> str:
    """Describe the objects that a tier with a store queue did not store."""
    return (
        f"{tier.name}: {counted(count_or_zero(tier.lost_objects), 'object')}"
        f" ({format_bytes(count_or_zero(tier.lost_bytes))}) left the queue without being stored, because"
        f" the tier above had let them go or they filled no bucket, {format_count(count_or_zero(tier.dropped_objects))}"
        f" ({format_bytes(count_or_zero(tier.dropped_bytes))}) found the queue full and were dropped,"
        f" {format_count(count_or_zero(tier.waiting_objects))} still wait"
    )


def count_or_zero(count: int | UnsetType) -> int:
    """Return `count`, or 0 if it does not apply to the tier."""
    return 0 if count is UNSET else count


def _largest_streams(streams: list[StreamStats]) -> str:
    """List the streams of a tier by bytes written, the largest first."""
    ordered = sorted(streams, key=lambda stream: -stream.written_bytes)
    shown_streams = [
        f"{stream.stream} ({stream.holds}) {format_bytes(stream.written_bytes)}"
        for stream in ordered[:_STREAMS_SHOWN]
    ]
    hidden = len(ordered) - _STREAMS_SHOWN
    return (", ".join(shown_streams) or "nothing") + (f" and {hidden} more" if hidden > 0 else "")


_PERCENTILES: Final = (
    ReportColumn("kind", ""),
    ReportColumn("requests", unit=Unit.COUNT),
    ReportColumn("p50_ns", "p50", Unit.NS),
    ReportColumn("p95_ns", "p95", Unit.NS),
    ReportColumn("p99_ns", "p99", Unit.NS),
    ReportColumn("p99_9_ns", "p99.9", Unit.NS),
)
"""Columns of modelled times of requests, with and without offload."""


def first_token_table(first: TimeToFirstToken) -> ReportTable:
    """Build the table of modelled TTFT: as simulated, and in a simulation without offload."""
    rows = [asdict(first.with_cache) | {"kind": "as simulated", "requests": first.requests}]
    if first.without_offload is not None:
        label = {"kind": "without offload", "requests": first.requests_without_offload}
        rows.append(asdict(first.without_offload) | label)
    return table_of("modelled time to first token", Sheet.SUMMARY, _PERCENTILES, rows)


def time_per_token_table(decode: DecodeStats) -> ReportTable:
    """Build the table of modelled TPOT by request, with and without offload."""
    rows = [
        asdict(times) | {"kind": kind, "requests": requests}
        for kind, requests, times in (
            ("as simulated", decode.requests, decode.time_per_token),
            ("without offload", None, decode.time_per_token_without_offload),
        )
        if times is not None
    ]
    return table_of("modelled time per output token (TPOT)", Sheet.SUMMARY, _PERCENTILES, rows)


def goodput_line(goodput: Goodput) -> str:
    """Return the share of requests within a service level, and their rate, as a sentence."""
    limits = ServiceLevel(goodput.ttft_limit_ns, goodput.tpot_limit_ns).describe()
    if goodput.share is None:
        return f"no request, so no goodput within {limits}"
    line = f"goodput {percent(goodput.share)} of requests within {limits}"
    if goodput.requests_per_s is not None:
        line += f", {goodput.requests_per_s:.3g} requests/s"
    if goodput.share_without_offload is not None:
        line += f" (without offload {percent(goodput.share_without_offload)})"
    return line


def cost_line(cost: JsonObject, when: str, basis: str) -> str:
    """Return a monthly cost as a sentence.

    `when` says to which time the stored bytes belong, and `basis` how the month was extrapolated.
    """
    requests, storage = cost["requests_cost_per_month"], cost["storage_cost_per_month"]
    puts, gets = (format_count(cost[f"{kind}_per_month"]) for kind in ("puts", "gets"))
    return (
        f"{cost['name']}: {requests + storage:,.2f} {cost['currency']} a month: {puts} PUTs and {gets} GETs"
        f" {requests:,.2f}, {format_bytes(cost['stored_bytes'])} stored{when} {storage:,.2f}"
        f" ({basis})"
    )
