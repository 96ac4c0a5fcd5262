"""Requests: the columns that all sources fill, helpers of sources, and transformations.

Helpers are limits, JSONL files as typed rows, prefix chains from block ids, and requests gathered
from a log. A block id here stands for the whole prefix that it ends. Some sources hash each block
with all blocks before it, others its content only; ids of the latter are renamed by prefix:

    for each position, over all prompts: name = number of (name of the prefix before, id)

Transformations scale times, repeat and superpose requests, limit prompts and jitter arrivals, each
with a note. In a closed loop, a turn arrives a pause after the simulated answer before it, instead of
at its recorded time.
"""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    NamedTuple,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
)

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvtrace.core import pa, pc, pl
from kvtrace.core.errors import ConfigError, TraceError, need_file, refuse
from kvtrace.core.files import decode_json
from kvtrace.core.json_types import JsonObject
from kvtrace.core.notebook import html_table
from kvtrace.core.parameters import named as named_parameter
from kvtrace.core.schema import REQUESTS, RequestKind, arrow_schema, batch_of, enum_code
from kvtrace.core.text import as_utf8, read_bounded, utf8_lines
from kvtrace.core.units import NS_PER_S, format_duration

Ints = NDArray[np.int64]

NONE = -1
"""Null in `session_id`, `turn` and `qos`."""


class CopiedColumns(TypedDict, total=False):
    """Columns of `Requests` that each copy of a request has in common."""

    input_tokens: Ints
    output_tokens: Ints
    turn: Ints | None
    qos: Ints | None
    kind: Ints | None


class SessionColumns(TypedDict, total=False):
    """The columns of `Requests` that only a source with sessions has."""

    session_id: Ints | None
    turn: Ints | None
    qos: Ints | None
    kind: Ints | None
    answered_ns: Ints | None
    pause: str
    untimed: str


@dataclass(frozen=True, slots=True, repr=False)
class Requests:
    """The requests of a file, as columns in order of arrival; the n-th row is request n.

    `block_ids[block_offsets[n]:block_offsets[n + 1]]` is the prefix chain of request n, a block of
    `block_tokens` tokens each. The last block may be partial, or the source may give ids to whole
    blocks only: then the last `input_tokens` modulo `block_tokens` tokens of a prompt have no id,
    and nothing can reuse them. A source without ids has `block_tokens` 0 and no blocks; its
    requests share a prefix only within a session, in which each prompt carries the history.

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
    """Metadata of the source: kind, file name, SHA-256, block_tokens, counts."""
    notes: tuple[str, ...]
    session_id: Ints | None = None
    """Dense conversation numbers; None if the source has none, NONE for a request without."""
    turn: Ints | None = None
    """Number of each request within its conversation, from 0; None or NONE likewise."""
    qos: Ints | None = None
    """The service class, a code of the requests table; None or NONE likewise."""
    kind: Ints | None = None
    """The kind of user, a code of the requests table; None if all are `trace`."""
    answered_ns: Ints | None = None
    """Recorded end of each answer, after which the next turn follows.

    It is the arrival for requests without one; None if the source records none.
    """
    waits: Waits | None = None
    """Dependencies between requests; None: each follows the one before it in its session."""
    pause: str = ""
    """Origin of the pause between an answer and the next turn, for notes.

    Empty: recorded times.
    """
    untimed: str = ""
    """The note on invented arrivals of turns, if the file has no times for them."""

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.arrival_ns)

    def to_arrow(self) -> pa.Table:
        """Return the requests as an Arrow table of the columns of the requests table.

        Session, turn, service class and block ids are null if the source has none.
        """
        return pa.Table.from_batches(batches(self), arrow_schema(REQUESTS))

    def to_polars(self) -> pl.DataFrame:
        """Return the requests as a Polars frame, with the columns of `to_arrow`.

        Examples:
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

        Examples:
            >>> import kvtrace as kt, polars as pl
            >>> frame = pl.DataFrame(
            ...     {
            ...         "arrival_ns": [0], "input_tokens": [600], "output_tokens": [8],
            ...         "session_id": [0],
            ...     }
            ... )
            >>> len(kt.Requests.from_polars(frame))
            1
        """
        return cls.from_arrow(frame.to_arrow(), block_tokens=block_tokens)

    @classmethod
    def from_arrow(cls, table: pa.Table, *, block_tokens: int = 0) -> Requests:
        """Make requests of an Arrow table.

        It needs the columns `arrival_ns`, `input_tokens` and `output_tokens`, integers, in order of
        arrival. Requests with an equal `session_id` share a history. `block_ids`, lists of integers,
        are prefix chains of blocks of `block_tokens` tokens.

        Raises:
            ConfigError: if a column is missing, or block ids come without `block_tokens`.
            TraceError: if a row has a value that is not allowed.

        Examples:
            >>> import kvtrace as kt, pyarrow as pa
            >>> table = pa.table({"arrival_ns": [0], "input_tokens": [600], "output_tokens": [8]})
            >>> kt.Requests.from_arrow(table).input_tokens.tolist()
            [600]

        """
        return requests_of_arrow(table, block_tokens)

    def __repr__(self) -> str:
        """Return the source, the number of requests, and over how long they arrive."""
        kind = self.origin.get("kind", "an unknown source")
        span = format_duration(self._span_ns)
        return f"<Requests of {kind}: {len(self):,} requests over {span}>"

    @property
    def _span_ns(self) -> int:
        return int(self.arrival_ns[-1] - self.arrival_ns[0]) if len(self) else 0

    def _repr_html_(self) -> str:
        """Return a summary for a notebook."""
        columns = ["requests", "span, s", "input tokens", "output tokens"]
        span_s = self._span_ns / 1e9
        cells = [
            f"{len(self):,}",
            f"{span_s:,.1f}",
            f"{int(self.input_tokens.sum()):,}",
            f"{int(self.output_tokens.sum()):,}",
        ]
        return html_table(columns, [cells])

    def check_shared(self) -> None:
        """Raise ConfigError if the source does not show which prompts share a prefix.

        Hits would be unknown.
        """
        if not self.block_tokens and self.session_id is None and self.waits is None:
            raise ConfigError(
                f"{self.origin.get('kind', 'the source')}: it has neither block ids nor sessions, so shared prefixes"
                " and hits are unknown; use a source that has them, such as mooncake, bailian or"
                " agentic, or omit FILE for synthetic users"
            )


MAX_TOKENS: Final = 2**31 - 1
# About 73 years: figures computed from times still fit 64 bits.
MAX_NS: Final = 2**61
MAX_CLOCK_NS: Final = 2**63 - 1
"""The latest time in a file, in ns since 1970."""
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
    kind: str, path: Path, sha256: str, requests: int, block_tokens: int, **facts: object
) -> JsonObject:
    """Return the metadata of a source: common fields, then its own `facts`."""
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
    **extra_columns: Unpack[SessionColumns],
) -> Requests:
    """Return the requests of a source without block ids.

    `extra_columns` are session_id, turn, qos and kind, if it has them.
    """
    offsets, ids = np.zeros(len(arrival_ns) + 1, dtype=np.int64), np.zeros(0, dtype=np.int64)
    return Requests(
        arrival_ns, input_tokens, output_tokens, offsets, ids, 0, origin, notes, **extra_columns
    )


def column(values: array[int]) -> Ints:
    """Return the array.array("q") `values` as int64, without a copy."""
    return np.frombuffer(values, dtype=np.int64) if values else np.zeros(0, dtype=np.int64)


def dense(values: Ints) -> tuple[Ints, int]:
    """Return `values` renumbered from 0 by first appearance, and the number of distinct ones."""
    encoded = pa.array(values).dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)


def runs_of(values: Ints, starts: Ints, lengths: Ints) -> tuple[Ints, Ints]:
    """Return the offsets and values of runs of `values`, with these `starts` and `lengths`."""
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
        matches = sorted(path.glob(pattern))
    elif not path.exists() and any(character in path.name for character in "*?["):
        matches = sorted(file for file in path.parent.glob(path.name) if file.is_file())
    else:
        need_file(path)
        return [path]
    if not matches:
        raise TraceError(f"no {pattern} there", path=path)
    return matches


@dataclass(frozen=True, slots=True)
class Start:
    """The first 64 KiB of a file, from which a source recognises its format.

    Byte order mark and leading blanks are removed.
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
        names = self.line.decode(errors="replace").split(",")
        return {name.strip().strip('"') for name in names}


