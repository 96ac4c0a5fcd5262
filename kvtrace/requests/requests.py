"""Requests: the columns that every source fills, which wait for which others, and what several sources share.

That is the limits, JSONL files as typed rows, prefix chains from block ids, and requests gathered from a log. Whatever
a source's ids stand for, ours stand for whole prefixes. Some sources hash each block together with all before it, some
hash its content alone. The simulation needs the former, so ids that are seen behind different prefixes are renamed by
the prefix they end.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Generic, NamedTuple, Self, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvtrace.core.errors import ConfigError, TraceError, need_file
from kvtrace.core.files import decode_json

Ints = NDArray[np.int64]
Notes = tuple[str, ...]

NONE = -1
"""Stands for null in `session_id`, `turn` and `qos`."""


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests of a file, as columns in order of arrival; the n-th row is request n.

    `block_ids[block_offsets[n]:block_offsets[n + 1]]` is the prefix chain of request n, a block of
    `block_tokens` tokens each. The last block may be partial, or the source may give ids to whole blocks only:
    then the last `input_tokens` modulo `block_tokens` tokens of a prompt have no id, and nothing can reuse them.
    A source without ids has `block_tokens` 0 and no blocks; its requests share a prefix only within a session,
    whose prompts carry their history.

    Two prompts of 20 and 40 tokens in blocks of 16, which share their first block::

        Requests(
            arrival_ns=np.array([0, 10**9]), input_tokens=np.array([20, 40]), output_tokens=np.array([8, 8]),
            block_offsets=np.array([0, 2, 5]), block_ids=np.array([0, 1, 0, 2, 3]), block_tokens=16,
            origin={"kind": "example"}, notes=(),
        )
    """

    arrival_ns: Ints
    input_tokens: Ints
    output_tokens: Ints
    block_offsets: Ints
    block_ids: Ints
    block_tokens: int
    origin: dict[str, Any]
    """What the metadata says of the source: kind, file name, SHA-256, block_tokens, counts."""
    notes: Notes
    session_id: Ints | None = None
    """Dense conversation numbers; None if the source has none, NONE for a request without."""
    turn: Ints | None = None
    """Which turn of its conversation each request is, from 0; None or NONE likewise."""
    qos: Ints | None = None
    """The service class asked for, a code of the requests table's closed set; None or NONE likewise."""
    kind: Ints | None = None
    """The kind of user, a code of the requests table's closed set; None if all are `trace`."""
    answered_ns: Ints | None = None
    """When each answer ended, as recorded, for the turn after it to follow; the arrival where the source does not say.
    None if it never does."""
    waits: Waits | None = None
    """Which requests follow which, where the source says; None: each the one before it of its session."""
    pause: str = ""
    """What the source takes the time between an answer and the turn after it from, for the notes; empty: from its
    recorded times."""
    untimed: str = ""
    """The one of `notes` that says how the arrivals of turns were made up, if the file has none: they only follow."""

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.arrival_ns)

    def check_shared(self) -> None:
        """Raise ConfigError if nothing says which prompts share a prefix: hits could only be assumed to be none."""
        if not self.block_tokens and self.session_id is None and self.waits is None:
            raise ConfigError(
                f"{self.origin.get('kind', 'the source')}: it does not say which prompts share a prefix (no block ids, "
                "no sessions), so hits cannot be known; name a source that does, such as mooncake, bailian or agentic, "
                "or leave FILE out for synthetic users"
            )


MAX_TOKENS: Final = 2**31 - 1
# About 73 years: what is computed from times still fits 64 bits.
MAX_NS: Final = 2**61
# Chunks smaller than a block are numbered within it, and that product must fit 64 bits.
MAX_BLOCK_ID: Final = 2**52
_DIGEST_BYTES = 1 << 20
_START_BYTES = 1 << 16
_CLOCK = re.compile(r"\d{4}-\d\d-\d\d([T ][0-9:.]+)?")

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]
BlockId = Annotated[int, msgspec.Meta(ge=0, le=MAX_BLOCK_ID)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=2**31)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=2**43)]


def origin_of(kind: str, path: Path, sha256: str, requests: int, block_tokens: int, **facts: Any) -> dict[str, Any]:
    """Return what the metadata records of a source: the fields that every source has, then its own `facts`."""
    base = {"kind": kind, "file": path.name, "sha256": sha256, "requests": requests, "block_tokens": block_tokens}
    return base | facts


def without_blocks(
    arrival_ns: Ints,
    input_tokens: Ints,
    output_tokens: Ints,
    origin: dict[str, Any],
    notes: tuple[str, ...],
    **more: Any,
) -> Requests:
    """Return the requests of a source without block ids; `more` are session_id, turn, qos and kind, if it has them."""
    offsets, ids = np.zeros(len(arrival_ns) + 1, dtype=np.int64), np.zeros(0, dtype=np.int64)
    return Requests(arrival_ns, input_tokens, output_tokens, offsets, ids, 0, origin, notes, **more)


def column(values: array[int]) -> Ints:
    """Return the array.array("q") `values` as int64, without a copy."""
    return np.frombuffer(values, dtype=np.int64) if values else np.zeros(0, dtype=np.int64)


def dense(values: Ints) -> tuple[Ints, int]:
    """Return `values` renumbered from 0 by first appearance, and how many are distinct."""
    distinct, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    number = np.empty(len(distinct), dtype=np.int64)
    number[np.argsort(first, kind="stable")] = np.arange(len(distinct))
    return number[inverse], len(distinct)


