"""Requests.

The columns that every source fills, who waits for whom, what several sources share, what reshapes
them.

Shared are the limits, JSONL files as typed rows, prefix chains from block ids, and requests
gathered from a log. Whatever a source's ids stand for, ours stand for whole prefixes. Some sources
hash each block together with all before it, some hash its content alone. The simulation needs the
former, so ids that are seen behind different prefixes are renamed by the prefix they end.

Of any source times are scaled, requests repeated and superposed, prompts limited, arrivals
jittered, each recorded in the notes. A turn that follows comes a pause after the simulated answer
before it, instead of at its recorded time.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Generic, NamedTuple, Self, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvtrace.core import pa, pc, pl
from kvtrace.core.errors import ConfigError, TraceError, need_file, refuse
from kvtrace.core.files import decode_json
from kvtrace.core.json_types import JsonObject
from kvtrace.core.notebook import html_table
from kvtrace.core.schema import REQUESTS, RequestKind, arrow_schema, batch_of, enum_code
from kvtrace.core.text import as_utf8, utf8_lines
from kvtrace.core.units import NS_PER_S, format_duration

Ints = NDArray[np.int64]

NONE = -1
"""Stands for null in `session_id`, `turn` and `qos`."""


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests of a file, as columns in order of arrival; the n-th row is request n.

    `block_ids[block_offsets[n]:block_offsets[n + 1]]` is the prefix chain of request n, a block of
    `block_tokens` tokens each. The last block may be partial, or the source may give ids to whole
    blocks only: then the last `input_tokens` modulo `block_tokens` tokens of a prompt have no id,
    and nothing can reuse them. A source without ids has `block_tokens` 0 and no blocks; its
    requests share a prefix only within a session, whose prompts carry their history.

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
    origin: JsonObject
    """What the metadata says of the source: kind, file name, SHA-256, block_tokens, counts."""
    notes: tuple[str, ...]
    session_id: Ints | None = None
    """Dense conversation numbers; None if the source has none, NONE for a request without."""
    turn: Ints | None = None
    """Which turn of its conversation each request is, from 0; None or NONE likewise."""
    qos: Ints | None = None
    """The service class asked for, a code of the requests table's closed set.

    None or NONE likewise.
    """
    kind: Ints | None = None
    """The kind of user, a code of the requests table's closed set; None if all are `trace`."""
    answered_ns: Ints | None = None
    """When each answer ended, as recorded, for the turn after it to follow.

    The arrival where the source does not say. None if it never does.
    """
    waits: Waits | None = None
    """Which requests follow which, where the source says.

    None: each the one before it of its session.
    """
    pause: str = ""
    """What the source takes the time between an answer and the turn after it from, for the notes.

    Empty: from its recorded times.
    """
    untimed: str = ""
    """The one of `notes` that says how the arrivals of turns were made up, if the file has none.

    They only follow.
    """

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.arrival_ns)

    def to_arrow(self) -> pa.Table:
        """Return the requests as an Arrow table of the columns of the requests table.

        Null where the source says nothing: session, turn, service class, block ids.
        """
        return pa.Table.from_batches(batches(self), arrow_schema(REQUESTS))

    def to_polars(self) -> pl.DataFrame:
        """Return the requests as a Polars frame, with the columns of `to_arrow`.

        >>> import kvtrace as kt, polars as pl
        >>> frame = pl.DataFrame({
        ...     "arrival_ns": [0, 10**9], "input_tokens": [600, 700], "output_tokens": [8, 8],
        ...     "block_ids": [[0], [0, 1]],
        ... })
        >>> kt.Requests.from_polars(frame, block_tokens=512).to_polars()["turn"].null_count()
        2
        """
        return pl.DataFrame(pl.from_arrow(self.to_arrow()))

    @classmethod
    def from_polars(cls, frame: pl.DataFrame, *, block_tokens: int = 0) -> Requests:
        """Make requests of a Polars frame; see `from_arrow`.

        >>> import kvtrace as kt, polars as pl
        >>> frame = pl.DataFrame(
        ...     {"arrival_ns": [0], "input_tokens": [600], "output_tokens": [8], "session_id": [0]}
        ... )
        >>> len(kt.Requests.from_polars(frame))
        1
        """
        return cls.from_arrow(frame.to_arrow(), block_tokens=block_tokens)

    @classmethod
    def from_arrow(cls, table: pa.Table, *, block_tokens: int = 0) -> Requests:
        """Make requests of an Arrow table.

        It needs the columns `arrival_ns`, `input_tokens` and `output_tokens`, integers, in order of
        arrival. `session_id` says which requests share a history. `block_ids`, lists of integers,
        are prefix chains of blocks of `block_tokens` tokens.

        Raises:
            ConfigError: if a column is missing, or block ids come without `block_tokens`.
            TraceError: if a row has a value that is not allowed.

        >>> import kvtrace as kt, pyarrow as pa
        >>> table = pa.table({"arrival_ns": [0], "input_tokens": [600], "output_tokens": [8]})
        >>> kt.Requests.from_arrow(table).input_tokens.tolist()
        [600]

        """
        return requests_of_arrow(table, block_tokens)

    def _repr_html_(self) -> str:
        """Return a summary for a notebook."""
        columns = ["requests", "span, s", "input tokens", "output tokens"]
        span_s = (self.arrival_ns[-1] - self.arrival_ns[0]) / 1e9 if len(self) else 0.0
        cells = [
            f"{len(self):,}",
            f"{span_s:,.1f}",
            f"{int(self.input_tokens.sum()):,}",
            f"{int(self.output_tokens.sum()):,}",
        ]
        return html_table(columns, [cells])

    def check_shared(self) -> None:
        """Raise ConfigError if nothing says which prompts share a prefix.

        Hits could only be assumed to be none.
        """
        if not self.block_tokens and self.session_id is None and self.waits is None:
            raise ConfigError(
                f"{self.origin.get('kind', 'the source')}: it does not say which prompts share a"
                " prefix (no block ids, no sessions), so hits cannot be known; name a source that"
                " does, such as mooncake, bailian or agentic, or leave FILE out for synthetic"
                " users"
            )