def start_of(path: Path) -> Start:
    """Return the start of the file at `path`."""
    with path.open("rb") as file:
        return Start(path, as_utf8(file.read(_START_BYTES)).lstrip())


@dataclass(frozen=True, slots=True)
class Waits:
    """Dependencies between requests.

    In the k-th wait, request `row[k]` waits for `before[k]`, which has a lower number.

    A request with several waits arrives at the end of the last one (a join), and not before its
    `not_before_ns`. A request without waits arrives at its recorded time.
    """

    row: Ints
    before: Ints
    delay_ns: Ints
    """Delay after the end of the answer to `before`, or after its start."""
    is_of_start: NDArray[np.bool_]
    """Whether the wait is for `before` to start, not for its answer to end."""
    not_before_ns: Ints
    """Earliest arrival, one for each request."""

    @classmethod
    def of(
        cls,
        requests: int,
        waits: Iterable[tuple[int, int, int, bool]],
        not_before_ns: Ints | None = None,
    ) -> Self:
        """Return the waits of `requests` requests from tuples (row, before, delay_ns, is_of_start)."""
        table = np.array([tuple(map(int, wait)) for wait in waits], dtype=np.int64).reshape(-1, 4)
        not_before = np.zeros(requests, dtype=np.int64) if not_before_ns is None else not_before_ns
        return cls(table[:, 0], table[:, 1], table[:, 2], table[:, 3].astype(bool), not_before)

    def __len__(self) -> int:
        """Return the number of waits."""
        return len(self.row)

    @property
    def followers(self) -> int:
        """Number of requests that wait for another."""
        return len(np.unique(self.row))

    def select(self, rows: Ints, since_ns: int = 0) -> Self:
        """Return the waits among the requests `rows`, in that order, on a clock from `since_ns`.

        A wait for a request outside `rows` is dropped.
        """
        new_rows = np.full(len(self.not_before_ns), -1, dtype=np.int64)
        new_rows[rows] = np.arange(len(rows))
        not_before = np.maximum(0, self.not_before_ns[rows] - since_ns)
        wait_numbers = np.flatnonzero((new_rows[self.row] >= 0) & (new_rows[self.before] >= 0))
        return self._with_rows(
            wait_numbers,
            new_rows[self.row[wait_numbers]],
            new_rows[self.before[wait_numbers]],
            not_before,
        )

    def repeated(self, shifts_ns: Ints) -> Self:
        """Return the waits of copies of the requests, one for each of `shifts_ns`."""
        count, wait_numbers = len(self.not_before_ns), np.tile(np.arange(len(self)), len(shifts_ns))
        row_shifts = np.repeat(np.arange(len(shifts_ns)), len(self)) * count
        return self._with_rows(
            wait_numbers,
            self.row[wait_numbers] + row_shifts,
            self.before[wait_numbers] + row_shifts,
            shifted(self.not_before_ns, shifts_ns),
        )

    def scaled(self, factor: float) -> Self:
        """Return the waits with all times multiplied."""
        delays, not_before = (
            np.rint(times * factor).astype(np.int64)
            for times in (self.delay_ns, self.not_before_ns)
        )
        return replace(self, delay_ns=delays, not_before_ns=not_before)

    def _with_rows(self, wait_numbers: Ints, row: Ints, before: Ints, not_before: Ints) -> Self:
        times = self.delay_ns[wait_numbers], self.is_of_start[wait_numbers]
        return replace(
            self,
            row=row,
            before=before,
            delay_ns=times[0],
            is_of_start=times[1],
            not_before_ns=not_before,
        )


class SourceFormat(NamedTuple):
    """One format among several that a module reads.

    A module of one format has these as functions.
    """

    read: Callable[..., Requests]
    is_own: Callable[[Start], bool]


def source(is_own: Callable[[Start], bool]) -> Callable[[Callable[..., Requests]], SourceFormat]:
    """Decorate a reader as a format; `is_own` recognises its files."""
    return lambda read: SourceFormat(read, is_own)


