"""Inspect: what a trace holds and whether it is valid, the models and their bytes, the presets and their knobs."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvtrace.commands.options import AsJson, TensorParallel, TraceFile
from kvtrace.core.app import emit_json, progress
from kvtrace.core.document.document import Chapter, Document, Sheet, table_of
from kvtrace.core.document.terminal import answer
from kvtrace.core.schema import TRACE
from kvtrace.core.tables import open_table
from kvtrace.core.units import format_count, parse_bytes, printable

if TYPE_CHECKING:
    from kvtrace.sim.presets.preset import Knob


def info(file: TraceFile, as_json: AsJson = False) -> None:
    """Print what a trace holds: rows, span, operations and bytes by tier, op and phase, live bytes, hit ratios.

    \b
    kvtrace info t.parquet
    kvtrace info t.parquet --json | jq .tiers
    """
    from kvtrace.trace.inventory import document, take

    reader = open_table(file, TRACE)
    with progress("reading", reader.meta.rows) as tick:
        found = take(reader, tick)
    whole = {"file": str(file), "metadata": reader.meta, **found}
    answer(whole, lambda: document(str(file), reader.meta, found), as_json=as_json)


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


def models(
    model: Annotated[str | None, typer.Argument(help="A model, or a path to a config.json; without it, all.")] = None,
    tensor_parallel: TensorParallel = 1,
    kv_dtype: Annotated[
        str | None, typer.Option(help="Dtype of the cache: fp32, fp16, bf16, fp8, int8, fp8_ds_mla.")
    ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens of the prefix to store and read.")] = 8192,
    chunk: Annotated[int, typer.Option(help="Tokens a chunk.")] = 256,
    page: Annotated[str, typer.Option(help="Pad each object to pages of this size, such as 4KiB.")] = "1",
    as_json: AsJson = False,
) -> None:
    """List the models, or print how many bytes one of them stores and reads, line by line.

    \b
    kvtrace models
    kvtrace models llama3.1-70b-instruct --tp 8
    kvtrace models gpt-oss-120b --tokens 100000 --chunk 16 --page 4KiB
    kvtrace models ./config.json --kv-dtype fp8
    """
    from kvtrace.model import catalogue

    if model is None:
        listing = catalogue.listing()
        answer({"models": listing}, lambda: catalogue.listing_document(listing), as_json=as_json)
    else:
        found = catalogue.describe_model(model, kv_dtype, tensor_parallel, tokens, chunk, parse_bytes(page))
        answer(found, lambda: catalogue.document(found), as_json=as_json)


def presets(
    preset: Annotated[str | None, typer.Argument(help="One of the presets; without it, all.", metavar="NAME")] = None,
    as_json: AsJson = False,
) -> None:
    """List the presets and the engines they imitate, or print every knob of one: value, type, range, meaning.

    \b
    kvtrace presets
    kvtrace presets vllm-fs
    kvtrace gen --preset vllm-fs --set tiers.cpu.capacity=64GiB -o t.parquet
    """
    import msgspec

    from kvtrace.sim.presets.preset import description_of, knobs_of, listing, load_basis

    if preset is None:
        found = listing()
        spec = "text: name = preset, engine, version, description = what it is"
        notes = ["kvtrace presets NAME: its knobs, and what was run beside it"]
        chapter = Chapter("", [table_of("presets", Sheet.SUMMARY, spec, found)], notes)
        answer({"presets": found}, lambda: Document("", "", [chapter]), as_json=as_json)
        return
    knobs, facts = knobs_of(preset), {"name": preset, "description": description_of(preset)}
    facts |= {"basis": msgspec.to_builtins(load_basis(preset))}
    answer({**facts, "knobs": knobs}, lambda: _document(facts, knobs), as_json=as_json)


def _document(facts: dict[str, Any], knobs: list[Knob]) -> Document:

    rows = [
        {
            "knob": k.name,
            "value": _text(k.value),
            "default": _text(k.default),
            "type": fill(
                k.type if k.least is None else f"{k.type}, {k.least:,} to {k.most:,}", 32, break_on_hyphens=False
            ),
            "meaning": fill(k.meaning, 64),
        }
        for k in knobs
    ]
    tables = [table_of("knobs, for --set KNOB=VALUE", Sheet.SUMMARY, "text: knob, value, default, type, meaning", rows)]
    basis, notes = facts["basis"], []
    if basis is not None:
        notes = [f"imitates {basis['engine']} {basis['version']}, read: {basis['read']}"]
        notes += [f"executed: {' '.join(basis['executed'].split())}"]
    return Document(facts["name"], facts["description"], [Chapter("", tables, notes)])


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return str(value).lower() if isinstance(value, bool) else str(value)