MAX_TOKENS: Final = 2**31 - 1
# About 73 years: what is computed from times still fits 64 bits.
MAX_NS: Final = 2**61
MAX_CLOCK_NS: Final = 2**63 - 1
"""The latest time, ns since 1970, that a file may name."""
# Chunks smaller than a block are numbered within it, and that product must fit 64 bits.
MAX_BLOCK_ID: Final = 2**52
_START_BYTES = 1 << 16
_CLOCK = re.compile(
    r"(?:19|20|21)\d\d-\d\d-\d\d([T ][0-9:.]+)?"
)  # 64 bits of ns go from 1678 to 2262

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]
BlockId = Annotated[int, msgspec.Meta(ge=0, le=MAX_BLOCK_ID)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=2**31)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=2**43)]


def origin_of(
    kind: str, path: Path, sha256: str, requests: int, block_tokens: int, **facts: Any
) -> JsonObject:
    """Return what the metadata records of a source.

    The fields that every source has, then its own `facts`.
    """
    base = {
        "kind": kind,
        "file": path.name,
        "sha256": sha256,
        "requests": requests,
        "block_tokens": block_tokens,
    }
    return base | facts


def without_blocks(
    arrival_ns: Ints,
    input_tokens: Ints,
    output_tokens: Ints,
    origin: JsonObject,
    notes: tuple[str, ...],
    **more: Any,
) -> Requests:
    """Return the requests of a source without block ids.

    `more` are session_id, turn, qos and kind, if it has them.
    """
    offsets, ids = np.zeros(len(arrival_ns) + 1, dtype=np.int64), np.zeros(0, dtype=np.int64)
    return Requests(arrival_ns, input_tokens, output_tokens, offsets, ids, 0, origin, notes, **more)


def column(values: array[int]) -> Ints:
    """Return the array.array("q") `values` as int64, without a copy."""
    return np.frombuffer(values, dtype=np.int64) if values else np.zeros(0, dtype=np.int64)


def dense(values: Ints) -> tuple[Ints, int]:
    """Return `values` renumbered from 0 by first appearance, and how many are distinct."""
    found = pa.array(values).dictionary_encode()
    return found.indices.to_numpy().astype(np.int64), len(found.dictionary)


def runs_of(values: Ints, starts: Ints, lengths: Ints) -> tuple[Ints, Ints]:
    """Return the runs of `values` of these `lengths` from `starts` on, one after the other.

    Their offsets, and they.
    """
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
    return offsets, values[np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)]


def sha256_of(*paths: Path) -> str:
    """Return the SHA-256 of the bytes of `paths`, one after the other, in hexadecimal."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def files_of(path: Path, pattern: str) -> list[Path]:
    """Return the file at `path`, or those that `pattern` matches in that directory, or `path` as a
    glob, by name.

    TraceError if there is none.
    """
    if path.is_dir():
        found = sorted(path.glob(pattern))
    elif not path.exists() and any(c in path.name for c in "*?["):
        found = sorted(one for one in path.parent.glob(path.name) if one.is_file())
    else:
        need_file(path)
        return [path]
    if not found:
        raise TraceError(f"no {pattern} there", path=path)
    return found


@dataclass(frozen=True, slots=True)
class Start:
    """The first 64 KiB of a file, from which a source recognises its format.

    No byte order mark, no leading blanks.
    """

    path: Path
    text: bytes

    @property
    def line(self) -> bytes:
        """The first line."""
        return self.text.split(b"\n", 1)[0]

    def has_json_with(self, *names: str) -> bool:
        """Return whether the file begins as JSON, on one line or indented, that holds `names`."""
        is_json = self.text.startswith((b"{", b"["))
        return is_json and all(f'"{name}"'.encode() in self.text for name in names)

    def is_json_with(self, *names: str) -> bool:
        """Return whether the first line is a JSON object that holds all of `names`, quoted."""
        return self.text.startswith(b"{") and all(
            f'"{name}"'.encode() in self.line for name in names
        )

    @property
    def columns(self) -> set[str]:
        """The column names, if the first line is the header of a CSV."""
        return {name.strip() for name in self.line.decode(errors="replace").split(",")}


def start_of(path: Path) -> Start:
    """Return the start of the file at `path`."""
    with path.open("rb") as file:
        return Start(path, as_utf8(file.read(_START_BYTES)).lstrip())


@dataclass(frozen=True, slots=True)
class Waits:
    """Requests that come after others.

    The k-th wait is of request `row[k]` for `before[k]`, which has a lower number.

    A request with several waits comes when the last of them is over (a join), and not before its
    `not_before_ns`. One without any comes at its recorded time.
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
    def of(
        cls,
        requests: int,
        waits: Iterable[tuple[int, int, int, bool]],
        not_before_ns: Ints | None = None,
    ) -> Self:
        """Return the waits of so many `requests` from tuples of (row, before, delay_ns,
        is_of_start).
        """
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
        """Return what is left with the requests `rows` alone, in that order, on a clock that starts
        at `since_ns`.

        A wait for a request that is not among them is dropped.
        """
        place = np.full(len(self.not_before_ns), -1, dtype=np.int64)
        place[rows] = np.arange(len(rows))
        least = np.maximum(0, self.not_before_ns[rows] - since_ns)
        which = np.flatnonzero((place[self.row] >= 0) & (place[self.before] >= 0))
        return self._chosen(which, place[self.row[which]], place[self.before[which]], least)

    def repeated(self, shifts_ns: Ints) -> Self:
        """Return the waits of the same requests once for each of `shifts_ns`, so much later."""
        count, which = len(self.not_before_ns), np.tile(np.arange(len(self)), len(shifts_ns))
        copy = np.repeat(np.arange(len(shifts_ns)), len(self)) * count
        return self._chosen(
            which,
            self.row[which] + copy,
            self.before[which] + copy,
            shifted(self.not_before_ns, shifts_ns),
        )

    def scaled(self, factor: float) -> Self:
        """Return the waits with all times multiplied."""
        delays, least = (
            np.rint(times * factor).astype(np.int64)
            for times in (self.delay_ns, self.not_before_ns)
        )
        return replace(self, delay_ns=delays, not_before_ns=least)

    def _chosen(self, which: Ints, row: Ints, before: Ints, least: Ints) -> Self:
        times = self.delay_ns[which], self.is_of_start[which]
        return replace(
            self,
            row=row,
            before=before,
            delay_ns=times[0],
            is_of_start=times[1],
            not_before_ns=least,
        )