T = TypeVar("T")

_NAMES = msgspec.json.Decoder(dict[str, msgspec.Raw])
_BLANKS = re.compile(r"\s+")


class JsonLines(Generic[T]):
    """The lines of one file as `T`, with the SHA-256 of all lines read so far."""

    def __init__(
        self,
        path: Path,
        kind: type[T],
        *,
        name_fields: bool = False,
        may_be_indented: bool = False,
    ) -> None:
        """Read `path`, a `kind` (a msgspec struct) a line; blank lines are skipped.

        With `name_fields`, `fields` collects the names in the first thousand lines, including those
        that `T` lacks. With `may_be_indented`, the file may instead be documents over several lines
        each, or arrays of documents.
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
        # Lines of a file with a byte order mark were converted, and differ from its bytes.
        is_converted = as_utf8(start) != start
        return sha256_of(self.path) if is_converted else self._digest.hexdigest()

    def fault(self, message: str, number: int, column: str | None) -> TraceError:
        """Return a TraceError about the field `column` of line `number`."""
        return TraceError(message, path=self.path, row=number, column=column)

    def check_ids(
        self, ids: int, tokens: int, block_tokens: int, number: int, *, may_lack_last: bool = True
    ) -> None:
        """Raise TraceError for line `number` unless the number of `ids` fits its `tokens`.

        The id of a partial last block may be missing.
        """
        blocks_needed = -(-tokens // block_tokens)
        if ids != blocks_needed and not (may_lack_last and ids == tokens // block_tokens):
            problem = f"{ids} ids, but {tokens} input tokens in blocks of {block_tokens} need {blocks_needed}"
            raise self.fault(
                f"{problem}; another block size? ({named_parameter('block_tokens')})",
                number,
                "hash_ids",
            )

    def __iter__(self) -> Iterator[tuple[int, T]]:
        """Yield each line, decoded, and its number, from 1.

        Raises:
            TraceError: for a line that is not a `T`.
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
                except (msgspec.DecodeError, RecursionError):
                    return False
        return True

    def _whole_file(self) -> Iterator[tuple[int, T]]:
        """Yield the documents of a file that is read at once; an array holds one an element."""
        text = as_utf8(read_bounded(self.path))
        self._digest.update(text)
        number = 0
        for document in _json_documents(text):
            if document.startswith(b"["):
                items = decode_json(document, list[self._kind], self.path)  # type: ignore[name-defined]
            else:
                items = [decode_json(document, self._decoder, self.path)]
                if number < self._named_lines:
                    names: dict[str, msgspec.Raw] = decode_json(document, _NAMES, self.path)
                    self.fields.update(names)
            for item in items:
                number += 1
                yield number, item


def _json_documents(text: bytes) -> Iterator[bytes]:
    """Yield the JSON documents that follow each other in `text`; the last one may be damaged."""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        rest, begin = text.decode(errors="replace").strip(), 0
        while begin < len(rest):
            try:
                _, end = json.JSONDecoder().raw_decode(rest, begin)
            except (ValueError, RecursionError):
                end = len(rest)
            yield rest[begin:end].encode()
            gap = _BLANKS.match(rest, end)
            begin = end if gap is None else gap.end()
    else:
        yield text.strip()


_ZONE = re.compile(r"(?:Z|([+-])([01]\d)(?::?([0-5]\d))?)$")


def wall_ns(text: str, lines: JsonLines[Any], number: int, column: str) -> int:
    """Return the ns since 1970 of the ISO time `text`; without a zone it is taken as UTC.

    TraceError, with its position, if it is not a time.
    """
    zone = _ZONE.search(text, 11)
    plain = text if zone is None else text[: zone.start()]
    offset_s = 0
    if zone is not None and zone[1]:
        offset_s = (int(zone[2]) * 60 + int(zone[3] or 0)) * (-60 if zone[1] == "-" else 60)
    try:
        # NumPy accepts zones with a warning, and takes "NaT" and an empty text for times.
        local = np.datetime64(plain if _CLOCK.fullmatch(plain) else "none", "ns")
        return int(local.astype(np.int64)) - offset_s * NS_PER_S
    except (ValueError, OverflowError):
        raise lines.fault(f"{text!r} is not a time", number, column) from None


def counted(*counts: tuple[int, str]) -> list[str]:
    """Return a note for each of `counts` that is not 0, which begins with the count."""
    return [f"{count} {text}" for count, text in counts if count]


def unused_notes(fields: set[str], used: type[msgspec.Struct]) -> list[str]:
    """Return a note on the `fields` of a file's rows that `used` lacks; empty if there are none."""
    unused = sorted(fields.difference(used.__struct_fields__))
    return [f"fields of the file that are not used: {', '.join(unused)}"] if unused else []


def full_blocks(units: Sequence[T], block_tokens: int, per_token: int = 1) -> Iterator[Sequence[T]]:
    """Yield the full blocks of a prompt; what is in a block names it.

    A token takes `per_token` units, and the last one perhaps fewer.
    """
    step = block_tokens * per_token
    end = -(-len(units) // per_token) // block_tokens * step
    return (units[start : start + step] for start in range(0, end, step))


class BlockIds:
    """The block ids of requests in the order of a log: one array, of which each has a run.

    A log may have a billion ids, which as a list for each request would take twice the memory.
    """

    def __init__(self) -> None:
        self._ids, self._ends = array("q"), array("q")

    def append(self, ids: Iterable[int]) -> None:
        """Add the ids of the next request."""
        self._ids.extend(array("q", ids))
        self._ends.append(len(self._ids))

    def __getitem__(self, row: int) -> array[int]:
        """Return a copy of the ids of the request `row`."""
        return self._ids[self._ends[row - 1] if row else 0 : self._ends[row]]

    @property
    def lengths(self) -> Ints:
        """The number of ids of each request."""
        return np.diff(column(self._ends), prepend=0)

    @property
    def next_id(self) -> int:
        """The least number above all ids."""
        return int(column(self._ids).max(initial=-1)) + 1

    def extended(self, missing: Ints) -> BlockIds:
        """Return the ids with so many new ones behind those of each request."""
        if not missing.any():
            return self
        lengths = self.lengths
        ends = np.cumsum(lengths + missing)
        is_old = np.ones(ends[-1], dtype=bool)
        first_new, added = np.repeat((ends - missing), missing), int(missing.sum())
        is_old[first_new + np.arange(added) - np.repeat(np.cumsum(missing) - missing, missing)] = (
            False
        )
        ids = np.empty(ends[-1], dtype=np.int64)
        ids[is_old] = column(self._ids)
        ids[~is_old] = np.arange(self.next_id, self.next_id + added)
        result = BlockIds()
        result._ids.frombytes(ids.tobytes())
        result._ends.frombytes(ends.astype(np.int64).tobytes())
        return result

    def in_order(self, order: Ints) -> tuple[Ints, Ints]:
        """Return the offsets and the ids of the requests in `order`."""
        lengths, ids, ends = self.lengths, column(self._ids), column(self._ends)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[order])])
        if (order[1:] > order[:-1]).all():
            return offsets, ids
        ordered = np.empty_like(ids)
        for start, row in zip(offsets.tolist(), order.tolist(), strict=False):
            ordered[start : start + lengths[row]] = ids[ends[row] - lengths[row] : ends[row]]
        return offsets, ordered


