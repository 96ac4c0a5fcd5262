"""Models by name.

Those of models.toml, any Hugging Face config.json, and the one that an engine's log names.

And what `kvtrace models` shows: the list of them, and the arithmetic of one, as values and as
documents.
"""

from __future__ import annotations

import difflib
import re
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from kvtrace.core.config import load_toml, to_struct
from kvtrace.core.document.document import (
    Chapter,
    Document,
    ReportColumn,
    ReportTable,
    Sheet,
    Unit,
)
from kvtrace.core.errors import ConfigError
from kvtrace.core.json_types import JsonObject
from kvtrace.core.parameters import named
from kvtrace.core.units import counted, format_bytes, format_count, format_io_size
from kvtrace.llm import shape as shapes
from kvtrace.llm.huggingface import read_model

_TABLE = Path(__file__).with_name("models.toml")
_TUNED = {"instruct", "chat", "it", "hf", "base"}
_MOST_NAMED: Final = 8
"""Models that an error names."""
_ANY_CONTEXT_TOKENS = 2**31


@cache
def load_models() -> dict[str, shapes.ModelShape]:
    """Return every model we ship, by name."""
    models = {
        name: to_struct(tree, shapes.ModelShape, f"models.toml: {name}")
        for name, tree in load_toml(_TABLE).items()
    }
    for name, model in models.items():
        shapes.check(model, f"models.toml: {name}")
    return models


_USUAL_MODELS: Final = {"8b": "llama3.1-8b", "70b": "llama3.1-70b", "405b": "llama3.1-405b"}
"""The models that a size alone stands for: those that published figures of KV caches are for."""


def full_model_name(name: str) -> str:
    """Return the model that `name` stands for.

    It is a size, or a name that begins one model's. Other names are returned as they are, such as
    the path of a config.json.

    >>> full_model_name("70b"), full_model_name("mistral"), full_model_name("qwen3")
    ('llama3.1-70b', 'mistral-7b', 'qwen3')
    """
    if usual := _USUAL_MODELS.get(name.lower()):
        return usual
    plain = _plain(name)
    if not plain or any(_plain(model) == plain for model in load_models()):
        return name
    beginning = [model for model in load_models() if _plain(model).startswith(plain)]
    return beginning[0] if len(beginning) == 1 else name


def find_model(name: str, kv_dtype: str | None = None) -> shapes.ModelShape:
    """Return the model called `name`, or that of the Hugging Face config.json at that path.

    A name is one of ours, or a Hugging Face one such as meta-llama/Llama-3.1-70B-Instruct.
    `kv_dtype` replaces the dtype of the cache. ConfigError, with the nearest names, if there is no
    such model.
    """
    models, path, given = load_models(), Path(name), name
    name = full_model_name(name)
    if name not in models and (name.endswith(".json") or path.is_dir()):
        return read_model(path / "config.json" if path.is_dir() else path, kv_dtype)
    # Maker, case and tuning suffix are ignored.
    known_name = (
        name
        if name in models
        else next((known_name for known_name in models if _plain(known_name) == _plain(name)), None)
    )
    if known_name is not None:
        if kv_dtype is None:
            return models[known_name]
        # Recurrent states and indexers keep their dtype.
        changed: shapes.ModelShape = msgspec.structs.replace(
            models[known_name], kv_dtype=shapes.parse_dtype(kv_dtype, named("kv_dtype"))
        )
        shapes.check(changed, named("kv_dtype"))
        return changed
    plain_names = {_plain(model): model for model in models}
    near = [plain for plain in plain_names if plain.startswith(_plain(name))][:_MOST_NAMED]
    near = near or difflib.get_close_matches(_plain(name), plain_names, n=3)
    nearest = [plain_names[plain] for plain in near]
    hint = f"the nearest are {', '.join(nearest)}" if nearest else f"known are {', '.join(models)}"
    raise ConfigError(
        f"unknown model {given!r}; {hint}, or a path to a config.json (`kvtrace models` lists all)"
    )


def _plain(name: str) -> str:
    """Return `name` without its maker, capitals, hyphens and tuning.

    Meta-llama/Llama-3.1-70B-Instruct: llama3.170b.
    """
    words = re.split(r"[-_ ]+", name.rsplit("/", 1)[-1].lower().removeprefix("meta-"))
    while len(words) > 1 and words[-1] in _TUNED:
        words.pop()
    return "".join(words)


