"""Requests from the KV events of a live engine: who stored which blocks behind which prefix.

The engine says what it stored, not what was asked. A run of stores, each behind the block that the one before ended in,
is taken as one request: stores of several blocks as its prompt, computed chunk by chunk, stores of a single block after
that as its answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kvtrace.core.errors import TraceError
from kvtrace.core.schema import EVENTS, enum_code
from kvtrace.core.tables import open_table
from kvtrace.core.units import NS_PER_S
from kvtrace.requests.engines.gather import Gathered
from kvtrace.requests.requests import Requests, Start, sha256_of

MOST_PAUSE_NS: Final = 2 * NS_PER_S
"""A store this long after the one before it is another request's: the next turn of a conversation."""
_STORED = enum_code(EVENTS, "event", "stored")


@dataclass(slots=True)
class _Asked:
    """One request so far."""

    first_ns: int
    last_ns: int
    prompt: list[int]
    session: str | None
    answer_blocks: int = 0


@dataclass(slots=True)
class _Stores:
    """The stores of one file, in order."""

    asked: list[_Asked] = field(default_factory=list)
    sizes: set[int] = field(default_factory=set)
    unknown_parents: int = 0
    not_used: int = 0
    _before: dict[int, int | None] = field(default_factory=dict)
    _open: dict[int, _Asked] = field(default_factory=dict)
    """By the last block of each request, its request."""

    def enter(self, row: dict[str, Any]) -> None:
        """Enter an event, a row of the table."""
        ids, parent, now = row["block_ids"], row["parent_id"], row["ts_ns"]
        if row["medium"] not in (None, "GPU") or row["group"] not in (None, 0) or not ids:
            self.not_used += 1
            return
        self.sizes.add(row["block_tokens"])
        asked = self._open.pop(parent, None)
        if asked is None or now - asked.last_ns > MOST_PAUSE_NS or asked.session != row["session"]:
            prefix = self._prefix(parent)
            asked = _Asked(now, now, [*prefix, *ids], row["session"])
            self.asked.append(asked)
        elif len(ids) == 1:
            asked.answer_blocks += 1
        else:
            asked.prompt += ids
        asked.last_ns = now
        for block in ids:
            self._before[block] = parent
            parent = block
        self._open[parent] = asked

    def _prefix(self, block: int | None) -> list[int]:
        """Return the blocks up to and including `block`, as far as they were seen stored."""
        found: list[int] = []
        seen = set[int]()
        while block is not None and block not in seen:
            found.append(block)
            seen.add(block)
            if block not in self._before:
                self.unknown_parents += 1
                break
            block = self._before[block]
        return found[::-1]


def is_own(start: Start) -> bool:
    """Return whether the file is an events table."""
    if not start.path.name.endswith((".parquet", ".csv.zst")):
        return False
    try:
        open_table(start.path, EVENTS)
    except TraceError:
        return False
    return True


def read(path: Path) -> Requests:
    """Return the requests that the events table at `path` lets one know of.

    Raises:
        TraceError: the file is no events table, or its blocks are of several sizes.

    """
    reader = open_table(path, EVENTS)
    stores = _Stores()
    for batch in reader.batches():
        events = batch.column("event").indices.to_pylist()
        for row, event in zip(batch.to_pylist(), events, strict=True):
            if event == _STORED:
                stores.enter(row)
    if not stores.asked:
        raise TraceError("holds no stored block, and so no request", path=path)
    if len(stores.sizes) != 1:
        raise TraceError(f"blocks of {sorted(stores.sizes)} tokens: a file may hold one size", path=path)
    block_tokens = stores.sizes.pop()
    found = Gathered()
    for asked in stores.asked:
        tokens = len(asked.prompt) * block_tokens, asked.answer_blocks * block_tokens
        found.add(asked.first_ns, *tokens, asked.prompt, asked.session, answered_ns=asked.last_ns)
    how = "a request arrives when its first block is stored, prompts and answers count whole blocks only"
    notes = [
        *reader.meta.notes,
        f"the engine says what it stored: {how}, and which stores are a prompt's and which an answer's is estimated",
        "a prompt wholly in the GPU's cache stored nothing and is not here, unless the engine reported in full",
    ]
    if stores.unknown_parents:
        notes.append(f"{stores.unknown_parents} prompts follow a block that was not seen stored: they begin with it")
    facts = {"unknown_parents": stores.unknown_parents, "stores_not_used": stores.not_used}
    return found.requests("kv-events", path, sha256_of(path), block_tokens, notes, **facts)