_START = -1


class PrefixChains(NamedTuple):
    """Block ids that name prefixes, and the ids of the file that did not."""

    ids: Ints
    renamed: int
    """Number of distinct ids that follow more than one prefix, and were renamed."""
    first_request: int
    """The first request with an id that followed another prefix before; NONE if there is none."""

    def notes(self, row: int = 0) -> list[str]:
        """Return a note on renamed ids, if there are any; `row` is that request's row in the file.

        Without a row, the note names the request.
        """
        place = f"row {row}" if row else f"request {self.first_request}"
        text = f"block ids occur after more than one prefix, first in {place}"
        treatment = "they were renamed by prefix, so that only equal prefixes are shared"
        return counted((self.renamed, f"{text}: {treatment}"))


def prefix_chains(ids: Ints, offsets: Ints) -> PrefixChains:
    """Return ids that name prefixes.

    Request n has `ids[offsets[n]:offsets[n + 1]]`. If each id always follows the same id, they name
    prefixes already and are returned unchanged. Otherwise a block is named by (name of the prefix
    before it, its id).
    """
    conflicts = _conflicts(ids, offsets)
    if not len(conflicts):
        return PrefixChains(ids, 0, NONE)
    first_request = int(np.searchsorted(offsets, conflicts.min(), side="right")) - 1
    # Position by position, over all prompts at once.
    numbers, distinct = dense(ids)
    names = np.empty_like(ids)
    lengths = np.diff(offsets)
    longest_first = np.argsort(-lengths, kind="stable")
    ordered_lengths = lengths[longest_first]
    starts = offsets[:-1][longest_first]
    names_used = 0
    prefix = np.full(len(lengths), _START, dtype=np.int64)
    for position in range(int(ordered_lengths[0])):
        active_count = int(np.searchsorted(-ordered_lengths, -position, side="left"))
        positions = starts[:active_count] + position
        # A prefix number is below the count of blocks, so the pair fits 64 bits while their product
        # does.
        pair_numbers, count = dense((prefix[:active_count] + 1) * distinct + numbers[positions])
        prefix[:active_count] = names[positions] = pair_numbers + names_used
        names_used += count
    return PrefixChains(names, len(np.unique(ids[conflicts])), first_request)


def _conflicts(ids: Ints, offsets: Ints) -> Ints:
    """Return the positions of the ids that follow another id than at their first occurrence."""
    ambiguous_ids = _ambiguous_ids(ids, offsets)
    if not len(ambiguous_ids):
        return np.zeros(0, dtype=np.int64)
    positions = np.flatnonzero(np.isin(ids, ambiguous_ids))
    before = _ids_before(ids, offsets, positions)
    # A stable sort begins the run of each id with its first occurrence.
    order = np.argsort(ids[positions], kind="stable")
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = np.diff(ids[positions][order]) != 0
    before_first = before[order][is_first][np.cumsum(is_first) - 1]
    conflicts: Ints = positions[order[before[order] != before_first]]
    return conflicts


def _ambiguous_ids(ids: Ints, offsets: Ints) -> Ints:
    """Return the ids that follow more than one other id.

    Most logs have none. A log may have a billion ids, so positions are taken in pieces. Beside `ids`
    memory is needed for one id before each number from the least to the largest id.
    """
    if not len(ids):
        return np.zeros(0, dtype=np.int64)
    least, span = int(ids.min()), int(ids.max()) - int(ids.min()) + 1
    numbers, distinct = ids, span
    if span > _SPARSE_IDS * len(ids):
        (numbers, distinct), least = dense(ids), 0

    def pieces() -> Iterator[Ints]:
        for start in range(0, len(ids), _PIECE_IDS):
            yield np.arange(start, min(start + _PIECE_IDS, len(ids)))

    # Of several occurrences in a piece, NumPy may keep any: all are compared with the one it keeps.
    one_before = np.empty(distinct, dtype=np.int64)
    for piece in pieces():
        one_before[numbers[piece] - least] = _ids_before(ids, offsets, piece)
    others = [
        piece[_ids_before(ids, offsets, piece) != one_before[numbers[piece] - least]]
        for piece in pieces()
    ]
    return np.unique(ids[np.concatenate(others)])


def _ids_before(ids: Ints, offsets: Ints, positions: Ints) -> Ints:
    """Return the id before each of the increasing `positions`; _START at the start of a request."""
    before = ids[positions - 1]
    starts = offsets[:-1]
    nearest = np.searchsorted(starts, positions)
    before[starts[np.minimum(nearest, len(starts) - 1)] == positions] = _START
    return before


_PIECE_IDS = 1 << 20
_SPARSE_IDS = 4
"""How many numbers an id may take on average before a table by number would be too large."""


def backwards_notes(times: int) -> list[str]:
    """Return a note on times that go backwards; empty if `times` is 0."""
    return (
        [f"times went backwards {times} times: the requests were sorted by arrival"]
        if times
        else []
    )


