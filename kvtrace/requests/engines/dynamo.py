"""NVIDIA Dynamo's request trace (`dynamo.request.trace.v1`): an event a line, of which request_end is a request.

Dynamo gives the hashes of whole prefixes where it traces for replay (`replay` in a request), and sessions of agents.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import msgspec

from kvtrace.core.errors import TraceError
from kvtrace.requests.engines.gather import Gathered
from kvtrace.requests.jsonlines import JsonLines, unused_notes
from kvtrace.requests.requests import Count, Requests, Start

SCHEMA = "dynamo.request.trace.v1"
_NS_PER_MS = 1_000_000

_Ms = Annotated[float, msgspec.Meta(ge=0, le=2**43)]


class _Replay(msgspec.Struct):
    trace_block_size: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    input_length: Count
    input_sequence_hashes: list[int]


class _Request(msgspec.Struct):
    request_received_ms: _Ms
    total_time_ms: _Ms | None = None
    output_tokens: Count | None = None
    replay: _Replay | None = None


class _Agent(msgspec.Struct):
    session_id: str | None = None
    parent_session_id: str | None = None


class _Line(msgspec.Struct):
    event_type: str
    schema: str | None = None
    request: _Request | None = None
    agent_context: _Agent | None = None


def is_own(start: Start) -> bool:
    """Return whether the file is such a trace: one of the lines at its start names the schema."""
    return start.text.startswith(b"{") and f'"{SCHEMA}"'.encode() in start.text


def read(path: Path) -> Requests:
    """Return the requests of the Dynamo trace at `path`, each a request_end; arrivals are request_received_ms.

    Raises:
        TraceError: a line is not such an event, hashes do not fit a length, or block sizes differ.

    """
    lines, found = JsonLines(path, _Line, name_fields=True), Gathered()
    others, unplaced, block_tokens = Counter[str](), 0, 0
    for number, line in lines:
        if line.event_type != "request_end" or line.request is None:
            others[line.event_type] += 1
            continue
        request, replay = line.request, line.request.replay
        if line.schema != SCHEMA:
            raise lines.fault(f"{line.schema!r} is not {SCHEMA}", number, "schema")
        if replay is None:
            unplaced += 1
            continue
        block_tokens = block_tokens or replay.trace_block_size
        if replay.trace_block_size != block_tokens:
            why = f"{replay.trace_block_size}, but blocks are of {block_tokens} tokens"
            raise lines.fault(why, number, "request.replay.trace_block_size")
        hashes, whole = len(replay.input_sequence_hashes), replay.input_length // block_tokens
        if hashes not in (whole, -(-replay.input_length // block_tokens)):
            why = (
                f"{hashes} hashes, but {replay.input_length} tokens in blocks of {block_tokens} make {whole} whole ones"
            )
            raise lines.fault(why, number, "request.replay.input_sequence_hashes")
        session = line.agent_context.session_id if line.agent_context else None
        time_ns = round(request.request_received_ms * _NS_PER_MS)
        answered_ns = time_ns + round((request.total_time_ms or 0) * _NS_PER_MS)
        tokens = replay.input_length, request.output_tokens or 0
        found.add(time_ns, *tokens, replay.input_sequence_hashes, session, answered_ns)
    if not found and unplaced:
        why = f"none of its {unplaced} requests says its prompt's blocks: Dynamo has to trace for replay"
        raise TraceError(why, path=path)
    notes = []
    if unplaced:
        notes.append(f"{unplaced} requests without `replay`, whose prompts are unknown, are left out")
    if others:
        named = ", ".join(f"{count} {name}" for name, count in sorted(others.items()))
        notes.append(f"events that are not used: {named}; so no wait of an agent for its tools or sub-agents")
    notes += unused_notes(lines.fields, _Line)
    return found.requests("dynamo", path, lines.sha256, block_tokens, notes, requests_left_out=unplaced)
