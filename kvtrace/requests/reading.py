"""What several sources share: JSONL files as typed rows, prefix chains from block ids, requests gathered from a log.

Whatever a source's ids stand for, ours stand for whole prefixes. Some sources hash each block together with all before
it, some hash its content alone. The simulation needs the former, so ids that are seen behind different prefixes are
renamed by the prefix they end.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from kvtrace.core.errors import TraceError, need_file
from kvtrace.core.files import decode_json
from kvtrace.requests.requests import MAX_NS, NONE, Ints, Requests, Waits, column, dense, origin_of

T = TypeVar("T")

NAMED_LINES = 1000
_NAMES = msgspec.json.Decoder(dict[str, msgspec.Raw])


class JsonLines(Generic[T]):
    """The lines of one file as `T`; `sha256` is of all that was read so far."""

    def __init__(self, path: Path, kind: type[T], *, name_fields: bool = False) -> None:
        """Read `path`, a `kind` (a msgspec struct) a line; blank lines are skipped.

        With `name_fields`, `fields` are the names that the first thousand lines use, those that no `T` has included.
        """
        need_file(path)
        self.path = path
        self._decoder = msgspec.json.Decoder(kind)
        self._digest = hashlib.sha256()
        self.fields: set[str] = set()
        self._named_lines = NAMED_LINES if name_fields else 0

    @property
    def sha256(self) -> str:
        """The SHA-256 of the lines read so far, in hexadecimal."""
        return self._digest.hexdigest()

    def fault(self, message: str, number: int, column: str | None) -> TraceError:
        """Return a TraceError about the field `column` of line `number`."""
        return TraceError(message, path=self.path, row=number, column=column)

    def check_ids(self, ids: int, tokens: int, block_tokens: int, number: int, *, may_lack_last: bool = True) -> None:
        """Raise TraceError for line `number` unless so many `ids` are of its `tokens`, a partial last block aside."""
        wanted = -(-tokens // block_tokens)
        if ids != wanted and not (may_lack_last and ids == tokens // block_tokens):
            needs = f"{ids} ids, but {tokens} input tokens in blocks of {block_tokens} need {wanted}"
            raise self.fault(f"{needs}; another block size? (--block-tokens)", number, "hash_ids")

    def __iter__(self) -> Iterator[tuple[int, T]]:
        """Yield each line and its number, from 1; TraceError for one that is no `T`."""
        with self.path.open("rb") as file:
            for number, text in enumerate(file, 1):
                self._digest.update(text)
                if text.strip():
                    decoded = decode_json(text, self._decoder, self.path, row=number)
                    if number <= self._named_lines:
                        names = decode_json(text, _NAMES, self.path, row=number)
                        self.fields.update(names)
                    yield number, decoded


def unused_notes(fields: set[str], used: type[msgspec.Struct]) -> list[str]:
    """Return the note that names the `fields` of a file's rows that `used` has not; nothing if it has all."""
    left = sorted(fields.difference(used.__struct_fields__))
    return [f"fields of the file that are not used: {', '.join(left)}"] if left else []


def flat(chains: list[array[int]], order: Ints) -> tuple[Ints, Ints]:
    """Return the offsets and the ids of `chains`, by `order`."""
    lengths = np.array([len(chain) for chain in chains], dtype=np.int64)[order]
    ids = array("q")
    for row in order.tolist():
        ids.extend(chains[row])
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]), column(ids)


_START = -1


def prefix_chains(ids: Ints, offsets: Ints) -> tuple[Ints, int]:
    """Return `ids` such that an equal id means an equal prefix, and how many ids had several prefixes.

    Request n has `ids[offsets[n]:offsets[n + 1]]`. If every id always follows the same id, they are prefix
    chains already and are returned as they are.
    """
    before = np.empty_like(ids)
    before[1:] = ids[:-1]
    before[offsets[:-1][np.diff(offsets) > 0]] = _START
    order = np.lexsort((before, ids))
    sorted_ids, sorted_before = ids[order], before[order]
    differs = (sorted_ids[1:] == sorted_ids[:-1]) & (sorted_before[1:] != sorted_before[:-1])
    ambiguous = len(np.unique(sorted_ids[1:][differs]))
    return (ids, 0) if ambiguous == 0 else (_renamed(ids, offsets), ambiguous)


def backwards_notes(times: int) -> list[str]:
    """Return what is to be said of a file whose times go back so often; nothing of none."""
    return [f"times went backwards {times} times: the requests were sorted by arrival"] if times else []


