"""Inspect a trace: what it holds, and whether it is valid."""

from __future__ import annotations

import typer

from kvtrace.commands.options import AsJson, TraceFile
from kvtrace.core.app import emit_json, progress
from kvtrace.core.schema import TRACE
from kvtrace.core.tables import open_table
from kvtrace.core.units import format_count, printable


def info(file: TraceFile, as_json: AsJson = False) -> None:
    """Print what a trace holds: rows, span, operations and bytes by tier, op and phase, live bytes, hit ratios.

    \b
    kvtrace info t.parquet
    kvtrace info t.parquet --json | jq .tiers
    """
    from kvtrace.core.document.terminal import show_documents
    from kvtrace.trace.inventory import document, take

    reader = open_table(file, TRACE)
    with progress("reading", reader.meta.rows) as tick:
        found = take(reader, tick)
    if as_json:
        emit_json({"file": str(file), "metadata": reader.meta, **found})
        return
    show_documents([document(str(file), reader.meta, found)])


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
        counts = {"rows": ledger.rows, "objects": ledger.objects, "has_objects_table": has_table}
        emit_json({"file": str(file), "is_valid": True, **counts})
    else:
        note = "" if has_table else "; no objects table beside it"
        holds = f"{format_count(ledger.rows)} rows, {format_count(ledger.objects)} objects"
        typer.echo(f"{printable(str(file))}: valid, {holds}{note}")