class Gathered:
    """Collects requests in the order of an engine's log, and returns columns in order of arrival.

    Blocks are named by hashes of any length, bytes or text. Times are of a wall clock.
    """

    def __init__(self, *, has_numbers: bool = False, has_contents: bool = False) -> None:
        """Start empty.

        With `has_numbers`, blocks are named by numbers, which are kept. With `has_contents` they
        are named by the tokens in them, which may well follow unequal prefixes: no note says so.
        """
        self._times, self._inputs, self._outputs, self._sessions = (array("q") for _ in range(4))
        self._answered, self._turns, self._has_numbers = array("q"), array("q"), has_numbers
        self._rows, self._has_contents = array("q"), has_contents
        self._without_end = 0
        """Number of requests for which the log has no end of the answer."""
        self._chains = BlockIds()
        self._ids: dict[Hashable, int] = {}
        self._names: dict[Hashable, int] = {}

    def __len__(self) -> int:
        """Return the number of requests."""
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
        row: int = 0,
    ) -> None:
        """Append a request that arrived at `time_ns` of any clock, with the names of its blocks.

        `answered_ns` is the end of its answer, if logged. `turn` is given for all requests or none.
        `row` is its row in the file, from 1, for notes; 0 if a request is not of one row.
        """
        self._rows.append(row)
        self._times.append(time_ns)
        self._without_end += answered_ns is None
        self._answered.append(
            time_ns if answered_ns is None else max(time_ns, min(answered_ns, 2**63 - 1))
        )
        self._inputs.append(input_tokens)
        self._outputs.append(output_tokens)
        numbers = (
            cast("Iterable[int]", chain)
            if self._has_numbers
            else [self._ids.setdefault(name, len(self._ids)) for name in chain]
        )
        self._chains.append(numbers)
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
        **facts: object,
    ) -> Requests:
        """Return the requests in order of arrival, from 0 ns on.

        Turns without a number are numbered in that order.

        TraceError without requests, or if they span more than a trace's clock holds.
        """
        if not self._times:
            raise TraceError("holds no request", path=path)
        times = column(self._times)
        order = np.argsort(times, kind="stable")
        arrivals = times[order]
        if int(arrivals[-1]) - int(arrivals[0]) > MAX_NS:
            raise TraceError("its times span more than the clock of a trace holds", path=path)
        inputs, outputs = column(self._inputs)[order], column(self._outputs)[order]
        missing_blocks = self._missing_blocks(block_tokens)
        offsets, ids = self._chains.extended(missing_blocks).in_order(order)
        chains = prefix_chains(ids, offsets)
        all_notes = list(notes)
        if block_tokens:
            unnamed = int(np.maximum(inputs - np.diff(offsets) * block_tokens, 0).sum())
            facts |= {
                "block_references": len(ids),
                "rechained_ids": 0 if self._has_contents else chains.renamed,
                "unnamed_tokens": unnamed,
            }
            if chains.renamed and not self._has_contents:
                all_notes += chains.notes(int(column(self._rows)[order][chains.first_request]))
            all_notes += counted(
                (
                    int(missing_blocks.sum()),
                    "blocks of prompts have no id in the file: they are stored, and never reused",
                ),
                (unnamed, "tokens at the ends of prompts have no block id and are never reused"),
            )
        optional_columns: SessionColumns = {}
        answered = column(self._answered)[order]
        if (answered != arrivals).any():
            optional_columns["answered_ns"] = np.minimum(answered - arrivals[0], MAX_NS)
            all_notes += counted(
                (
                    self._without_end,
                    "requests have no end of answer in the file: pauses after them begin at arrival",
                )
            )
        if self._names:
            sessions = _dense_sessions(column(self._sessions)[order])
            turns = column(self._turns)[order]
            optional_columns |= {
                "session_id": sessions,
                "turn": turns_of(sessions) if (turns == NONE).all() else turns,
            }
            facts.setdefault("conversations", len(self._names))
        origin = origin_of(kind, path, sha256, len(arrivals), block_tokens, **facts)
        tokens = (inputs, outputs, offsets, chains.ids)
        return Requests(
            arrivals - arrivals[0],
            *tokens,
            block_tokens,
            origin,
            tuple(all_notes),
            **optional_columns,
        )

    def _missing_blocks(self, block_tokens: int) -> Ints:
        """Return the number of full blocks of each prompt for which the file has no id."""
        if not block_tokens:
            return np.zeros(len(self), dtype=np.int64)
        missing: Ints = column(self._inputs) // block_tokens - self._chains.lengths
        return missing.clip(min=0)

    def in_order(self, waits: Waits) -> Waits:
        """Convert `waits` between requests in appended order to order of arrival."""
        return waits.select(
            np.argsort(column(self._times), kind="stable"), since_ns=min(self._times)
        )


def _dense_sessions(sessions: Ints) -> Ints:
    """Return the sessions, numbered from 0 in order of appearance; NONE remains NONE."""
    numbers = sessions.copy()
    has_session = np.flatnonzero(sessions != NONE)
    numbers[has_session] = dense(sessions[has_session])[0]
    return numbers


def turns_of(sessions: Ints) -> Ints:
    """Return the number of earlier rows in each row's session; NONE without a session."""
    turns = np.full(len(sessions), NONE, dtype=np.int64)
    has_session = np.flatnonzero(sessions != NONE)
    by_session = has_session[np.argsort(sessions[has_session], kind="stable")]
    turns[by_session] = np.arange(len(has_session)) - np.searchsorted(
        sessions[by_session], sessions[by_session]
    )
    return turns


def successive(sessions: Ints | None) -> tuple[Ints, Ints]:
    """Return the rows with an earlier one in their session, and the previous row of each."""
    session_numbers = np.zeros(0, dtype=np.int64) if sessions is None else sessions
    order = np.argsort(session_numbers, kind="stable")
    order = order[session_numbers[order] != NONE]
    is_next = session_numbers[order[1:]] == session_numbers[order[:-1]]
    return order[1:][is_next], order[:-1][is_next]


def with_history_note(requests: Requests) -> Requests:
    """Return `requests` with a note on prompts that cannot carry their session's history."""
    after, before = successive(requests.session_id)
    prompts, answers = requests.input_tokens, requests.output_tokens
    shorter = int(np.count_nonzero(prompts[after] < prompts[before] + answers[before]))
    notes = counted(
        (shorter, "later prompts are shorter than the turn before them, so they cannot carry it")
    )
    return replace(requests, notes=(*requests.notes, *notes))


