"""Mooncake JSONL request traces (FAST'25 release): arrival, lengths, and the prefix chain as global block ids."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.requests.jsonlines import JsonLines, unused_notes
from kvtrace.requests.mooncake_sessions import Sessions, flat
from kvtrace.requests.requests import (
    MAX_NS,
    MAX_TOKENS,
    NONE,
    BlockId,
    Count,
    Ints,
    Requests,
    Start,
    column,
    origin_of,
)

BLOCK_TOKENS = 512
TIME_UNITS_NS = {"ms": 1_000_000, "s": 1_000_000_000}
# Above this many requests a second, milliseconds have most likely been taken for seconds or the reverse.
_SUSPICIOUS_PER_S = 1000.0

_Time = Annotated[float, msgspec.Meta(ge=0, le=2**43)]


class _Line(msgspec.Struct):
    input_length: Count
    output_length: Count | None = None
    timestamp: _Time | None = None
    hash_ids: list[BlockId] | None = None
    block_size: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    session_id: str | int | None = None
    delay: _Time | None = None


def is_own(start: Start) -> bool:
    """Return whether the file is a Mooncake trace: its first line is a request without a chat_id, and no event."""

    def has(*names: bytes) -> bool:
        return any(b'"%b"' % name in start.line for name in names)

    is_request = has(b"timestamp", b"session_id") and has(b"hash_ids", b"session_id") and has(b"input_length")
    return start.text.startswith(b"{") and is_request and not has(b"chat_id", b"event_type")


def read(path: Path, *, time_unit: str = "ms", block_tokens: int | None = None) -> Requests:
    """Return the requests of the Mooncake JSONL file at `path`; times are in `time_unit`.

    Blocks have the `block_size` of the file's rows, or `block_tokens`, or 512 tokens; each line is checked against
    it. Rows may name a `session_id`, and its later turns a `delay` in place of a timestamp and what they add in place
    of a whole prompt. Rows of sessions may stand in any order of time, and lack ids: their blocks are their own.

    Raises:
        TraceError: a line is not such an object, its chain does not fit its length, or time goes backwards.

    """
    if time_unit not in TIME_UNITS_NS:
        raise ConfigError(f"unknown time unit {time_unit!r}; use {' or '.join(TIME_UNITS_NS)}")
    if block_tokens is not None and block_tokens <= 0:
        raise ConfigError(f"block tokens(={block_tokens}) must be > 0")
    lines = JsonLines(path, _Line, name_fields=True)
    times, inputs, outputs, numbers = (array("q") for _ in range(4))
    chains: list[array[int]] = []
    sessions, scale, last_ns, unanswered = Sessions(), TIME_UNITS_NS[time_unit], 0, 0
    for number, line in lines:
        block_tokens = block_tokens or line.block_size or BLOCK_TOKENS
        _check(line, block_tokens, lines, number)
        time_ns = None if line.timestamp is None else round(line.timestamp * scale)
        before_ns = last_ns if line.session_id is None else sessions.last_ns(line.session_id)
        if time_ns is not None and time_ns < before_ns:
            when = f"from {before_ns / scale:g} to {line.timestamp:g} {time_unit}"
            raise lines.fault(f"time goes backwards, {when}; sort the file by timestamp", number, "timestamp")
        last_ns = last_ns if time_ns is None else max(last_ns, time_ns)
        delay_ns = None if line.delay is None else round(line.delay * scale)
        if (delay_ns or 0) > MAX_NS:
            raise lines.fault(f"{line.delay:g} {time_unit} is beyond the clock of a trace", number, "delay")
        arrival_ns = sessions.add(line.session_id, time_ns, delay_ns, line.hash_ids)
        if arrival_ns > MAX_NS:
            why = f"{arrival_ns / scale:g} {time_unit} is beyond the clock of a trace; another time unit? (--time-unit)"
            raise lines.fault(why, number, "timestamp")
        times.append(arrival_ns)
        inputs.append(line.input_length)
        outputs.append(line.output_length or 0)
        unanswered += line.output_length is None
        numbers.append(number)
        chains.append(array("q", line.hash_ids or []))
    if not times:
        raise TraceError("holds no request", path=path)
    answers, block_tokens = column(outputs), block_tokens or BLOCK_TOKENS
    prompts, wrong = sessions.whole(column(inputs), answers, chains, block_tokens)
    if wrong != NONE:
        why = f"its session has more than {MAX_TOKENS} tokens by then"
        raise lines.fault(why, numbers[wrong], "input_length")
    order = np.argsort(column(times), kind="stable")
    arrivals = column(times)[order]
    offsets, all_ids = flat(chains, order)
    facts = {"time_unit": time_unit, "block_references": len(all_ids)} | sessions.facts()
    origin = origin_of("mooncake", path, lines.sha256, len(times), block_tokens, **facts)
    notes = (*sessions.notes(), *_notes(arrivals, time_unit, unanswered), *unused_notes(lines.fields, _Line))
    texts = (prompts[order], answers[order], offsets, all_ids)
    more = sessions.columns(order, arrivals[0])
    return Requests(arrivals - arrivals[0], *texts, block_tokens, origin, notes, **more)


def _check(line: _Line, block_tokens: int, lines: JsonLines[_Line], number: int) -> None:
    if line.block_size not in (None, block_tokens):
        raise lines.fault(f"{line.block_size}, but blocks are of {block_tokens} tokens", number, "block_size")
    if line.timestamp is None and line.session_id is None:
        raise lines.fault("missing required field `timestamp`, and no session_id", number, None)
    if line.hash_ids is None:
        if line.session_id is not None:
            return
        raise lines.fault("missing required field `hash_ids`, and no session_id", number, None)
    wanted = -(-line.input_length // block_tokens)
    if len(line.hash_ids) != wanted:
        raise lines.misfit(len(line.hash_ids), line.input_length, block_tokens, wanted, number)
    if len(set(line.hash_ids)) != wanted:
        raise lines.fault("an id appears twice, but an id names one whole prefix", number, "hash_ids")


def _notes(arrivals: Ints, time_unit: str, unanswered: int) -> tuple[str, ...]:
    notes = [f"{unanswered} rows have no output_length: it is 0, and nothing is decoded"] if unanswered else []
    span_s = (arrivals[-1] - arrivals[0]) / 1e9
    if span_s and len(arrivals) / span_s > _SUSPICIOUS_PER_S:
        other = next(unit for unit in TIME_UNITS_NS if unit != time_unit)
        notes.append(
            f"timestamps were read as {time_unit}, which makes {len(arrivals) / span_s:,.0f} requests a second: "
            f"if they are in {other}, use --time-unit {other}"
        )
    return tuple(notes)