class SourceFormat(NamedTuple):
    """One format among several that a module reads.

    A module of one format has these as functions.
    """

    read: Callable[..., Requests]
    is_own: Callable[[Start], bool]


def source(is_own: Callable[[Start], bool]) -> Callable[[Callable[..., Requests]], SourceFormat]:
    """Make a format of the function that reads it, which is called as the format is.

    `is_own` recognises its files.
    """
    return lambda read: SourceFormat(read, is_own)


T = TypeVar("T")

_NAMES = msgspec.json.Decoder(dict[str, msgspec.Raw])


class JsonLines(Generic[T]):
    """The lines of one file as `T`; `sha256` is of all that was read so far."""

    def __init__(
        self,
        path: Path,
        kind: type[T],
        *,
        name_fields: bool = False,
        may_be_indented: bool = False,
    ) -> None:
        """Read `path`, a `kind` (a msgspec struct) a line; blank lines are skipped.

        With `name_fields`, `fields` are the names that the first thousand lines use, those that no
        `T` has included. With `may_be_indented` the file may instead be one document over several
        lines, or an array of documents.
        """
        need_file(path)
        self.path = path
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind)
        self._digest = hashlib.sha256()
        self.fields: set[str] = set()
        self._named_lines = 1000 if name_fields else 0
        self._may_be_indented = may_be_indented

    @property
    def sha256(self) -> str:
        """The SHA-256 of the lines read so far, in hexadecimal."""
        with self.path.open("rb") as file:
            start = file.read(4)
        # The lines of a file with a byte order mark are not its bytes.
        is_converted = as_utf8(start) != start
        return sha256_of(self.path) if is_converted else self._digest.hexdigest()

    def fault(self, message: str, number: int, column: str | None) -> TraceError:
        """Return a TraceError about the field `column` of line `number`."""
        return TraceError(message, path=self.path, row=number, column=column)

    def check_ids(
        self, ids: int, tokens: int, block_tokens: int, number: int, *, may_lack_last: bool = True
    ) -> None:
        """Raise TraceError for line `number` unless so many `ids` are of its `tokens`, a partial
        last block aside.
        """
        wanted = -(-tokens // block_tokens)
        if ids != wanted and not (may_lack_last and ids == tokens // block_tokens):
            needs = (
                f"{ids} ids, but {tokens} input tokens in blocks of {block_tokens} need {wanted}"
            )
            raise self.fault(f"{needs}; another block size? (--block-tokens)", number, "hash_ids")

    def __iter__(self) -> Iterator[tuple[int, T]]:
        """Yield each line, decoded, and its number, from 1.

        Raises:
            TraceError: for a line that is no `T`.
        """
        if self._may_be_indented and not self._has_a_document_a_line():
            yield from self._whole_file()
            return
        for number, line in enumerate(utf8_lines(self.path), 1):
            self._digest.update(line)
            if line.strip():
                decoded = decode_json(line, self._decoder, self.path, row=number)
                if number <= self._named_lines:
                    names: dict[str, msgspec.Raw] = decode_json(line, _NAMES, self.path, row=number)
                    self.fields.update(names)
                yield number, decoded

    def _has_a_document_a_line(self) -> bool:
        """Return whether the first line that is not blank is a JSON object of its own."""
        for line in utf8_lines(self.path):
            if text := line.strip():
                try:
                    return isinstance(
                        msgspec.json.decode(text, type=msgspec.Raw), msgspec.Raw
                    ) and (text.startswith(b"{"))
                except msgspec.DecodeError:
                    return False
        return True

    def _whole_file(self) -> Iterator[tuple[int, T]]:
        """Yield the document, or the documents of the array, that the whole file is."""
        text = as_utf8(self.path.read_bytes())
        self._digest.update(text)
        if text.lstrip().startswith(b"["):
            yield from enumerate(decode_json(text, list[self._kind], self.path), 1)  # type: ignore[name-defined]
        else:
            yield 1, decode_json(text, self._decoder, self.path)


def wall_ns(text: str, lines: JsonLines[Any], number: int, column: str) -> int:
    """Return the ns since 1970 of the ISO time `text`, without zone or of UTC.

    TraceError, placed, if it is none.
    """
    plain = text.removesuffix("Z").removesuffix("+00:00")
    try:
        # NumPy would take another zone, and warn; and "NaT" or nothing as a time.
        return int(
            np.datetime64(plain if _CLOCK.fullmatch(plain) else "none", "ns").astype(np.int64)
        )
    except (ValueError, OverflowError):
        raise lines.fault(f"{text!r} is no time", number, column) from None


def counted(*counts: tuple[int, str]) -> list[str]:
    """Return a note of each of `counts` that is not 0: it begins with it."""
    return [f"{count} {what}" for count, what in counts if count]


def unused_notes(fields: set[str], used: type[msgspec.Struct]) -> list[str]:
    """Return the note that names the `fields` of a file's rows that `used` has not.

    Nothing if it has all.
    """
    left = sorted(fields.difference(used.__struct_fields__))
    return [f"fields of the file that are not used: {', '.join(left)}"] if left else []


def full_blocks(tokens: Sequence[Any], block_tokens: int) -> Iterator[Sequence[Any]]:
    """Yield the full blocks of a prompt's tokens; a block's content is its name."""
    last = len(tokens) - block_tokens
    return (tokens[start : start + block_tokens] for start in range(0, last + 1, block_tokens))


def flat(chains: list[array[int]], order: Ints) -> tuple[Ints, Ints]:
    """Return the offsets and the ids of `chains`, by `order`."""
    lengths = np.array([len(chain) for chain in chains], dtype=np.int64)[order]
    ids = array("q")
    for row in order.tolist():
        ids.extend(chains[row])
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]), column(ids)