MAX_REQUESTS = 2**31 - 1
SCALE_SHIFT_NS = 60 * NS_PER_S


class CycleIds(StrEnum):
    """The block ids of later cycles of a trace: the same, or distinct ones."""

    SAME = "same"
    DISTINCT = "distinct"


class OverLimit(StrEnum):
    """The treatment of a prompt over the limit."""

    CLIP = "clip"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class Reshaping:
    """Transformations of a source, applied in this order.

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
    """Number of superposed copies, each with its own blocks and sessions."""
    scale_common: float = 0.0
    """The hottest prefixes, up to this share of all references, are common to the copies."""
    scale_shift_ns: int = SCALE_SHIFT_NS
    """Maximum delay of each copy but the first."""
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
                f"scale common and scale shift are for copies: add {named_parameter('scale')},"
                " such as 64"
            )
        if self.over_limit is not OverLimit.DROP and self.max_input_tokens is None:
            raise ConfigError(
                f"{named_parameter('over_limit', self.over_limit)} needs the limit: give"
                f" {named_parameter('max_input_tokens')}, such as 8192"
            )
        if self.cycle_ids is not CycleIds.DISTINCT and self.cycles == 1:
            raise ConfigError(
                f"{named_parameter('cycle_ids', self.cycle_ids)} is for later cycles: add"
                f" {named_parameter('cycles')}, such as 2"
            )

    def as_config(self) -> JsonObject:
        """Return the fields that are not at their defaults."""
        defaults = msgspec.to_builtins(Reshaping())
        return {
            name: value
            for name, value in msgspec.to_builtins(self).items()
            if value != defaults[name]
        }


def reshape(requests: Requests, reshaping: Reshaping, rng: np.random.Generator) -> Requests:
    """Return `requests` transformed by `reshaping`, with a note for each change.

    `rng` samples jitter and shifts.
    """
    if reshaping.max_input_tokens is not None:
        requests = _limit(requests, reshaping.max_input_tokens, reshaping.over_limit)
    if reshaping.jitter_ns:
        times = requests.arrival_ns
        distinct, tick_numbers = np.unique(times, return_inverse=True)
        tick_ns = np.full(len(distinct), reshaping.jitter_ns, dtype=np.int64)
        tick_ns[:-1] = np.minimum(tick_ns[:-1], np.diff(distinct))
        jitter_ns = np.floor(rng.random(len(times)) * tick_ns[tick_numbers]).astype(np.int64)
        # Sorted within each time, so that requests keep their order.
        jitter_ns = jitter_ns[np.lexsort((jitter_ns, tick_numbers))]
        answered = None if requests.answered_ns is None else requests.answered_ns + jitter_ns
        requests = _add_note(
            replace(requests, arrival_ns=times + jitter_ns, answered_ns=answered),
            f"times were spread evenly at random over ticks of {format_duration(reshaping.jitter_ns)},"
            " in the same order",
        )
    if (factor := reshaping.time_scale) != 1:
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
        requests = _add_note(requests, f"times were multiplied by {factor:g}")
    if reshaping.cycles > 1:
        limit = reshaping.max_requests if reshaping.scale == 1 else None
        requests = _repeat(requests, reshaping.cycles, reshaping.cycle_ids, limit)
    if reshaping.scale > 1:
        requests = superpose(
            requests, reshaping.scale, reshaping.scale_common, reshaping.scale_shift_ns, rng
        )
    if reshaping.max_requests is not None and reshaping.max_requests < len(requests):
        cut = f"cut after {reshaping.max_requests} request{'s' * (reshaping.max_requests > 1)}"
        requests = _add_note(take(requests, np.arange(reshaping.max_requests)), cut)
    changes = reshaping.as_config()
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
    columns = {
        name: values[rows] for name in names if (values := getattr(requests, name)) is not None
    }
    waits = None if requests.waits is None else requests.waits.select(rows)
    return replace(
        requests,
        block_offsets=offsets,
        block_ids=ids,
        waits=waits,
        **cast("SessionColumns", columns),
    )


BATCH_ROWS = 1 << 16


def batches(
    requests: Requests,
    count: int | None = None,
    arrivals: tuple[Ints, Ints] | None = None,
    times: Mapping[str, Ints] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield record batches of the requests table: the first `count` requests, or all.

    `arrivals` instead gives rows and their arrival times. `times` has further columns of the
    requests in order of arrival.
    """
    times = times or {}
    stop = len(requests if arrivals is None else arrivals[0]) if count is None else count
    names = ("arrival_ns", "session_id", "turn", "input_tokens", "output_tokens", "qos", "kind")
    requests = replace(requests, waits=None)  # the table does not hold them
    for start in range(0, stop, BATCH_ROWS):
        end = min(start + BATCH_ROWS, stop)
        rows = take(requests, np.arange(start, end) if arrivals is None else arrivals[0][start:end])
        columns = {name: values for name in names if (values := getattr(rows, name)) is not None}
        columns["request_id"] = np.arange(start, end)
        if arrivals is not None:
            columns["arrival_ns"] = arrivals[1][start:end]
        columns.setdefault(
            "kind", np.full(end - start, enum_code(REQUESTS, "kind", RequestKind.TRACE))
        )
        if rows.block_tokens:
            offsets = pa.array(rows.block_offsets, pa.int32())
            columns["block_ids"] = pa.ListArray.from_arrays(offsets, pa.array(rows.block_ids))
        columns |= {name: values[start:end] for name, values in times.items()}
        yield batch_of(REQUESTS, columns, tuple(times))


def _add_note(requests: Requests, note: str) -> Requests:
    return replace(requests, notes=(*requests.notes, note))