def logged_model(origin: JsonObject) -> tuple[str, shapes.ModelShape] | None:
    """Return name and shape of the model in a source's `origin`; None without bytes a token.

    The shape has only the bytes of one rank; each of several ranks stores as many.
    """
    logged = origin.get("model") or (origin.get("of") or {}).get("model")
    if not isinstance(logged, dict):
        return None
    name, size = str(logged.get("name") or "unnamed"), logged.get("kv_bytes_per_token_per_rank")
    if not isinstance(size, int) or size <= 1:
        return None
    group = shapes.Full(layers=1, kv_heads=1, head_dim=size // 2, value_dim=size - size // 2)
    shape = shapes.ModelShape(
        source="the log of an engine",
        groups=(group,),
        max_context_tokens=_ANY_CONTEXT_TOKENS,
        kv_dtype=shapes.KvDtype.INT8,
        notes=(
            (
                f"{size} bytes of KV a token and rank, as logged; how they divide into layers and"
                " heads is not known"
            ),
        ),
    )
    shapes.check(shape, f"the logged model {name}")
    try:
        known_model = find_model(name)
    except ConfigError:
        return name, shape
    weights = {
        n: getattr(known_model, n)
        for n in ("parameters", "active_parameters", "weight_bytes", "max_context_tokens")
    }
    return name, msgspec.structs.replace(shape, computed_as=known_model.groups, **weights)


# Prefixes and pages longer than these are mistakes, and their products would not fit 64 bits.
MOST_TOKENS = 2**31
MOST_PAGE_BYTES = 2**30


def listing() -> list[JsonObject]:
    """Return the facts of every model we ship, before any tensor-parallel split."""
    return [
        {
            "name": name,
            "layers": model.layers,
            "kv_dtype": str(model.kv_dtype),
            **_token_bytes(model),
            "max_context_tokens": model.max_context_tokens,
            "source": model.source,
            "notes": list(model.notes),
        }
        for name, model in load_models().items()
    ]


def _token_bytes(model: shapes.ModelShape) -> dict[str, int]:
    sizes = (
        "bytes_per_token",
        "growing_bytes_per_token",
        "windowed_bytes_per_token",
        "state_bytes",
        "fixed_bytes",
    )
    return {name: getattr(shapes, name)(model) for name in sizes}


def listing_document(models: list[JsonObject]) -> Document:
    """Return `listing` as a document of one table; null where a model has no such layers."""
    bytes_of = {
        "growing_bytes_per_token": "growing, B/token",
        "windowed_bytes_per_token": "windowed, B/token",
    }
    headings = bytes_of | {
        "state_bytes": "state, B",
        "fixed_bytes": "fixed, B/request",
        "max_context_tokens": "context, tokens",
    }
    columns = [
        ReportColumn("name", "model"),
        ReportColumn("layers", unit=Unit.COUNT),
        ReportColumn("kv_dtype", "dtype"),
    ]
    columns += [ReportColumn(name, heading, Unit.COUNT) for name, heading in headings.items()]
    rows = [[model[column.name] or None for column in columns] for model in models]
    table = ReportTable("models, before any tensor-parallel split", Sheet.SUMMARY, columns, rows)
    return Document("", "", [Chapter("", [table])])


def describe_model(
    name: str,
    kv_dtype: str | None,
    ranks: int,
    tokens: int,
    chunk_tokens: int,
    page_bytes: int,
    memory_bytes: int | None = None,
) -> JsonObject:
    """Return what `tokens` tokens of the model `name` take on `ranks` ranks, in chunks of
    `chunk_tokens`, and how long a request fits into `memory_bytes`.

    Sizes are for all ranks together unless a name says otherwise. ConfigError for what cannot be.
    """
    limits = {
        "tokens": (tokens, MOST_TOKENS),
        "chunk": (chunk_tokens, MOST_TOKENS),
        "page": (page_bytes, MOST_PAGE_BYTES),
    }
    for parameter, (value, maximum) in limits.items():
        if not 0 < value <= maximum:
            raise ConfigError(f"{named(parameter, value)}: must be > 0 and at most {maximum}")
    name = full_model_name(name)
    model = find_model(name, kv_dtype)
    options: JsonObject = {
        "ranks": ranks,
        "chunk_tokens": chunk_tokens,
        "page_bytes": page_bytes,
    }
    chunks = tokens // chunk_tokens
    return {
        "model": name,
        "source": model.source,
        "notes": [
            *model.notes,
            *_split_notes(model, ranks),
            *model.entry_notes(chunk_tokens, ranks),
        ],
        "kv_dtype": str(model.kv_dtype),
        "max_context_tokens": model.max_context_tokens,
        "groups": [_group(model, g, ranks) for g in model.groups],
        **_token_bytes(model),
        **_fit(model, memory_bytes),
        "ranks": ranks,
        "bytes_per_token_per_rank": shapes.bytes_per_token_per_rank(model, ranks),
        "state_bytes_per_rank": shapes.state_bytes(model, ranks),
        "stored_ranks": shapes.stored_ranks(model, ranks),
        "replication_factor": shapes.replication(model, ranks),
        "chunk_tokens": chunk_tokens,
        "page_bytes": page_bytes,
        "pieces": [
            {
                "kind": str(p.kind),
                "window_tokens": p.window_tokens,
                "object_bytes_per_rank": p.size_bytes(chunk_tokens),
                "padded_object_bytes_per_rank": shapes.pad(p.size_bytes(chunk_tokens), page_bytes),
                "copies": p.copies,
                "needed_chunks": p.needed_chunks(chunks, chunk_tokens),
            }
            for p in shapes.pieces(model, ranks)
        ],
        "chunk_bytes": shapes.chunk_bytes(model, chunk_tokens, ranks, page_bytes),
        "tokens": tokens,
        "chunks": chunks,
        "stored_dense_bytes": shapes.stored_bytes(model, tokens, **options),
        **dict.fromkeys(
            ("stored_windowed_bytes", "read_bytes"), shapes.read_bytes(model, tokens, **options)
        ),
    }


def _fit(model: shapes.ModelShape, memory_bytes: int | None) -> dict[str, int | None]:
    if memory_bytes is None:
        return {}
    fits = shapes.tokens_that_fit(model, memory_bytes)
    return {"memory_bytes": memory_bytes, "tokens_that_fit": fits}


def _group(model: shapes.ModelShape, group: shapes.Layers, ranks: int) -> JsonObject:
    """Return a group of layers with its bytes, and the formula of these, of one rank and of all."""
    dtype = model.kv_dtype
    if isinstance(group, shapes.CompressorState):
        size = group.state_bytes(dtype)
        sizes = {"state_bytes": size, "state_bytes_per_rank": size}
        formulas = (group.formula(dtype), group.formula(dtype))
    elif isinstance(group, shapes.Recurrent):
        sizes = {
            "state_bytes": group.state_bytes(1),
            "state_bytes_per_rank": group.state_bytes(ranks),
        }
        formulas = (group.formula(1), group.formula(ranks))
    else:
        sizes = {
            "bytes_per_token": group.token_bytes(dtype, 1),
            "bytes_per_token_per_rank": group.token_bytes(dtype, ranks),
        }
        formulas = (group.formula(dtype, 1), group.formula(dtype, ranks))
    fields: JsonObject = msgspec.to_builtins(group) | sizes
    return fields | {"formula": formulas[0], "formula_per_rank": formulas[1]}


def _split_notes(model: shapes.ModelShape, ranks: int) -> list[str]:
    counts = set()
    for group in model.groups:
        if isinstance(group, shapes.Recurrent):
            counts.add(group.heads)
        elif isinstance(group, shapes.Full | shapes.Sliding | shapes.Chunked):
            counts.add(group.kv_heads)
    return [
        f"{heads} heads do not split evenly over {ranks} ranks, which engines refuse: each rank is"
        f" charged {shapes.share(heads, ranks)}"
        for heads in sorted(counts)
        if heads % ranks and ranks % heads
    ]


def document(description: JsonObject) -> Document:
    """Return `describe_model` as a document: a token's bytes, a chunk's, and a prefix's."""
    chapters = [Chapter("A token, before any tensor-parallel split", [_layers(description, "")])]
    if description["ranks"] > 1:
        total = description["bytes_per_token_per_rank"] * description["stored_ranks"]
        storing_ranks = (
            "rank 0 stores, the same latent on all"
            if description["stored_ranks"] < description["ranks"]
            else f"{description['ranks']} ranks store"
        )
        stored = (
            f"{storing_ranks}: {format_count(total)} B a token, replication factor"
            f" {description['replication_factor']:g}"
        )
        chapters.append(
            Chapter(
                f"A token on each of {description['ranks']} tensor-parallel ranks",
                [_layers(description, "_per_rank")],
                [stored],
            )
        )
    page = (
        ""
        if description["page_bytes"] == 1
        else f", padded to pages of {format_io_size(description['page_bytes'])}"
    )
    remainder = description["tokens"] - description["chunks"] * description["chunk_tokens"]
    remainder_text = (
        f"; {format_count(remainder)} tokens fill no chunk and are not stored" if remainder else ""
    )
    prefix = f"A prefix of {counted(description['tokens'], 'token')}: {counted(description['chunks'], 'chunk')}{remainder_text}"
    needs = ", ".join(
        f"{p['kind']} {format_count(p['needed_chunks'])}" for p in description["pieces"]
    )
    is_windowed = description["read_bytes"] != description["stored_dense_bytes"]
    # All ranks together.
    sizes = {
        name: description[f"{name}_bytes"] for name in ("stored_dense", "stored_windowed", "read")
    }
    if sizes["stored_windowed"] == sizes["stored_dense"]:
        del sizes["stored_windowed"]
    rows = [[name.replace("_", ", "), size, size] for name, size in sizes.items()]
    columns = [ReportColumn("what", "all ranks"), *_SIZES]
    size_table = ReportTable("", Sheet.SUMMARY, columns, rows)
    chapters += [
        Chapter(
            f"A chunk of {counted(description['chunk_tokens'], 'token')}{page}",
            [_objects(description)],
        ),
        Chapter(
            prefix, [size_table], [f"chunks that a read needs: {needs}"] if is_windowed else []
        ),
    ]
    headline = f"KV cache in {description['kv_dtype']}: {format_count(description['growing_bytes_per_token'])} B a token"
    if description["fixed_bytes"]:
        headline += f", and {format_bytes(description['fixed_bytes'])} fixed a request"
    headline += f"; context up to {format_count(description['max_context_tokens'])} tokens"
    if "memory_bytes" in description:
        fits = description["tokens_that_fit"]
        longest = "every length" if fits is None else f"one request of {format_count(fits)} tokens"
        headline += f"\n{format_io_size(description['memory_bytes'])} holds {longest}"
    return Document(
        description["model"],
        f"{headline}\nfrom {description['source']}",
        chapters,
        description["notes"],
    )


def _layers(d: JsonObject, suffix: str) -> ReportTable:
    token, state = f"bytes_per_token{suffix}", f"state_bytes{suffix}"
    rows = []
    for g in d["groups"]:
        window = (
            f", window {format_count(g['window_tokens'])} tokens" if "window_tokens" in g else ""
        )
        rows.append([f"{g['kind']}{window}", g[f"formula{suffix}"], g.get(token), g.get(state)])
    if sum(token in g for g in d["groups"]) > 1:
        rows.append(["together", "", d[token], None])
    columns = [
        ReportColumn("layers"),
        ReportColumn("formula", "bytes"),
        ReportColumn(token, "B a token", Unit.COUNT),
        ReportColumn(state, "B a state", Unit.COUNT),
    ]
    if not any(state in g for g in d["groups"]):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return ReportTable("", Sheet.SUMMARY, columns, rows)


_SIZES: Final = (
    ReportColumn("size_bytes", "bytes", Unit.COUNT),
    ReportColumn("size", "", Unit.BYTES),
)


def _objects(d: JsonObject) -> ReportTable:
    rows: list[list[object]] = []
    for p in d["pieces"]:
        size = p["padded_object_bytes_per_rank"]
        name = "object" if p["kind"] == shapes.PieceKind.GROWING else f"object of {p['kind']}"
        if p["kind"] in (shapes.PieceKind.SLIDING, shapes.PieceKind.CHUNKED):
            name += " layers"
        copies = "one rank" if p["copies"] == 1 else f"each of {p['copies']} ranks"
        rows.append([f"{name} on {copies}", size, size, p["object_bytes_per_rank"]])
    rows.append(["all ranks", d["chunk_bytes"], d["chunk_bytes"], None])
    columns = [
        ReportColumn("object"),
        *_SIZES,
        ReportColumn("unpadded_bytes", "unpadded", Unit.COUNT),
    ]
    if all(row[1] == row[3] for row in rows[:-1]):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return ReportTable("", Sheet.SUMMARY, columns, rows)
