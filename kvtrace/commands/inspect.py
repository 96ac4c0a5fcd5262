"""Look at a trace: what it holds, and whether it can be."""

from __future__ import annotations

import typer

from kvtrace.commands.options import AsJson, TraceFile, percent
from kvtrace.core.app import emit_json, emit_table, progress
from kvtrace.core.schema import TRACE
from kvtrace.core.tables import open_table
from kvtrace.core.units import format_bytes, format_count, format_duration


def info(file: TraceFile, as_json: AsJson = False) -> None:
    """Print what a trace holds: rows, span, operations and bytes by tier, op and phase, live bytes, hit ratios.

    \b
    kvtrace info t.parquet
    kvtrace info t.parquet --json | jq .tiers
    """
    from kvtrace.trace.inventory import take

    reader = open_table(file, TRACE)
    with progress("reading", reader.meta.rows) as tick:
        found = take(reader, tick)
    if as_json:
        emit_json({"file": str(file), "metadata": reader.meta, **found})
        return
    meta = reader.meta
    model = (meta.model or {}).get("name")
    typer.echo(
        f"{file}: {format_count(found['rows'])} rows over {format_duration(found['span_ns'])}, "
        f"{format_count(found['objects'])} objects, {format_count(found['requests'])} requests\n"
        f"made by {meta.program} {meta.version}, preset {meta.preset or '-'}, model {model or '-'}, "
        f"seed {'-' if meta.seed is None else meta.seed}, source {(meta.source or {}).get('kind', '-')}\n"
        f"{'simulated in virtual time' if meta.is_simulated else 'not simulated by kvtrace'}"
        f"; configuration {meta.config_sha256[:12]}\n"
    )
    for note in meta.notes:
        typer.echo(f"note: {note}")
    cells = [
        [f"{c['tier']} {c['op']} {c['phase']}", format_count(c["operations"]), format_bytes(c["bytes"])]
        for c in found["operations"]
    ]
    emit_table("\noperations", ["tier, op, phase", "operations", "bytes"], cells)
    emit_table(
        "tiers (hit ratio: counted by the simulation)",
        ["tier", "capacity", "peak live", "live at end", "hit ratio"],
        [
            [
                t["name"], "unbounded" if t["capacity_bytes"] is None else format_bytes(t["capacity_bytes"]),
                ("≤ " if t["is_upper_bound"] else "") + format_bytes(t["peak_live_bytes"]),
                format_bytes(t["live_bytes_at_end"]), percent(t["hit_ratio"]),
            ]
            for t in found["tiers"]
        ],
    )  # fmt: skip
    if any(t["is_upper_bound"] and t["peak_live_bytes"] for t in found["tiers"]):
        typer.echo("≤: nothing is deleted from this tier in the trace, so its live bytes only grow")


def validate(file: TraceFile, as_json: AsJson = False) -> None:
    """Re-simulate the rows: reads find live objects, capacities hold, time and stages go forward.

    The objects table beside it must list every object, with its size and kind.
    Leaves with 0, or with 3 and the first row that cannot be.

    \b
    kvtrace validate t.parquet
    """
    from kvtrace.trace.inventory import check

    reader = open_table(file, TRACE)
    with progress("validating", reader.meta.rows) as tick:
        ledger, has_table = check(reader, tick)
    if as_json:
        emit_json({
            "file": str(file), "is_valid": True, "rows": ledger.rows, "objects": ledger.objects,
            "has_objects_table": has_table,
        })  # fmt: skip
    else:
        note = "" if has_table else "; no objects table beside it"
        typer.echo(f"{file}: valid, {format_count(ledger.rows)} rows, {format_count(ledger.objects)} objects{note}")