def _limit(requests: Requests, limit: int, over_limit: OverLimit) -> Requests:
    is_over = requests.input_tokens > limit
    count = int(np.count_nonzero(is_over))
    if not count:
        return requests
    if over_limit is OverLimit.DROP:
        rows_within = np.flatnonzero(~is_over)
        if not len(rows_within):
            raise ConfigError(f"max input tokens(={limit}): every prompt is longer")
        note = (
            f"{count} prompts over {limit} tokens were dropped, which leaves gaps in their"
            " conversations"
        )
        return _add_note(take(requests, rows_within), note)
    lengths = np.diff(requests.block_offsets)
    if requests.block_tokens:
        lengths = np.minimum(
            lengths, -(-np.minimum(requests.input_tokens, limit) // requests.block_tokens)
        )
    offsets, ids = runs_of(requests.block_ids, requests.block_offsets[:-1], lengths)
    tokens = np.minimum(requests.input_tokens, limit)
    clipped = replace(requests, input_tokens=tokens, block_offsets=offsets, block_ids=ids)
    return _add_note(
        clipped, f"{count} prompts over {limit} tokens were clipped to their first {limit}"
    )


def _repeat(requests: Requests, cycles: int, cycle_ids: CycleIds, limit: int | None) -> Requests:
    """Return `requests` repeated `cycles` times.

    A cycle starts one mean interval after the last request of the previous one.
    """
    n = len(requests)
    span = int(requests.arrival_ns[-1] - requests.arrival_ns[0])
    period = span + (round(span / (n - 1)) if span else NS_PER_S)
    needed = min(cycles, -(-limit // n)) if limit is not None else cycles
    last_shift_ns = period * (needed - 1)
    if n * needed > MAX_REQUESTS or int(requests.arrival_ns[-1]) + last_shift_ns > MAX_NS:
        raise ConfigError(f"cycles(={cycles}) of {n} requests are more than a trace can hold")
    numbers, count = requests.block_ids, 0
    if cycle_ids is CycleIds.DISTINCT and requests.block_tokens:
        numbers, count = dense(requests.block_ids)
        if count * needed > MAX_BLOCK_ID:
            raise ConfigError(
                f"cycles(={cycles}) of {count} blocks are more than a trace can number"
            )
    repeated = _copy_requests(
        requests, np.arange(needed) * period, lambda cycle: numbers + cycle * count
    )
    blocks = f", with {cycle_ids} block ids" if requests.block_tokens else ""
    new = "; each cycle has new conversations" if requests.session_id is not None else ""
    return _add_note(
        repeated,
        f"the requests are repeated {cycles} times, {format_duration(period)} apart{blocks}{new}",
    )


def shifted(times: Ints, shifts_ns: Ints) -> Ints:
    """Return one shifted copy of `times` for each of `shifts_ns`, one after the other."""
    return (times[None, :] + shifts_ns[:, None]).reshape(-1)


_COLUMNS = ("input_tokens", "output_tokens", "turn", "qos", "kind")


def _copy_requests(requests: Requests, shifts_ns: Ints, ids_of: Callable[[int], Ints]) -> Requests:
    """Return one shifted copy of `requests` for each of `shifts_ns`, in order of arrival.

    `ids_of` returns the block ids of a copy; each copy has its own sessions.
    """
    count, lengths = len(requests), np.diff(requests.block_offsets)
    times = shifted(requests.arrival_ns, shifts_ns)
    # Equal times are ordered by copy, and within a copy as in the source.
    order = np.argsort(times, kind="stable")
    new_rows = np.empty(len(order), dtype=np.int64)
    new_rows[order] = np.arange(len(order))
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths[order % count])])
    # One copy at a time, which bounds memory.
    ids = np.empty(offsets[-1], dtype=np.int64)
    position_in_chain = np.arange(len(requests.block_ids)) - np.repeat(
        requests.block_offsets[:-1], lengths
    )
    for copy_number in range(len(shifts_ns)):
        ids[
            np.repeat(offsets[new_rows[copy_number * count : (copy_number + 1) * count]], lengths)
            + position_in_chain
        ] = ids_of(copy_number)
    columns = {name: values for name in _COLUMNS if (values := getattr(requests, name)) is not None}
    copied_columns = {name: values[order % count] for name, values in columns.items()}
    if (sessions := requests.session_id) is not None:
        numbers, conversations = dense(sessions[sessions != NONE])
        session_ids = np.full((len(shifts_ns), count), NONE, dtype=np.int64)
        session_ids[:, sessions != NONE] = (
            numbers + conversations * np.arange(len(shifts_ns))[:, None]
        )
        sessions = session_ids.reshape(-1)[order]
    answered, waits = requests.answered_ns, requests.waits
    return replace(
        requests,
        arrival_ns=times[order],
        block_offsets=offsets,
        block_ids=ids,
        session_id=sessions,
        answered_ns=None if answered is None else shifted(answered, shifts_ns)[order],
        waits=None if waits is None else waits.repeated(shifts_ns).select(order),
        **cast("CopiedColumns", copied_columns),
    )


_PARTS = 10**9


def superpose(
    requests: Requests, copies: int, common: float, shift_ns: int, rng: np.random.Generator
) -> Requests:
    """Return `copies` superposed copies of `requests`, in order of arrival.

    Each copy but the first is delayed by a uniform random time up to `shift_ns`. It has its own
    sessions and blocks, except the hottest blocks with up to a share `common` of all references.
    """
    count, references = len(requests), len(requests.block_ids)
    if common and not requests.block_tokens:
        raise ConfigError(
            f"{named_parameter('scale_common')} needs block ids in the file; this one has none"
        )
    if count * copies > MAX_REQUESTS:
        raise ConfigError(f"scale(={copies}) of {count} requests are more than a trace can hold")
    shifts = np.zeros(copies, dtype=np.int64)
    shifts[1:] = np.floor(rng.random(copies - 1) * (shift_ns + 1)).astype(np.int64)
    if int(requests.arrival_ns[-1]) + shift_ns > MAX_NS:
        raise ConfigError(f"scale shift(={shift_ns} ns) puts requests beyond the clock of a trace")
    numbers, block_count = dense(requests.block_ids)
    uses = np.bincount(numbers, minlength=block_count)
    by_use = np.argsort(-uses, kind="stable")
    # In integers, so that a whole share is not rounded down.
    max_common = round(common * _PARTS) * references // _PARTS
    most_used = by_use[: int(np.searchsorted(np.cumsum(uses[by_use]), max_common, side="right"))]
    is_common = np.zeros(block_count, dtype=bool)
    is_common[most_used] = True
    own_numbers, own_count = np.cumsum(~is_common) - 1, int(np.count_nonzero(~is_common))
    if block_count * copies > MAX_BLOCK_ID:
        raise ConfigError(
            f"scale(={copies}) of {block_count} blocks are more than a trace can number"
        )
    # Common blocks keep their numbers; the numbers of each copy follow.
    superposed = _copy_requests(
        requests,
        shifts,
        lambda copy: np.where(
            is_common, np.arange(block_count), block_count + copy * own_count + own_numbers
        )[numbers],
    )
    share_text = (
        f"{100 * int(uses[most_used].sum()) / max(references, 1):.1f} % of all references to blocks"
    )
    note = (
        f"the requests are superposed {copies} times, each copy later by up to"
        f" {format_duration(shift_ns)}"
        + (", with its own sessions" if requests.session_id is not None else "")
        + (
            f"; blocks are its own, except the hottest prefixes, {share_text}"
            if requests.block_tokens
            else ""
        )
    )
    return _add_note(superposed, note)


