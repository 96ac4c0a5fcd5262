"""LMCache's lookup log (`lookup_hashes_*.jsonl`): each prompt's chunk hashes, and the shape of their KV.

LMCache's server writes it with `--lookup-hash-log-dir`: a line for each prompt that it looks up, with its full chunks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from kvtrace.core.errors import TraceError
from kvtrace.core.units import NS_PER_S
from kvtrace.requests.engines.gather import Gathered
from kvtrace.requests.engines.geometry import chunk_bytes, model_of
from kvtrace.requests.jsonlines import JsonLines, unused_notes
from kvtrace.requests.requests import Count, Requests, Seconds, Start, sha256_of

FILES = "lookup_hashes_*.jsonl"

_Size = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class _Line(msgspec.Struct):
    timestamp: Seconds
    chunk_size: _Size
    seq_len: Count
    chunk_hashes: list[str]
    request_id: str = ""
    model_name: str = ""
    dtypes: list[str] = []
    shapes: list[list[_Size]] = []


def is_own(start: Start) -> bool:
    """Return whether the file is such a log: its first line has chunk hashes."""
    return start.text.startswith(b"{") and b'"chunk_hashes"' in start.line and b'"seq_len"' in start.line


def read(path: Path) -> Requests:
    """Return the requests of the log at `path`, or of all `lookup_hashes_*.jsonl` in that directory, by name.

    Raises:
        TraceError: a line is no such lookup, has more hashes than its prompt has full chunks, or is of another model
            or chunk size than those before it.

    """
    paths = sorted(path.glob(FILES)) if path.is_dir() else [path]
    if not paths:
        raise TraceError(f"no {FILES} there", path=path)
    found, first, ids, repeated, unused = Gathered(), None, set[str](), 0, set[str]()
    for one in paths:
        lines = JsonLines(one, _Line, name_fields=True)
        for number, line in lines:
            first = first or line
            _check(line, first, lines, number)
            repeated += bool(line.request_id) and line.request_id in ids
            ids.add(line.request_id)
            found.add(round(line.timestamp * NS_PER_S), line.seq_len, 0, line.chunk_hashes)
        unused |= lines.fields
    if first is None:
        raise TraceError("holds no request", path=path)
    size_bytes = chunk_bytes(first.shapes, first.dtypes)
    model = model_of(first.model_name, size_bytes, first.chunk_size)
    notes = ["the log does not say how long answers are: output_tokens is 0, and nothing is decoded"]
    if repeated:
        notes.append(f"{repeated} lookups are of a request that was looked up before: each is a request here")
    notes += unused_notes(unused, _Line)
    facts = {"files": [p.name for p in paths], "model": model, "repeated_lookups": repeated}
    return found.requests("lmcache-lookup", path, sha256_of(*paths), first.chunk_size, notes, **facts)


def _check(line: _Line, first: _Line, lines: JsonLines[_Line], number: int) -> None:
    chunks, most = len(line.chunk_hashes), line.seq_len // line.chunk_size
    if chunks > most:
        why = f"{chunks} hashes, but {line.seq_len} tokens in chunks of {line.chunk_size} make {most} full ones"
        raise lines.fault(why, number, "chunk_hashes")
    if len(set(line.chunk_hashes)) < chunks:
        raise lines.fault("a hash appears twice, but a hash names one whole prefix", number, "chunk_hashes")
    for name in ("model_name", "chunk_size"):
        mine, of_first = getattr(line, name), getattr(first, name)
        if mine != of_first:
            why = f"{mine!r} after {of_first!r}: one file may hold one model's requests; split it by {name}"
            raise lines.fault(why, number, name)