_START = -1


def prefix_chains(ids: Ints, offsets: Ints) -> tuple[Ints, int]:
    """Return `ids` such that an equal id means an equal prefix, and how many ids had several
    prefixes.

    Request n has `ids[offsets[n]:offsets[n + 1]]`. If every id always follows the same id, they are
    prefix chains already and are returned as they are. Else each block is named by (name of the
    prefix before it, its id).
    """
    before = np.empty_like(ids)
    before[1:] = ids[:-1]
    before[offsets[:-1][np.diff(offsets) > 0]] = _START
    order = np.lexsort((before, ids))
    sorted_ids, sorted_before = ids[order], before[order]
    differs = (sorted_ids[1:] == sorted_ids[:-1]) & (sorted_before[1:] != sorted_before[:-1])
    ambiguous = len(np.unique(sorted_ids[1:][differs]))
    if not ambiguous:
        return ids, 0
    # Place by place through all prompts at once.
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
        # A prefix number is below the count of blocks, so the pair fits 64 bits while their product
        # does.
        found, count = dense((prefix[:alive] + 1) * distinct + numbers[at])
        prefix[:alive] = names[at] = found + used
        used += count
    return names, ambiguous


def backwards_notes(times: int) -> list[str]:
    """Return what is to be said of a file whose times go back so often; nothing of none."""
    return (
        [f"times went backwards {times} times: the requests were sorted by arrival"]
        if times
        else []
    )


class Gathered:
    """Requests in the order in which an engine's log has them, made into columns in order of
    arrival.

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
        """Append a request that arrived at `time_ns` of any clock, with the names of its prompt's
        blocks.

        Its answer ended at `answered_ns`, if the log says when; `turn` is said of all requests or
        of none.
        """
        self._times.append(time_ns)
        self._answered.append(
            time_ns if answered_ns is None else max(time_ns, min(answered_ns, 2**63 - 1))
        )
        self._inputs.append(input_tokens)
        self._outputs.append(output_tokens)
        numbers: Any = (
            chain
            if self._has_numbers
            else [self._ids.setdefault(name, len(self._ids)) for name in chain]
        )
        self._chains.append(array("q", numbers))
        self._turns.append(turn)
        self._sessions.append(
            NONE if session is None else self._names.setdefault(session, len(self._names))
        )

    def requests(
        self,
        kind: str,
        path: Path,
        sha256: str,
        block_tokens: int,
        notes: Iterable[str] = (),
        **facts: Any,
    ) -> Requests:
        """Return the requests in order of arrival, from 0 ns on.

        Turns that were not said are numbered in that order.

        TraceError if there is none, or they span more than a trace's clock holds.
        """
        if not self._times:
            raise TraceError("holds no request", path=path)
        times = column(self._times)
        order = np.argsort(times, kind="stable")
        arrivals = times[order]
        if int(arrivals[-1]) - int(arrivals[0]) > MAX_NS:
            raise TraceError("its times span more than the clock of a trace holds", path=path)
        inputs, outputs = column(self._inputs)[order], column(self._outputs)[order]
        offsets, ids = flat(self._chains, order)
        ids, ambiguous = prefix_chains(ids, offsets) if len(ids) else (ids, 0)
        said = list(notes)
        if block_tokens:
            unnamed = int(np.maximum(inputs - np.diff(offsets) * block_tokens, 0).sum())
            facts |= {
                "block_references": len(ids),
                "rechained_ids": ambiguous,
                "unnamed_tokens": unnamed,
            }
            said += counted(
                (
                    ambiguous,
                    "block ids occur after more than one prefix, and were renamed by prefix",
                ),
                (unnamed, "tokens at the ends of prompts have no block id and are never reused"),
            )
        place: JsonObject = {}
        answered = column(self._answered)[order]
        if (answered != arrivals).any():
            place["answered_ns"] = np.minimum(answered - arrivals[0], MAX_NS)
        if self._names:
            sessions = column(self._sessions)[order]
            known = np.flatnonzero(sessions != NONE)
            sessions[known] = dense(sessions[known])[0]
            turns = column(self._turns)[order]
            place |= {
                "session_id": sessions,
                "turn": turns_of(sessions) if (turns == NONE).all() else turns,
            }
            facts.setdefault("conversations", len(self._names))
        origin = origin_of(kind, path, sha256, len(arrivals), block_tokens, **facts)
        tokens = (inputs, outputs, offsets, ids)
        return Requests(arrivals - arrivals[0], *tokens, block_tokens, origin, tuple(said), **place)

    def in_order(self, waits: Waits) -> Waits:
        """Return `waits` between requests as they were appended as those between the same in order
        of arrival.
        """
        return waits.kept(np.argsort(column(self._times), kind="stable"), since_ns=min(self._times))


def turns_of(sessions: Ints) -> Ints:
    """Return how many earlier rows each row's session has; NONE for a row without one."""
    turns = np.full(len(sessions), NONE, dtype=np.int64)
    known = np.flatnonzero(sessions != NONE)
    by_session = known[np.argsort(sessions[known], kind="stable")]
    turns[by_session] = np.arange(len(known)) - np.searchsorted(
        sessions[by_session], sessions[by_session]
    )
    return turns


