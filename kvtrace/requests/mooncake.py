"""Mooncake JSONL request traces (FAST'25 release): arrival, lengths, and the prefix chain as global block ids."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Annotated

import msgspec

from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.requests.jsonlines import JsonLines
from kvtrace.requests.requests import MAX_NS, BlockId, Count, Ints, Requests, Start, column, origin_of

BLOCK_TOKENS = 512
TIME_UNITS_NS = {"ms": 1_000_000, "s": 1_000_000_000}
# Above this many requests a second, milliseconds have most likely been taken for seconds or the reverse.
_SUSPICIOUS_PER_S = 1000.0


class _Line(msgspec.Struct):
    timestamp: Annotated[float, msgspec.Meta(ge=0, le=2**43)]
    input_length: Count
    output_length: Count
    hash_ids: list[BlockId]


def is_own(start: Start) -> bool:
    """Return whether the file is a Mooncake trace: its first line is a request without a chat_id."""
    names = (b'"timestamp"', b'"hash_ids"')
    return start.text.startswith(b"{") and all(n in start.line for n in names) and b'"chat_id"' not in start.line


def read(path: Path, *, time_unit: str = "ms", block_tokens: int = BLOCK_TOKENS) -> Requests:
    """Return the requests of the Mooncake JSONL file at `path`; times are in `time_unit`.

    The file does not say its block size: `block_tokens` does, and each line is checked against it.

    Raises:
        TraceError: a line is not such an object, its chain does not fit its length, or time goes backwards.

    """
    if time_unit not in TIME_UNITS_NS:
        raise ConfigError(f"unknown time unit {time_unit!r}; use {' or '.join(TIME_UNITS_NS)}")
    if block_tokens <= 0:
        raise ConfigError(f"block tokens(={block_tokens}) must be > 0")
    lines = JsonLines(path, _Line)
    times, inputs, outputs, offsets, ids = array("q"), array("q"), array("q"), array("q", [0]), array("q")
    scale = TIME_UNITS_NS[time_unit]
    for number, line in lines:
        _check(line, block_tokens, lines, number)
        time_ns = round(line.timestamp * scale)
        if time_ns > MAX_NS:
            why = f"{line.timestamp:g} {time_unit} is beyond the clock of a trace; another time unit? (--time-unit)"
            raise lines.fault(why, number, "timestamp")
        if times and time_ns < times[-1]:
            when = f"from {times[-1] / scale:g} to {line.timestamp:g} {time_unit}"
            raise lines.fault(f"time goes backwards, {when}; sort the file by timestamp", number, "timestamp")
        times.append(time_ns)
        inputs.append(line.input_length)
        outputs.append(line.output_length)
        ids.extend(line.hash_ids)
        offsets.append(len(ids))
    if not times:
        raise TraceError("holds no request", path=path)
    facts = {"time_unit": time_unit, "block_references": len(ids)}
    origin = origin_of("mooncake", path, lines.sha256, len(times), block_tokens, **facts)
    arrivals = column(times)
    prompts, chains = (column(inputs), column(outputs)), (column(offsets), column(ids))
    return Requests(arrivals - arrivals[0], *prompts, *chains, block_tokens, origin, _notes(arrivals, time_unit))


def _check(line: _Line, block_tokens: int, lines: JsonLines[_Line], number: int) -> None:
    wanted = -(-line.input_length // block_tokens)
    if len(line.hash_ids) != wanted:
        raise lines.misfit(len(line.hash_ids), line.input_length, block_tokens, wanted, number)
    if len(set(line.hash_ids)) != wanted:
        raise lines.fault("an id appears twice, but an id names one whole prefix", number, "hash_ids")


def _notes(arrivals: Ints, time_unit: str) -> tuple[str, ...]:
    notes = ["the source has no sessions or turns: they are null, and reuse comes from block ids alone"]
    span_s = (arrivals[-1] - arrivals[0]) / 1e9
    if span_s and len(arrivals) / span_s > _SUSPICIOUS_PER_S:
        other = next(unit for unit in TIME_UNITS_NS if unit != time_unit)
        notes.append(
            f"timestamps were read as {time_unit}, which makes {len(arrivals) / span_s:,.0f} requests a second: "
            f"if they are in {other}, use --time-unit {other}"
        )
    return tuple(notes)