def runs_of(values: Ints, starts: Ints, lengths: Ints) -> tuple[Ints, Ints]:
    """Return the runs of `values` of these `lengths` from `starts` on, one after the other: their offsets, and they."""
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
    return offsets, values[np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)]


def sha256_of(*paths: Path) -> str:
    """Return the SHA-256 of the bytes of `paths`, one after the other, in hexadecimal."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while data := file.read(_DIGEST_BYTES):
                digest.update(data)
    return digest.hexdigest()


BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Of UTF-8, which some editors write first."""


@dataclass(frozen=True, slots=True)
class Start:
    """The first 64 KiB of a file, from which a source recognises its format; no byte order mark, no leading blanks."""

    path: Path
    text: bytes

    @property
    def line(self) -> bytes:
        """The first line."""
        return self.text.split(b"\n", 1)[0]

    def is_json_with(self, *names: str) -> bool:
        """Return whether the first line is a JSON object that holds all of `names`, quoted."""
        return self.text.startswith(b"{") and all(f'"{name}"'.encode() in self.line for name in names)

    @property
    def columns(self) -> set[str]:
        """The column names, if the first line is the header of a CSV."""
        return {name.strip() for name in self.line.decode(errors="replace").split(",")}


def start_of(path: Path) -> Start:
    """Return the start of the file at `path`."""
    with path.open("rb") as file:
        return Start(path, file.read(_START_BYTES).removeprefix(BYTE_ORDER_MARK).lstrip())


@dataclass(frozen=True, slots=True)
class Waits:
    """Requests that come after others: the k-th wait is of request `row[k]` for `before[k]`, which has a lower number.

    A request with several waits comes when the last of them is over (a join), and not before its `not_before_ns`.
    One without any comes at its recorded time.
    """

    row: Ints
    before: Ints
    delay_ns: Ints
    """How long after the end of the answer to `before`, or after its start."""
    is_of_start: NDArray[np.bool_]
    """Whether the wait is for `before` to start, not for its answer to end."""
    not_before_ns: Ints
    """[requests]"""

    @classmethod
    def of(cls, requests: int, waits: Iterable[tuple[int, int, int, bool]], not_before_ns: Ints | None = None) -> Self:
        """Return the waits of so many `requests` from tuples of (row, before, delay_ns, is_of_start)."""
        table = np.array([tuple(map(int, wait)) for wait in waits], dtype=np.int64).reshape(-1, 4)
        least = np.zeros(requests, dtype=np.int64) if not_before_ns is None else not_before_ns
        return cls(table[:, 0], table[:, 1], table[:, 2], table[:, 3].astype(bool), least)

    def __len__(self) -> int:
        """Return how many waits there are."""
        return len(self.row)

    @property
    def followers(self) -> int:
        """How many requests wait for another."""
        return len(np.unique(self.row))

    def kept(self, rows: Ints, since_ns: int = 0) -> Self:
        """Return what is left with the requests `rows` alone, in that order, on a clock that starts at `since_ns`.

        A wait for a request that is not among them is dropped.
        """
        place = np.full(len(self.not_before_ns), -1, dtype=np.int64)
        place[rows] = np.arange(len(rows))
        least = np.maximum(0, self.not_before_ns[rows] - since_ns)
        which = np.flatnonzero((place[self.row] >= 0) & (place[self.before] >= 0))
        return self._chosen(which, place[self.row[which]], place[self.before[which]], least)

    def repeated(self, times: int, period_ns: int) -> Self:
        """Return the waits of the same requests so many `times` over, each time `period_ns` later."""
        count, which = len(self.not_before_ns), np.tile(np.arange(len(self)), times)
        shift = np.repeat(np.arange(times), len(self)) * count
        least = np.tile(self.not_before_ns, times) + np.repeat(np.arange(times), count) * period_ns
        return self._chosen(which, self.row[which] + shift, self.before[which] + shift, least)

    def scaled(self, factor: float) -> Self:
        """Return the waits with all times multiplied."""
        delays, least = (np.rint(times * factor).astype(np.int64) for times in (self.delay_ns, self.not_before_ns))
        return replace(self, delay_ns=delays, not_before_ns=least)

    def _chosen(self, which: Ints, row: Ints, before: Ints, least: Ints) -> Self:
        """Return the waits `which`, now between the requests `row` and `before`."""
        times = self.delay_ns[which], self.is_of_start[which]
        return replace(self, row=row, before=before, delay_ns=times[0], is_of_start=times[1], not_before_ns=least)


class SourceFormat(NamedTuple):
    """One format among several that a module reads; a module of one format has these as functions."""

    read: Callable[..., Requests]
    is_own: Callable[[Start], bool]


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
            for number, line in enumerate(file, 1):
                self._digest.update(line)
                text = line if number > 1 else line.removeprefix(BYTE_ORDER_MARK)
                if text.strip():
                    decoded = decode_json(text, self._decoder, self.path, row=number)
                    if number <= self._named_lines:
                        names = decode_json(text, _NAMES, self.path, row=number)
                        self.fields.update(names)
                    yield number, decoded


def wall_ns(text: str, lines: JsonLines[Any], number: int, column: str) -> int:
    """Return the ns since 1970 of the ISO time `text`, without zone or of UTC; TraceError, placed, if it is none."""
    plain = text.removesuffix("Z").removesuffix("+00:00")
    try:
        # NumPy would take another zone, and warn; and "NaT" or nothing as a time.
        return int(np.datetime64(plain if _CLOCK.fullmatch(plain) else "none", "ns").astype(np.int64))
    except (ValueError, OverflowError):
        raise lines.fault(f"{text!r} is no time", number, column) from None


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
