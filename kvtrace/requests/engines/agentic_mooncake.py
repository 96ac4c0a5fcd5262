"""Dynamo's agentic form of Mooncake rows (`dynamo.agentic_mooncake`): a header, then requests that wait for others."""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from kvtrace.requests.engines.gather import Gathered
from kvtrace.requests.jsonlines import JsonLines, unused_notes
from kvtrace.requests.requests import MAX_NS, BlockId, Count, Requests, Start, column
from kvtrace.requests.turns.waits import Waits

SCHEMA: Final = "dynamo.agentic_mooncake"
VERSION: Final = 2
_NS_PER_MS = 1_000_000

_Ms = Annotated[float, msgspec.Meta(ge=0, le=2**43)]


class _Dependency(msgspec.Struct):
    request_id: str
    trigger: Literal["dispatch", "completion"]
    delay_ms: _Ms = 0.0


class _Line(msgspec.Struct):
    schema: str | None = None
    version: int | None = None
    block_size: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    hash_id_scope: Literal["local", "global"] = "local"
    request_id: str | None = None
    play_id: str = ""
    session_id: str | None = None
    input_length: Count | None = None
    output_length: Count | None = None
    hash_ids: list[BlockId] | None = None
    not_before_ms: _Ms = 0.0
    dependencies: list[_Dependency] = []


def is_own(start: Start) -> bool:
    """Return whether the file's first line is the header of such a file."""
    return start.text.startswith(b"{") and f'"{SCHEMA}"'.encode() in start.line


def read(path: Path) -> Requests:
    """Return the requests of the file at `path`, and which wait for which to be dispatched or to complete.

    As recorded, a request arrives at its `not_before_ms`, or its delay after the last request that it depends on; that
    is taken to complete as it arrives, for the file does not say how long requests took.

    Raises:
        TraceError: the header is not of version 2, a line is not such a request, or it depends on a later one.

    """
    lines = JsonLines(path, _Line, name_fields=True)
    rows = iter(lines)
    number, head = next(rows, (0, _Line()))
    if head.schema != SCHEMA or head.version != VERSION or head.block_size is None:
        raise lines.fault(f"its first line must be of {SCHEMA}, version {VERSION}, with a block_size", number, None)
    found, is_local = Gathered(), head.hash_id_scope == "local"
    arrivals: dict[str, tuple[int, int]] = {}
    waits: list[tuple[int, int, int, bool]] = []
    least_ns = array("q")
    for number, line in rows:
        name, tokens, ids = _check(line, head.block_size, lines, number)
        if name in arrivals:
            raise lines.fault(f"{name!r} appears twice", number, "request_id")
        time_ns = round(line.not_before_ms * _NS_PER_MS)
        least_ns.append(time_ns)
        for other in line.dependencies:
            if other.request_id not in arrivals:
                why = f"depends on {other.request_id!r}, which is not before it"
                raise lines.fault(why, number, "dependencies")
            (before, before_ns), delay_ns = arrivals[other.request_id], round(other.delay_ms * _NS_PER_MS)
            time_ns = max(time_ns, before_ns + delay_ns)
            waits.append((len(found), before, delay_ns, other.trigger == "dispatch"))
        if time_ns > MAX_NS:
            raise lines.fault("it comes beyond the clock of a trace", number, "dependencies")
        arrivals[name] = len(found), time_ns
        session = None if line.session_id is None else (line.play_id, line.session_id)
        chain = [(line.play_id if is_local else None, block) for block in ids]
        found.add(time_ns, tokens, line.output_length or 0, chain, session)
    graph = Waits.of(len(found), waits, column(least_ns))
    completions = len(waits) - int(graph.is_of_start.sum())
    notes, untimed = [], ""
    if completions:
        untimed = (
            f"{completions} of the waits of {graph.followers} requests are for another to complete: the file does not "
            "say how long requests took, so they arrive their delay after it arrived"
        )
        notes.append(untimed)
    if is_local:
        notes.append("block ids are local to a play: nothing is shared between plays")
    notes += unused_notes(lines.fields, _Line)
    requests = found.requests("agentic-mooncake", path, lines.sha256, head.block_size, notes)
    pause = "what the file's dependencies say, those on a dispatch counted from there"
    return replace(requests, waits=found.in_order(graph), untimed=untimed, pause=pause)


def _check(line: _Line, block_tokens: int, lines: JsonLines[_Line], number: int) -> tuple[str, int, list[int]]:
    """Return the request's name, the tokens of its prompt and its blocks."""
    if line.request_id is None or line.input_length is None or line.hash_ids is None:
        raise lines.fault("a request needs request_id, input_length and hash_ids", number, None)
    whole, wanted = line.input_length // block_tokens, -(-line.input_length // block_tokens)
    if len(line.hash_ids) not in (whole, wanted):
        raise lines.misfit(len(line.hash_ids), line.input_length, block_tokens, wanted, number)
    return line.request_id, line.input_length, line.hash_ids
