"""What `kvtrace models` prints: the list, and one model's arithmetic line by line."""

from __future__ import annotations

from typing import Any

import msgspec

from kvtrace.core.errors import ConfigError
from kvtrace.core.units import format_bytes, format_count
from kvtrace.model.catalogue import find_model, load_models
from kvtrace.model.layers import Indexer, Latent, Recurrent, share
from kvtrace.model.shape import (
    ModelShape,
    PieceKind,
    Store,
    bytes_per_token,
    bytes_per_token_per_rank,
    chunk_bytes,
    growing_bytes_per_token,
    pad,
    pieces,
    read_bytes,
    replication,
    state_bytes,
    stored_bytes,
    stored_ranks,
    windowed_bytes_per_token,
)

# Prefixes and pages longer than these are mistakes, and their products would not fit 64 bits.
MOST_TOKENS = 2**31
MOST_PAGE_BYTES = 2**30
COLUMNS = ("model", "layers", "dtype", "growing, B/token", "windowed, B/token", "state, B", "context, tokens")


def listing() -> list[dict[str, Any]]:
    """Return the facts of every model we ship, before any tensor-parallel split."""
    return [
        {
            "name": name,
            "layers": model.layers,
            "kv_dtype": str(model.kv_dtype),
            "bytes_per_token": bytes_per_token(model),
            "growing_bytes_per_token": growing_bytes_per_token(model),
            "windowed_bytes_per_token": windowed_bytes_per_token(model),
            "state_bytes": state_bytes(model),
            "max_context_tokens": model.max_context_tokens,
            "source": model.source,
            "notes": list(model.notes),
        }
        for name, model in load_models().items()
    ]


def listing_rows(models: list[dict[str, Any]]) -> list[list[str | None]]:
    """Return `listing` as rows under COLUMNS; a dash where a model has no such layers."""
    return [
        [
            m["name"], format_count(m["layers"]), m["kv_dtype"],
            *(format_count(m[f]) if m[f] else None for f in
              ("growing_bytes_per_token", "windowed_bytes_per_token", "state_bytes")),
            format_count(m["max_context_tokens"]),
        ]
        for m in models
    ]  # fmt: skip


def describe_model(
    name: str, kv_dtype: str | None, ranks: int, tokens: int, chunk_tokens: int, page_bytes: int
) -> dict[str, Any]:
    """Return what `tokens` tokens of the model `name` take on `ranks` ranks, in chunks of `chunk_tokens`.

    Sizes are for all ranks together unless a name says otherwise. ConfigError for what cannot be.
    """
    for option, value, most in (("--tokens", tokens, MOST_TOKENS), ("--chunk", chunk_tokens, MOST_TOKENS),
                                ("--page", page_bytes, MOST_PAGE_BYTES)):  # fmt: skip
        if not 0 < value <= most:
            raise ConfigError(f"{option} {value}: must be > 0, and at most {most}")
    model = find_model(name, kv_dtype)
    options: dict[str, Any] = {"ranks": ranks, "chunk_tokens": chunk_tokens, "page_bytes": page_bytes}
    chunks = tokens // chunk_tokens
    return {
        "model": name,
        "source": model.source,
        "notes": [*model.notes, *_split_notes(model, ranks)],
        "kv_dtype": str(model.kv_dtype),
        "max_context_tokens": model.max_context_tokens,
        "groups": [_group(model, g, ranks) for g in model.groups],
        "bytes_per_token": bytes_per_token(model),
        "growing_bytes_per_token": growing_bytes_per_token(model),
        "windowed_bytes_per_token": windowed_bytes_per_token(model),
        "state_bytes": state_bytes(model),
        "ranks": ranks,
        "bytes_per_token_per_rank": bytes_per_token_per_rank(model, ranks),
        "state_bytes_per_rank": state_bytes(model, ranks),
        "stored_ranks": stored_ranks(model, ranks),
        "replication_factor": replication(model, ranks),
        "chunk_tokens": chunk_tokens,
        "page_bytes": page_bytes,
        "pieces": [_piece(p, chunks, chunk_tokens, page_bytes) for p in pieces(model, ranks)],
        "chunk_bytes": chunk_bytes(model, chunk_tokens, ranks, page_bytes),
        "tokens": tokens,
        "chunks": chunks,
        "stored_dense_bytes": stored_bytes(model, tokens, **options),
        "stored_windowed_bytes": stored_bytes(model, tokens, store=Store.WINDOWED, **options),
        "read_bytes": read_bytes(model, tokens, **options),
    }


def _group(model: ModelShape, group: Any, ranks: int) -> dict[str, Any]:
    tree: dict[str, Any] = msgspec.to_builtins(group)
    if isinstance(group, Recurrent):
        one, each = group.state_bytes(1), group.state_bytes(ranks)
        formulas = group.formula(1), group.formula(ranks)
        return {**tree, "state_bytes": one, "state_bytes_per_rank": each, "formula": formulas[0],
                "formula_per_rank": formulas[1]}  # fmt: skip
    return {
        **tree,
        "bytes_per_token": group.token_bytes(model.kv_dtype, 1),
        "bytes_per_token_per_rank": group.token_bytes(model.kv_dtype, ranks),
        "formula": group.formula(model.kv_dtype, 1),
        "formula_per_rank": group.formula(model.kv_dtype, ranks),
    }


