"""List the presets, and the knobs of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvtrace.commands.options import AsJson
from kvtrace.core.app import emit_json

if TYPE_CHECKING:
    from kvtrace.core.document.document import Document
    from kvtrace.sim.presets.preset import Knob


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

    from kvtrace.core.document.terminal import show_documents
    from kvtrace.sim.presets.preset import description_of, knobs_of, listing, load_basis

    if preset is None:
        found = listing()
        if as_json:
            emit_json({"presets": found})
        else:
            show_documents([_list(found)])
        return
    knobs, facts = knobs_of(preset), {"name": preset, "description": description_of(preset)}
    facts |= {"basis": msgspec.to_builtins(load_basis(preset))}
    if as_json:
        emit_json({**facts, "knobs": [msgspec.to_builtins(knob) for knob in knobs]})
        return
    show_documents([_document(facts, knobs)])


def _list(found: list[dict[str, Any]]) -> Document:
    from kvtrace.core.document.document import Chapter, Document, Sheet, table_of

    spec = "text: name = preset, engine, version, description = what it is"
    tables = [table_of("presets", Sheet.SUMMARY, spec, found)]
    return Document("", "", [Chapter("", tables, ["kvtrace presets NAME: its knobs, and what was run beside it"])])


def _document(facts: dict[str, Any], knobs: list[Knob]) -> Document:
    from kvtrace.core.document.document import Chapter, Document, Sheet, table_of

    rows = [
        {"knob": k.name, "value": _text(k.value), "default": _text(k.default), "type": _range(k), "meaning": k.meaning}
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


def _range(knob: Knob) -> str:
    return knob.type if knob.least is None else f"{knob.type}, {knob.least:,} to {knob.most:,}"