class Turns(StrEnum):
    """Arrivals of later turns of a file's sessions."""

    FOLLOW = "follow"
    """Closed loop: a pause after the end of the simulated answer before them."""
    AS_RECORDED = "as-recorded"
    """Open loop: at the file's times, however long answers take."""


def choose(requests: Requests, turns: Turns | None) -> tuple[Requests, Waits | None]:
    """Return `requests` with notes on `turns`, and their waits in a closed loop.

    By default, turns without times in the file follow. ConfigError if no turn can follow.
    """
    is_requested = turns is Turns.FOLLOW
    if not is_requested and not (turns is None and requests.untimed):
        return requests, None
    waits = waits_of(requests)
    if not len(waits):
        if is_requested:
            raise ConfigError(
                f"{named_parameter('turns', 'follow')}: no request has an earlier turn in its"
                " session; remove the option"
            )
        return requests, None
    pause = requests.pause
    if not pause and requests.answered_ns is None:
        pause = (
            "the recorded time between arrivals, which includes the time of the answer, because the"
            " source does not record it"
        )
    note = (
        f"closed loop: {waits.followers} of {len(requests)} requests arrive a"
        " pause after the end of the simulated answer before them, others at their recorded time;"
        f" the pause is {pause or 'the recorded time from the end of that answer'}"
    )
    notes = tuple(text for text in requests.notes if text != requests.untimed)
    return replace(requests, notes=(*notes, note)), waits


def waits_of(requests: Requests) -> Waits:
    """Return the dependencies of the source, or of each turn on the one before it in its session.

    The delay is the recorded time from the end of an answer to the next turn, at least 0. Without a
    recorded end, it is the time between arrivals.
    """
    if requests.waits is not None:
        return requests.waits
    arrivals, (row, before) = requests.arrival_ns, successive(requests.session_id)
    answered_ns = arrivals if requests.answered_ns is None else requests.answered_ns
    delay = np.maximum(0, arrivals[row] - answered_ns[before])
    return Waits(
        row, before, delay, np.zeros(len(row), dtype=bool), np.zeros(len(requests), dtype=np.int64)
    )


def block_lists(lists: pa.ChunkedArray, path: Path, *, has_ids: bool) -> tuple[Ints, Ints]:
    """Return the number of ids of each request, and the ids, from the column `lists` of a table.

    All requests have ids, or none.
    """
    is_wrong = (lists.is_null() if has_ids else lists.is_valid()).to_numpy()
    reason = (
        "null, but the source has block ids"
        if has_ids
        else "ids, but the metadata's source has no block_tokens"
    )
    refuse(is_wrong, reason, path=path, column="block_ids")
    if not has_ids:
        return np.zeros(len(lists), dtype=np.int64), np.zeros(0, dtype=np.int64)
    return (
        pc.list_value_length(lists).to_numpy().astype(np.int64),
        pc.list_flatten(lists).to_numpy(),
    )


def check_columns(columns: dict[str, Ints], offsets: Ints, block_tokens: int, path: Path) -> None:
    """Check the columns of a requests table; `offsets` are those of its block ids.

    Raises:
        TraceError: at the first row with an invalid value.
    """

    def refuse_where(is_wrong: NDArray[np.bool_], name: str, reason: str) -> None:
        refuse(is_wrong, f"{{}} {reason}", columns[name], path=path, column=name)

    arrivals = columns["arrival_ns"]
    refuse_where(
        columns["request_id"] != np.arange(len(arrivals)),
        "request_id",
        "where requests must be numbered from 0, one by one",
    )
    refuse_where(arrivals > MAX_NS, "arrival_ns", "is beyond the clock of a trace")
    refuse_where(np.diff(arrivals, prepend=0) < 0, "arrival_ns", "goes back in time")
    for name in ("input_tokens", "output_tokens"):
        is_wrong = (columns[name] < 0) | (columns[name] > MAX_TOKENS)
        refuse_where(is_wrong, name, f"must be from 0 to {MAX_TOKENS} tokens")
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
    notes: list[str] = []
    if has_ids:
        lengths, source_ids = block_lists(table.column("block_ids"), _IN_MEMORY, has_ids=True)
        refuse(
            (source_ids < 0) | (source_ids > MAX_BLOCK_ID),
            f"{{}} is no block id, which is from 0 to {MAX_BLOCK_ID}",
            source_ids,
            path=_IN_MEMORY,
            column="block_ids",
        )
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        chains = prefix_chains(source_ids.astype(np.int64), offsets)
        ids, notes = chains.ids, chains.notes()
    checked = columns | {
        "request_id": np.arange(count),
        "session_id": np.full(count, NONE) if sessions is None else sessions,
    }
    check_columns(checked, offsets, block_tokens, _IN_MEMORY)
    dense_sessions = None if sessions is None else _dense_sessions(sessions)
    turns = None if dense_sessions is None else turns_of(dense_sessions)
    return Requests(
        columns["arrival_ns"],
        columns["input_tokens"],
        columns["output_tokens"],
        offsets,
        ids,
        block_tokens,
        {"kind": "memory", "requests": count, "block_tokens": block_tokens or None},
        tuple(notes),
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