def _renamed(ids: Ints, offsets: Ints) -> Ints:
    """Name each block by (name of the prefix before it, its id), place by place through all prompts at once."""
    numbers, distinct = dense(ids)
    names = np.empty_like(ids)
    lengths = np.diff(offsets)
    longest_first = np.argsort(-lengths, kind="stable")
    ordered_lengths = lengths[longest_first]
    starts = offsets[:-1][longest_first]
    used = 0
    prefix = np.full(len(lengths), _START, dtype=np.int64)
    for place in range(int(ordered_lengths[0])):
        alive = int(np.searchsorted(-ordered_lengths, -place, side="left"))
        at = starts[:alive] + place
        # A prefix number is below the count of blocks, so the pair fits 64 bits while their product does.
        found, count = dense((prefix[:alive] + 1) * distinct + numbers[at])
        prefix[:alive] = names[at] = found + used
        used += count
    return names


class Gathered:
    """Requests in the order in which an engine's log has them, made into columns in order of arrival.

    Engines name blocks by hashes of any length, of bytes or text, and log times of a wall clock.
    """

    def __init__(self, *, has_numbers: bool = False) -> None:
        """Start without any; with `has_numbers` blocks are named by numbers, which stay."""
        self._times, self._inputs, self._outputs, self._sessions = (array("q") for _ in range(4))
        self._answered, self._turns, self._has_numbers = array("q"), array("q"), has_numbers
        self._chains: list[array[int]] = []
        self._ids: dict[Hashable, int] = {}
        self._names: dict[Hashable, int] = {}

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._times)

    def add(
        self,
        time_ns: int,
        input_tokens: int,
        output_tokens: int,
        chain: Iterable[Hashable] = (),
        session: Hashable | None = None,
        answered_ns: int | None = None,
        turn: int = NONE,
    ) -> None:
        """Append a request that arrived at `time_ns` of any clock, with the names of its prompt's blocks.

        Its answer ended at `answered_ns`, if the log says when; `turn` is said of all requests or of none.
        """
        self._times.append(time_ns)
        self._answered.append(time_ns if answered_ns is None else max(time_ns, min(answered_ns, 2**63 - 1)))
        self._inputs.append(input_tokens)
        self._outputs.append(output_tokens)
        numbers: Any = chain if self._has_numbers else [self._ids.setdefault(name, len(self._ids)) for name in chain]
        self._chains.append(array("q", numbers))
        self._turns.append(turn)
        self._sessions.append(NONE if session is None else self._names.setdefault(session, len(self._names)))

    def requests(
        self, kind: str, path: Path, sha256: str, block_tokens: int, notes: Iterable[str] = (), **facts: Any
    ) -> Requests:
        """Return the requests in order of arrival, from 0 ns on; turns that were not said are numbered in that order.

        TraceError if there is none, or they span more than a trace's clock holds.
        """
        if not self._times:
            raise TraceError("holds no request", path=path)
        times = column(self._times)
        order = np.argsort(times, kind="stable")
        arrivals = times[order]
        if arrivals[-1] - arrivals[0] > MAX_NS:
            raise TraceError("its times span more than the clock of a trace holds", path=path)
        inputs, outputs = column(self._inputs)[order], column(self._outputs)[order]
        offsets, ids = flat(self._chains, order)
        ids, ambiguous = prefix_chains(ids, offsets) if len(ids) else (ids, 0)
        said = list(notes)
        if block_tokens:
            unnamed = int(np.maximum(inputs - np.diff(offsets) * block_tokens, 0).sum())
            facts |= {"block_references": len(ids), "rechained_ids": ambiguous, "unnamed_tokens": unnamed}
            if ambiguous:
                said.append(f"{ambiguous} block ids stand behind more than one prefix, and were renamed by it")
            if unnamed:
                said.append(f"{unnamed} tokens at the ends of prompts have no block id and are never reused")
        place: dict[str, Any] = {}
        answered = column(self._answered)[order]
        if (answered != arrivals).any():
            place["answered_ns"] = np.minimum(answered - arrivals[0], MAX_NS)
        if self._names:
            sessions = column(self._sessions)[order]
            known = np.flatnonzero(sessions != NONE)
            sessions[known] = dense(sessions[known])[0]
            turns = column(self._turns)[order]
            place |= {"session_id": sessions, "turn": turns_of(sessions) if (turns == NONE).all() else turns}
            facts.setdefault("conversations", len(self._names))
        origin = origin_of(kind, path, sha256, len(arrivals), block_tokens, **facts)
        tokens = (inputs, outputs, offsets, ids)
        return Requests(arrivals - arrivals[0], *tokens, block_tokens, origin, tuple(said), **place)

    def in_order(self, waits: Waits) -> Waits:
        """Return `waits` between requests as they were appended as those between the same in order of arrival."""
        return waits.kept(np.argsort(column(self._times), kind="stable"), since_ns=min(self._times))


def turns_of(sessions: Ints) -> Ints:
    """Return how many earlier rows each row's session has; NONE for a row without one."""
    turns = np.full(len(sessions), NONE, dtype=np.int64)
    known = np.flatnonzero(sessions != NONE)
    by_session = known[np.argsort(sessions[known], kind="stable")]
    turns[by_session] = np.arange(len(known)) - np.searchsorted(sessions[by_session], sessions[by_session])
    return turns
