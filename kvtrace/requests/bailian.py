"""Qwen-Bailian JSONL request traces (Alibaba, ATC'25): conversations by parent links, and 16-token block ids."""

from __future__ import annotations

from array import array
from collections import Counter
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.units import NS_PER_S
from kvtrace.requests.chains import prefix_chains, unnamed_notes
from kvtrace.requests.jsonlines import JsonLines
from kvtrace.requests.requests import NONE, BlockId, Count, Ints, Requests, Seconds, Start, column, origin_of
from kvtrace.requests.turns.waits import Waits

BLOCK_TOKENS = 16
ROOT = -1
TYPES = ("text", "search", "image", "file", "thinking")


class _Line(msgspec.Struct):
    chat_id: int
    timestamp: Seconds
    input_length: Count
    output_length: Count
    hash_ids: list[BlockId]
    parent_chat_id: int = ROOT
    type: str = "text"
    turn: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] = 1


class _Conversations:
    """Which conversation each chat belongs to: that of its parent, or one of its own."""

    def __init__(self) -> None:
        self.count = self.orphans = 0
        self._of: dict[int, int] = {}
        self._row: dict[int, int] = {}
        self.after = array("q")
        """[requests]: the row of each one's parent, or NONE."""

    def enter(self, line: _Line, path: Path, number: int) -> int:
        """Return the conversation of `line`; TraceError if its chat was there before."""
        if line.chat_id in self._of:
            raise TraceError(f"chat {line.chat_id} appears twice", path=path, row=number, column="chat_id")
        session = self._of.get(line.parent_chat_id) if line.parent_chat_id != ROOT else None
        if session is None:
            self.orphans += line.parent_chat_id != ROOT
            session = self.count
            self.count += 1
        is_root = line.parent_chat_id == ROOT
        self.after.append(NONE if is_root else self._row.get(line.parent_chat_id, NONE))
        self._row[line.chat_id] = len(self._row)
        self._of[line.chat_id] = session
        return session

    def waits(self, arrival_ns: Ints) -> Waits:
        """Return that each chat follows its parent, by the time from the one arrival to the other."""
        row, before = np.arange(len(self.after)), column(self.after)
        row, before = row[before != NONE], before[before != NONE]
        least, of_start = np.zeros(len(arrival_ns), dtype=np.int64), np.zeros(len(row), dtype=bool)
        return Waits(row, before, arrival_ns[row] - arrival_ns[before], of_start, least)


def is_own(start: Start) -> bool:
    """Return whether the file is a Qwen-Bailian trace: its first line is a request with a chat_id."""
    names = (b'"timestamp"', b'"hash_ids"', b'"chat_id"')
    return start.text.startswith(b"{") and all(name in start.line for name in names)


def read(path: Path, *, block_tokens: int = BLOCK_TOKENS) -> Requests:
    """Return the requests of the Qwen-Bailian JSONL file at `path`; its times are seconds.

    A conversation is a tree of chats by `parent_chat_id`; turns are counted from 0, as the file's `turn` less 1.
    Prompts have ids for all their blocks, or for whole blocks only.

    Raises:
        TraceError: a line is not such an object, its ids do not fit its length, a chat is there twice, or time
            goes backwards.

    """
    if block_tokens <= 0:
        raise ConfigError(f"block tokens(={block_tokens}) must be > 0")
    lines = JsonLines(path, _Line)
    times, inputs, outputs, sessions, turns = (array("q") for _ in range(5))
    offsets, ids = array("q", [0]), array("q")
    conversations, types = _Conversations(), Counter[str]()
    for number, line in lines:
        time_ns = round(line.timestamp * NS_PER_S)
        if times and time_ns < times[-1]:
            when = f"from {times[-1] / NS_PER_S:g} to {line.timestamp:g} s"
            raise lines.fault(f"time goes backwards, {when}; sort the file by timestamp", number, "timestamp")
        _check(line, block_tokens, lines, number)
        times.append(time_ns)
        inputs.append(line.input_length)
        outputs.append(line.output_length)
        sessions.append(conversations.enter(line, path, number))
        turns.append(line.turn - 1)
        types[line.type] += 1
        ids.extend(line.hash_ids)
        offsets.append(len(ids))
    if not times:
        raise TraceError("holds no request", path=path)
    arrivals, prompt_tokens, ends = column(times), column(inputs), column(offsets)
    chained, ambiguous = prefix_chains(column(ids), ends)
    unnamed = int(np.maximum(prompt_tokens - np.diff(ends) * block_tokens, 0).sum())
    facts = {
        "block_references": len(ids),
        "conversations": conversations.count,
        "orphans": conversations.orphans,
        "types": dict(sorted(types.items())),
        "rechained_ids": ambiguous,
        "unnamed_tokens": unnamed,
    }
    origin = origin_of("bailian", path, lines.sha256, len(times), block_tokens, **facts)
    tokens, notes = (prompt_tokens, column(outputs)), _notes(conversations, types, ambiguous, unnamed)
    return Requests(
        *(arrivals - arrivals[0], *tokens, ends, chained, block_tokens, origin, notes),
        session_id=column(sessions),
        turn=column(turns),
        waits=conversations.waits(arrivals),
    )


def _check(line: _Line, block_tokens: int, lines: JsonLines[_Line], number: int) -> None:
    whole, partial = divmod(line.input_length, block_tokens)
    if len(line.hash_ids) not in (whole, whole + (partial > 0)):
        raise lines.misfit(len(line.hash_ids), line.input_length, block_tokens, whole + (partial > 0), number)


def _notes(conversations: _Conversations, types: Counter[str], ambiguous: int, unnamed: int) -> tuple[str, ...]:
    notes = []
    if conversations.orphans:
        notes.append(
            f"{conversations.orphans} requests name a parent that is not before them in the file: each starts a "
            "conversation of its own here, and keeps its turn number"
        )
    unknown = [name for name in types if name not in TYPES]
    if unknown:
        notes.append(f"{sum(types[n] for n in unknown)} requests are of unknown types: {', '.join(sorted(unknown))}")
    if ambiguous:
        notes.append(
            f"{ambiguous} block ids stand behind more than one prefix, so the ids are of contents: "
            "they were renamed by the whole prefix that they end"
        )
    return (*notes, *unnamed_notes(unnamed))
