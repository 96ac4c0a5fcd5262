"""NVIDIA Dynamo's request trace (`dynamo.request.trace.v1`).

The file has one event a line; a `request_end` is one request. Dynamo's file sink wraps each event
as {"timestamp": ..., "event": ...}. Where Dynamo traces for replay, a request carries `replay`: the
hashes of its prompt's prefixes. Agents name their sessions.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import msgspec

from kvtrace.core.errors import TraceError
from kvtrace.core.units import NS_PER_MS
from kvtrace.requests.json_lines import Count, JsonLines, Milliseconds
from kvtrace.requests.notes import counted, unused_notes
from kvtrace.requests.request_collector import RequestCollector
from kvtrace.requests.requests import Requests
from kvtrace.requests.source_files import source

SCHEMA = "dynamo.request.trace.v1"


class _Replay(msgspec.Struct):
    trace_block_size: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    input_length: Count
    input_sequence_hashes: list[int]


class _Request(msgspec.Struct):
    request_id: str | None = None
    request_received_ms: Milliseconds | None = None
    total_time_ms: Milliseconds | None = None
    output_tokens: Count | None = None
    replay: _Replay | None = None


class _Agent(msgspec.Struct):
    session_id: str | None = None


class _Event(msgspec.Struct):
    event_type: str
    schema: str | None = None
    event_time_unix_ms: Milliseconds | None = None
    """When the request ended."""
    request: _Request | None = None
    agent_context: _Agent | None = None


class _Line(msgspec.Struct):
    """An event, or the envelope that the file sink puts around one."""

    event: _Event | None = None
    event_type: str = ""
    schema: str | None = None
    event_time_unix_ms: Milliseconds | None = None
    request: _Request | None = None
    agent_context: _Agent | None = None

    def unwrapped(self) -> _Event:
        """Return the event of this line."""
        if self.event is not None:
            return self.event
        return _Event(
            self.event_type, self.schema, self.event_time_unix_ms, self.request, self.agent_context
        )


@source(lambda start: start.has_json_with(SCHEMA))
def dynamo(path: Path) -> Requests:
    """Read the requests of the Dynamo trace at `path`.

    A request arrives at `request_received_ms`, or where that is absent at the end of the request
    less its `total_time_ms`. Requests without `replay`, without either time, or with the id of an
    earlier one are left out, with a note.

    Raises:
        TraceError: if a line is not such an event, hashes do not fit a prompt's length, or block
            sizes differ.
    """
    lines = JsonLines(path, _Line, name_fields=True, may_be_indented=True)
    requests = RequestCollector()
    other_events = Counter[str]()
    ids: set[str] = set()
    left_out = Counter[str]()
    block_tokens = 0
    for number, line in lines:
        event = line.unwrapped()
        if not event.event_type:
            raise lines.fault("Object missing required field `event_type`", number, None)
        if event.event_type != "request_end" or event.request is None:
            other_events[event.event_type] += 1
            continue
        if event.schema != SCHEMA:
            raise lines.fault(f"{event.schema!r} is not {SCHEMA}", number, "schema")
        request, replay = event.request, event.request.replay
        arrival_ms = _arrival_ms(event, request)
        if replay is None or arrival_ms is None:
            left_out["without prompt" if replay is None else "without arrival"] += 1
            continue
        if request.request_id in ids:
            left_out["repeated"] += 1
            continue
        if request.request_id is not None:
            ids.add(request.request_id)
        block_tokens = block_tokens or replay.trace_block_size
        _check_blocks(replay, block_tokens, lines, number)
        arrival_ns = round(arrival_ms * NS_PER_MS)
        requests.add(
            arrival_ns,
            replay.input_length,
            request.output_tokens or 0,
            replay.input_sequence_hashes,
            event.agent_context.session_id if event.agent_context else None,
            arrival_ns + round((request.total_time_ms or 0) * NS_PER_MS),
            row=number,
        )
    without_prompt = left_out["without prompt"]
    if not requests and without_prompt:
        raise TraceError(
            f"none of its {without_prompt} requests says its prompt's blocks: Dynamo has to trace"
            " for replay",
            path=path,
        )
    notes = counted(
        (without_prompt, "requests without `replay`, whose prompts are unknown, are left out"),
        (left_out["without arrival"], "requests without the time of their arrival are left out"),
        (left_out["repeated"], "requests with the id of an earlier one are left out"),
    )
    if other_events:
        names = ", ".join(f"{count} {name}" for name, count in sorted(other_events.items()))
        notes.append(
            f"events that are not used: {names}; so no wait of an agent for its tools or sub-agents"
        )
    notes += unused_notes(lines.fields - {"timestamp"}, _Line)
    return requests.build_requests(
        "dynamo",
        path,
        lines.sha256,
        block_tokens,
        notes,
        requests_left_out=left_out.total(),
    )


def _arrival_ms(event: _Event, request: _Request) -> float | None:
    """Return when a request arrived, ms of the event's clock; None if nothing says so."""
    if request.request_received_ms is not None:
        return request.request_received_ms
    if event.event_time_unix_ms is None or request.total_time_ms is None:
        return None
    return event.event_time_unix_ms - request.total_time_ms


def _check_blocks(replay: _Replay, block_tokens: int, lines: JsonLines[_Line], number: int) -> None:
    """Refuse a prompt with blocks of another size, or with blocks that do not fit its length."""
    if replay.trace_block_size != block_tokens:
        raise lines.fault(
            f"{replay.trace_block_size}, but blocks are of {block_tokens} tokens",
            number,
            "request.replay.trace_block_size",
        )
    hashes = len(replay.input_sequence_hashes)
    full_blocks = replay.input_length // block_tokens
    if hashes not in (full_blocks, -(-replay.input_length // block_tokens)):
        raise lines.fault(
            f"{hashes} hashes, but {replay.input_length} tokens in blocks of {block_tokens} make"
            f" {full_blocks} whole ones",
            number,
            "request.replay.input_sequence_hashes",
        )