def successive(sessions: Ints | None) -> tuple[Ints, Ints]:
    """Return the rows that have one of the same session before them, and the last such row of each."""
    of = np.zeros(0, dtype=np.int64) if sessions is None else sessions
    order = np.argsort(of, kind="stable")
    order = order[of[order] != NONE]
    is_next = of[order[1:]] == of[order[:-1]]
    return order[1:][is_next], order[:-1][is_next]


MAX_REQUESTS = 2**31 - 1
SCALE_SHIFT_NS = 60 * NS_PER_S


class CycleIds(StrEnum):
    """Whether later cycles of a trace ask for the same blocks again, or for blocks of their own."""

    SAME = "same"
    DISTINCT = "distinct"


class OverLimit(StrEnum):
    """What happens to a prompt over the limit."""

    CLIP = "clip"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class Reshaping:
    """How to transform a source, in this order.

    Limit prompts, jitter, scale times, repeat, superpose, cut.
    """

    max_input_tokens: int | None = None
    over_limit: OverLimit = OverLimit.DROP
    jitter_ns: int = 0
    """Times are spread over ticks of this length."""
    time_scale: float = 1.0
    """Times are multiplied by this: 0.5 is twice as fast."""
    cycles: int = 1
    cycle_ids: CycleIds = CycleIds.DISTINCT
    scale: int = 1
    """So many copies over each other, with blocks and sessions of their own."""
    scale_common: float = 0.0
    """But for the most used prefixes, which make up at most this share of all references to blocks.
    """
    scale_shift_ns: int = SCALE_SHIFT_NS
    """Each copy but the first comes later, by up to so much."""
    max_requests: int | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for values out of range."""
        if not 1e-6 <= self.time_scale <= 1e6:  # noqa: PLR2004 - a million times faster or slower
            raise ConfigError(f"time scale(={self.time_scale:g}) must be from 0.000001 to 1000000")
        for name in ("cycles", "scale", "max_requests", "max_input_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name.replace('_', ' ')}(={value}) must be > 0")
        for name in ("jitter_ns", "scale_shift_ns"):
            if getattr(self, name) < 0:
                raise ConfigError(
                    f"{name.removesuffix('_ns').replace('_', ' ')}(={getattr(self, name)} ns) must"
                    " be >= 0"
                )
        if not 0 <= self.scale_common <= 1:
            raise ConfigError(f"scale common(={self.scale_common:g}) must be from 0 to 1")
        if self.scale == 1 and (self.scale_common or self.scale_shift_ns != SCALE_SHIFT_NS):
            raise ConfigError(
                "scale common and scale shift are for copies: add --scale, such as 64"
            )
        if self.over_limit is not OverLimit.DROP and self.max_input_tokens is None:
            raise ConfigError(
                f"--over-limit {self.over_limit} needs the limit: give --max-input-tokens, such as"
                " 8192"
            )
        if self.cycle_ids is not CycleIds.DISTINCT and self.cycles == 1:
            raise ConfigError(
                f"--cycle-ids {self.cycle_ids} is for later cycles: add --cycles, such as 2"
            )

    def as_config(self) -> JsonObject:
        """Return the fields that are not at their defaults."""
        plain = msgspec.to_builtins(Reshaping())
        return {
            name: value for name, value in msgspec.to_builtins(self).items() if value != plain[name]
        }


def reshape(requests: Requests, wanted: Reshaping, rng: np.random.Generator) -> Requests:
    """Return `requests` transformed as `wanted`, with a note for each change.

    `rng` draws jitter and shifts.
    """
    if wanted.max_input_tokens is not None:
        requests = _limit(requests, wanted.max_input_tokens, wanted.over_limit)
    if wanted.jitter_ns:
        times = requests.arrival_ns
        distinct, group = np.unique(times, return_inverse=True)
        width = np.full(len(distinct), wanted.jitter_ns, dtype=np.int64)
        width[:-1] = np.minimum(width[:-1], np.diff(distinct))
        moves = np.floor(rng.random(len(times)) * width[group]).astype(np.int64)
        # In order within each time, so that requests stay in theirs.
        moves = moves[np.lexsort((moves, group))]
        answered = None if requests.answered_ns is None else requests.answered_ns + moves
        requests = _noted(
            replace(requests, arrival_ns=times + moves, answered_ns=answered),
            f"times were spread evenly at random over ticks of {format_duration(wanted.jitter_ns)},"
            " in the same order",
        )
    if (factor := wanted.time_scale) != 1:
        if float(requests.arrival_ns[-1]) * factor > MAX_NS:
            raise ConfigError(f"time scale(={factor:g}) puts requests beyond the clock of a trace")
        times, answered, waits = (
            np.rint(requests.arrival_ns * factor),
            requests.answered_ns,
            requests.waits,
        )
        if answered is not None:
            answered = np.rint(np.clip(answered * factor, -MAX_NS, MAX_NS)).astype(np.int64)
        waits = None if waits is None else waits.scaled(factor)
        requests = replace(
            requests, arrival_ns=times.astype(np.int64), answered_ns=answered, waits=waits
        )
        requests = _noted(requests, f"times were multiplied by {factor:g}")
    if wanted.cycles > 1:
        limit = wanted.max_requests if wanted.scale == 1 else None
        requests = _repeat(requests, wanted.cycles, wanted.cycle_ids, limit)
    if wanted.scale > 1:
        requests = superpose(
            requests, wanted.scale, wanted.scale_common, wanted.scale_shift_ns, rng
        )
    if wanted.max_requests is not None and wanted.max_requests < len(requests):
        cut = f"cut after {wanted.max_requests} request{'s' * (wanted.max_requests > 1)}"
        requests = _noted(take(requests, np.arange(wanted.max_requests)), cut)
    changes = wanted.as_config()
    return replace(requests, origin={**requests.origin, "shape": changes}) if changes else requests


def take(requests: Requests, rows: Ints) -> Requests:
    """Return the requests of `rows`, in that order, with their blocks."""
    starts, ends = requests.block_offsets[rows], requests.block_offsets[rows + 1]
    offsets, ids = runs_of(requests.block_ids, starts, ends - starts)
    names = (
        "arrival_ns",
        "input_tokens",
        "output_tokens",
        "session_id",
        "turn",
        "qos",
        "kind",
        "answered_ns",
    )
    taken: JsonObject = {
        name: of[rows] for name in names if (of := getattr(requests, name)) is not None
    }
    waits = None if requests.waits is None else requests.waits.kept(rows)
    return replace(requests, block_offsets=offsets, block_ids=ids, waits=waits, **taken)


BATCH_ROWS = 1 << 16


def batches(
    requests: Requests, count: int | None = None, arrivals: tuple[Ints, Ints] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield `requests` as record batches of their table.

    The first `count`, all, or those of `arrivals`, then.
    """
    stop = len(requests if arrivals is None else arrivals[0]) if count is None else count
    names = ("arrival_ns", "session_id", "turn", "input_tokens", "output_tokens", "qos", "kind")
    requests = replace(requests, waits=None)  # which the table has not
    for start in range(0, stop, BATCH_ROWS):
        end = min(start + BATCH_ROWS, stop)
        part = take(requests, np.arange(start, end) if arrivals is None else arrivals[0][start:end])
        columns = {name: of for name in names if (of := getattr(part, name)) is not None}
        columns["request_id"] = np.arange(start, end)
        if arrivals is not None:
            columns["arrival_ns"] = arrivals[1][start:end]
        columns.setdefault(
            "kind", np.full(end - start, enum_code(REQUESTS, "kind", RequestKind.TRACE))
        )
        if part.block_tokens:
            offsets = pa.array(part.block_offsets, pa.int32())
            columns["block_ids"] = pa.ListArray.from_arrays(offsets, pa.array(part.block_ids))
        yield batch_of(REQUESTS, columns)