def _piece(piece: Any, chunks: int, chunk_tokens: int, page_bytes: int) -> dict[str, Any]:
    size = piece.size_bytes(chunk_tokens)
    return {
        "kind": str(piece.kind),
        "window_tokens": piece.window_tokens,
        "object_bytes_per_rank": size,
        "padded_object_bytes_per_rank": pad(size, page_bytes),
        "copies": piece.copies,
        "needed_chunks": piece.needed_chunks(chunks, chunk_tokens),
    }


def _split_notes(model: ModelShape, ranks: int) -> list[str]:
    counts = {
        count
        for g in model.groups
        if not isinstance(g, Latent | Indexer)
        for count in ((g.heads,) if isinstance(g, Recurrent) else (g.kv_heads,))
    }
    return [
        f"{heads} heads do not split evenly over {ranks} ranks, which engines refuse: each rank is charged "
        f"{share(heads, ranks)}"
        for heads in sorted(counts)
        if heads % ranks and ranks % heads
    ]


def arithmetic(d: dict[str, Any]) -> list[str]:
    """Return `describe_model` as lines to read."""
    lines = [
        f"{d['model']}: KV cache in {d['kv_dtype']}, context up to {format_count(d['max_context_tokens'])} tokens",
        f"from {d['source']}",
        *(f"note: {note}" for note in d["notes"]),
        "",
        "A token, before any tensor-parallel split",
        *_group_lines(d["groups"], ""),
        _sum(d["groups"], "bytes_per_token", d["bytes_per_token"]),
    ]
    if d["ranks"] > 1:
        lines += [
            "", f"A token on each of {d['ranks']} tensor-parallel ranks",
            *_group_lines(d["groups"], "_per_rank"),
            _sum(d["groups"], "bytes_per_token_per_rank", d["bytes_per_token_per_rank"]),
        ]  # fmt: skip
        total = d["bytes_per_token_per_rank"] * d["stored_ranks"]
        who = "rank 0 stores, the same latent on all" if d["stored_ranks"] < d["ranks"] else f"{d['ranks']} ranks store"
        lines.append(f"  {who}: {format_count(total)} B a token, replication factor {d['replication_factor']:g}")
    return [*(line for line in lines if line is not None), "", *_chunk_lines(d), "", *_prefix_lines(d)]


def _group_lines(groups: list[dict[str, Any]], suffix: str) -> list[str]:
    lines = []
    for g in groups:
        window = f", window {format_count(g['window_tokens'])} tokens" if "window_tokens" in g else ""
        name, size = f"{g['kind']}{window}", g.get(f"bytes_per_token{suffix}")
        if size is None:
            state = g[f"state_bytes{suffix}"]
            lines.append(f"  {name}: {g[f'formula{suffix}']} = {format_count(state)} B a state, not a token")
        else:
            lines.append(f"  {name}: {g[f'formula{suffix}']} = {format_count(size)} B")
    return lines


def _sum(groups: list[dict[str, Any]], field: str, total: int) -> str | None:
    parts = [g[field] for g in groups if field in g]
    return f"  together {format_count(total)} B" if len(parts) > 1 else None


def _chunk_lines(d: dict[str, Any]) -> list[str]:
    page = "" if d["page_bytes"] == 1 else f", padded to pages of {format_bytes(d['page_bytes'])}"
    lines = [f"A chunk of {format_count(d['chunk_tokens'])} tokens{page}"]
    for p in d["pieces"]:
        size = p["padded_object_bytes_per_rank"]
        padding = "" if size == p["object_bytes_per_rank"] else f" ({format_count(p['object_bytes_per_rank'])} B of it)"
        copies = "one rank" if p["copies"] == 1 else f"each of {p['copies']} ranks"
        name = "object" if p["kind"] == PieceKind.GROWING else f"object of {p['kind']}"
        if p["kind"] in (PieceKind.SLIDING, PieceKind.CHUNKED):
            name += " layers"
        lines.append(f"  {name} on {copies}: {format_count(size)} B = {format_bytes(size)}{padding}")
    lines.append(f"  all ranks: {format_count(d['chunk_bytes'])} B = {format_bytes(d['chunk_bytes'])}")
    return lines


def _prefix_lines(d: dict[str, Any]) -> list[str]:
    rest = d["tokens"] - d["chunks"] * d["chunk_tokens"]
    left = f"; {format_count(rest)} tokens fill no chunk and are not stored" if rest else ""
    lines = [f"A prefix of {format_count(d['tokens'])} tokens: {format_count(d['chunks'])} chunks{left}"]
    names = ["stored, dense", "read"]
    if d["stored_windowed_bytes"] != d["stored_dense_bytes"]:
        names.insert(1, "stored, windowed")
    for name in names:
        size = d["read_bytes" if name == "read" else f"{name.replace(', ', '_')}_bytes"]
        lines.append(f"  {name}: {format_count(size)} B = {format_bytes(size)}, all ranks")
    if d["read_bytes"] != d["stored_dense_bytes"]:
        needs = ", ".join(f"{p['kind']} {format_count(p['needed_chunks'])}" for p in d["pieces"])
        lines.append(f"  chunks that a read needs: {needs}")
    return lines
