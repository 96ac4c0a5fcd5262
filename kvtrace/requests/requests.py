"""Requests: the columns that every source fills, which wait for which others, and the limits that sources share."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvtrace.core.errors import ConfigError

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
        return Start(path, file.read(_START_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip())


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