def _noted(requests: Requests, note: str) -> Requests:
    return replace(requests, notes=(*requests.notes, note))


def _limit(requests: Requests, limit: int, over: OverLimit) -> Requests:
    is_over = requests.input_tokens > limit
    count = int(np.count_nonzero(is_over))
    if not count:
        return requests
    if over is OverLimit.DROP:
        kept = np.flatnonzero(~is_over)
        if not len(kept):
            raise ConfigError(f"max input tokens(={limit}): every prompt is longer")
        note = (
            f"{count} prompts over {limit} tokens were dropped, which leaves gaps in their"
            " conversations"
        )
        return _noted(take(requests, kept), note)
    lengths = np.diff(requests.block_offsets)
    if requests.block_tokens:
        lengths = np.minimum(
            lengths, -(-np.minimum(requests.input_tokens, limit) // requests.block_tokens)
        )
    offsets, ids = runs_of(requests.block_ids, requests.block_offsets[:-1], lengths)
    tokens = np.minimum(requests.input_tokens, limit)
    clipped = replace(requests, input_tokens=tokens, block_offsets=offsets, block_ids=ids)
    return _noted(
        clipped, f"{count} prompts over {limit} tokens were clipped to their first {limit}"
    )


def _repeat(requests: Requests, cycles: int, cycle_ids: CycleIds, limit: int | None) -> Requests:
    """Return `requests` `cycles` times over.

    A cycle starts one mean interval after the last request before it.
    """
    n = len(requests)
    span = int(requests.arrival_ns[-1] - requests.arrival_ns[0])
    period = span + (round(span / (n - 1)) if span else NS_PER_S)
    needed = min(cycles, -(-limit // n)) if limit is not None else cycles
    if n * needed > MAX_REQUESTS or int(requests.arrival_ns[-1]) + period * needed > MAX_NS:
        raise ConfigError(f"cycles(={cycles}) of {n} requests are more than a trace can hold")
    numbers, count = requests.block_ids, 0
    if cycle_ids is CycleIds.DISTINCT and requests.block_tokens:
        numbers, count = dense(requests.block_ids)
        if count * needed > MAX_BLOCK_ID:
            raise ConfigError(
                f"cycles(={cycles}) of {count} blocks are more than a trace can number"
            )
    repeated = _copied(requests, np.arange(needed) * period, lambda cycle: numbers + cycle * count)
    blocks = f", with {cycle_ids} block ids" if requests.block_tokens else ""
    new = "; each time its conversations are new ones" if requests.session_id is not None else ""
    return _noted(
        repeated,
        f"the requests are repeated {cycles} times, {format_duration(period)} apart{blocks}{new}",
    )


def shifted(times: Ints, shifts_ns: Ints) -> Ints:
    """Return `times` once for each of `shifts_ns`, so much later, one copy after the other."""
    return (times[None, :] + shifts_ns[:, None]).reshape(-1)


_COLUMNS = ("input_tokens", "output_tokens", "turn", "qos", "kind")


def _copied(requests: Requests, shifts_ns: Ints, ids_of: Callable[[int], Ints]) -> Requests:
    """Return a copy of `requests` for each of `shifts_ns`, so much later, in order of arrival.

    `ids_of` gives a copy's block ids; its sessions are its own.
    """
    count, lengths = len(requests), np.diff(requests.block_offsets)
    times = shifted(requests.arrival_ns, shifts_ns)
    # Of equal times the earlier copy first, and within one its own order.
    order = np.argsort(times, kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths[order % count])])
    # One copy at a time, so that little more is held than what is returned.
    ids = np.empty(offsets[-1], dtype=np.int64)
    within = np.arange(len(requests.block_ids)) - np.repeat(requests.block_offsets[:-1], lengths)
    for copy in range(len(shifts_ns)):
        ids[np.repeat(offsets[place[copy * count : (copy + 1) * count]], lengths) + within] = (
            ids_of(copy)
        )
    columns = {name: of for name in _COLUMNS if (of := getattr(requests, name)) is not None}
    more: JsonObject = {name: of[order % count] for name, of in columns.items()}
    if (sessions := requests.session_id) is not None:
        numbers, conversations = dense(sessions[sessions != NONE])
        own = np.full((len(shifts_ns), count), NONE, dtype=np.int64)
        own[:, sessions != NONE] = numbers + conversations * np.arange(len(shifts_ns))[:, None]
        sessions = own.reshape(-1)[order]
    answered, waits = requests.answered_ns, requests.waits
    return replace(
        requests,
        arrival_ns=times[order],
        block_offsets=offsets,
        block_ids=ids,
        session_id=sessions,
        answered_ns=None if answered is None else shifted(answered, shifts_ns)[order],
        waits=None if waits is None else waits.repeated(shifts_ns).kept(order),
        **more,
    )


_PARTS = 10**9


def superpose(
    requests: Requests, copies: int, common: float, shift_ns: int, rng: np.random.Generator
) -> Requests:
    """Return `requests` and copies of them, `copies` in all, in order of arrival.

    Each copy but the first comes later by what `rng` draws for it, evenly up to `shift_ns`. Its
    sessions are its own, and its blocks, but for the most used ones that make up at most a share
    `common` of all references.
    """
    count, references = len(requests), len(requests.block_ids)
    if common and not requests.block_tokens:
        raise ConfigError("--scale-common needs block ids in the file; this one has none")
    if count * copies > MAX_REQUESTS:
        raise ConfigError(f"scale(={copies}) of {count} requests are more than a trace can hold")
    shifts = np.zeros(copies, dtype=np.int64)
    shifts[1:] = np.floor(rng.random(copies - 1) * (shift_ns + 1)).astype(np.int64)
    if int(requests.arrival_ns[-1]) + shift_ns > MAX_NS:
        raise ConfigError(f"scale shift(={shift_ns} ns) puts requests beyond the clock of a trace")
    numbers, names = dense(requests.block_ids)
    uses = np.bincount(numbers, minlength=names)
    by_use = np.argsort(-uses, kind="stable")
    # In integers, so that a share that comes out whole is taken whole.
    most = round(common * _PARTS) * references // _PARTS
    most_used = by_use[: int(np.searchsorted(np.cumsum(uses[by_use]), most, side="right"))]
    is_common = np.zeros(names, dtype=bool)
    is_common[most_used] = True
    own, owned = np.cumsum(~is_common) - 1, int(np.count_nonzero(~is_common))
    if names * copies > MAX_BLOCK_ID:
        raise ConfigError(f"scale(={copies}) of {names} blocks are more than a trace can number")
    # Common blocks keep their numbers, then come those of each copy.
    every = _copied(
        requests,
        shifts,
        lambda copy: np.where(is_common, np.arange(names), names + copy * owned + own)[numbers],
    )
    share = (
        f"{100 * int(uses[most_used].sum()) / max(references, 1):.1f} % of all references to blocks"
    )
    note = (
        f"the requests are superposed {copies} times, each copy later by up to"
        f" {format_duration(shift_ns)}"
        + ("; its sessions are its own" if requests.session_id is not None else "")
        + (
            f"; its blocks too, but for the most used prefixes, {share}"
            if requests.block_tokens
            else ""
        )
    )
    return _noted(every, note)


class Turns(StrEnum):
    """When the later turns of a file's sessions arrive."""

    FOLLOW = "follow"
    """A pause after the simulated answer that they follow ended: a closed loop."""
    AS_RECORDED = "as-recorded"
    """At the file's times, however long answers take: an open loop."""


def choose(requests: Requests, turns: Turns | None) -> tuple[Requests, Waits | None]:
    """Return `requests` with notes on their `turns`, and their waits if these follow.

    Without a choice they follow if the file has no times for them. ConfigError if none can.
    """
    is_asked = turns is Turns.FOLLOW
    if not is_asked and not (turns is None and requests.untimed):
        return requests, None
    waits = waits_of(requests)
    if not len(waits):
        if is_asked:
            raise ConfigError(
                "--turns follow: no request has a turn of its session before it; leave the"
                " option out"
            )
        return requests, None
    pause = requests.pause
    if not pause and requests.answered_ns is None:
        pause = (
            "the recorded time between their arrivals, in which the answer's own time is: the"
            " source lacks that"
        )
    note = (
        f"closed loop: {waits.followers} of {len(requests)} requests follow others and arrive a"
        " pause after the simulated answer before them ended, the others at their recorded time;"
        f" the pause is {pause or 'the recorded time from the end of that answer on'}"
    )
    notes = tuple(of for of in requests.notes if of != requests.untimed)
    return replace(requests, notes=(*notes, note)), waits


def waits_of(requests: Requests) -> Waits:
    """Return which requests follow which.

    As the source says, or each the one before it of its session.

    The pause is the recorded time from the end of the one answer to the arrival of the next turn,
    none if that came earlier; where the end is not recorded, from the one arrival to the next.
    """
    if requests.waits is not None:
        return requests.waits
    arrivals, (row, before) = requests.arrival_ns, successive(requests.session_id)
    ended = arrivals if requests.answered_ns is None else requests.answered_ns
    delay = np.maximum(0, arrivals[row] - ended[before])
    return Waits(
        row, before, delay, np.zeros(len(row), dtype=bool), np.zeros(len(requests), dtype=np.int64)
    )


def block_lists(lists: Any, path: Path, *, has_ids: bool) -> tuple[Ints, Ints]:
    """Return how many ids each request has, by the column `lists` of a table, and the ids.

    All have some, or none.
    """
    is_wrong = (lists.is_null() if has_ids else lists.is_valid()).to_numpy()
    why = (
        "null, but the source has block ids"
        if has_ids
        else "ids, but the metadata's source has no block_tokens"
    )
    refuse(is_wrong, why, path=path, column="block_ids")
    if not has_ids:
        return np.zeros(len(lists), dtype=np.int64), np.zeros(0, dtype=np.int64)
    return (
        pc.list_value_length(lists).to_numpy().astype(np.int64),
        pc.list_flatten(lists).to_numpy(),
    )


def check_columns(columns: dict[str, Ints], offsets: Ints, block_tokens: int, path: Path) -> None:
    """Check the columns of a requests table; `offsets` are those of its block ids.

    Raises:
        TraceError: at the first row whose value is not allowed.
    """

    def refuse_where(is_wrong: Any, name: str, reason: str) -> None:
        refuse(is_wrong, f"{{}} {reason}", columns[name], path=path, column=name)

    arrivals = columns["arrival_ns"]
    refuse_where(
        columns["request_id"] != np.arange(len(arrivals)),
        "request_id",
        "where requests are numbered from 0, one by one",
    )
    refuse_where(arrivals > MAX_NS, "arrival_ns", "is beyond the clock of a trace")
    refuse_where(np.diff(arrivals, prepend=0) < 0, "arrival_ns", "goes back in time")
    for name in ("input_tokens", "output_tokens"):
        refuse_where(columns[name] > MAX_TOKENS, name, f"must be from 0 to {MAX_TOKENS} tokens")
    refuse_where(columns["session_id"] > MAX_BLOCK_ID, "session_id", "is too large")
    if block_tokens:
        blocks = np.diff(offsets)
        full_blocks = columns["input_tokens"] // block_tokens
        # The last block of a prompt may be partial, or have no id.
        most_blocks = -(-columns["input_tokens"] // block_tokens)
        refuse_where(
            (blocks < full_blocks) | (blocks > most_blocks),
            "input_tokens",
            "tokens do not fit the number of block_ids",
        )


def requests_of_arrow(table: pa.Table, block_tokens: int) -> Requests:
    """Return the requests of a user's Arrow table; see `Requests.from_arrow`."""
    needed = ("arrival_ns", "input_tokens", "output_tokens")
    missing = [name for name in needed if name not in table.column_names]
    if missing:
        raise ConfigError(f"no column {missing[0]!r}; requests need {', '.join(needed)}")
    has_ids = "block_ids" in table.column_names
    if has_ids != bool(block_tokens):
        raise ConfigError("give block_ids and block_tokens together, or neither")
    if not table.num_rows:
        raise TraceError("holds no request", path=_IN_MEMORY)
    columns = {name: _integers(table, name) for name in needed}
    sessions = _integers(table, "session_id") if "session_id" in table.column_names else None
    count = table.num_rows
    offsets, ids = np.zeros(count + 1, np.int64), np.zeros(0, np.int64)
    if has_ids:
        lengths, named = block_lists(table.column("block_ids"), _IN_MEMORY, has_ids=True)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        ids, _renamed = prefix_chains(named.astype(np.int64), offsets)
    checked = columns | {
        "request_id": np.arange(count),
        "session_id": np.full(count, NONE) if sessions is None else sessions,
    }
    check_columns(checked, offsets, block_tokens, _IN_MEMORY)
    dense_sessions = None if sessions is None else dense(sessions)[0]
    turns = None if dense_sessions is None else turns_of(dense_sessions)
    return Requests(
        columns["arrival_ns"],
        columns["input_tokens"],
        columns["output_tokens"],
        offsets,
        ids,
        block_tokens,
        {"kind": "memory", "requests": count, "block_tokens": block_tokens or None},
        (),
        session_id=dense_sessions,
        turn=turns,
    )


_IN_MEMORY = Path("table in memory")


def _integers(table: pa.Table, name: str) -> Ints:
    """Return a column of a user's table as int64."""
    values = table.column(name).combine_chunks()
    if not pa.types.is_integer(values.type) or values.null_count:
        raise ConfigError(f"column {name}: must hold integers, and no nulls")
    return np.asarray(values.cast(pa.int64()).to_numpy(zero_copy_only=False), np.int64)
