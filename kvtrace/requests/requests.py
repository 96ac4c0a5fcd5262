"""Requests: the columns that all sources fill, and the waits of requests for each other.

In a closed loop, a turn arrives a pause after the simulated answer before it, instead of at its
recorded time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final, Self, TypedDict, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from kvtrace.core import pa, pc, pl
from kvtrace.core.errors import ConfigError, TraceError, refuse
from kvtrace.core.json_types import JsonObject
from kvtrace.core.notebook import html_table
from kvtrace.core.parameters import named as named_parameter
from kvtrace.core.schema import REQUESTS, RequestKind, arrow_schema, batch_of, enum_code
from kvtrace.core.units import format_duration
from kvtrace.requests.block_ids import prefix_chains
from kvtrace.requests.int_columns import NONE, Ints, dense, offsets_of, runs_of, shifted
from kvtrace.requests.notes import counted

MAX_TOKENS: Final = 2**31 - 1
# About 73 years: figures computed from times still fit 64 bits.
MAX_NS: Final = 2**61
MAX_CLOCK_NS: Final = 2**63 - 1
"""The latest time in a file, in ns since 1970."""
# Chunks smaller than a block are numbered within it, and that product must fit 64 bits.
MAX_BLOCK_ID: Final = 2**52
BATCH_ROWS = 1 << 16
_IN_MEMORY = Path("table in memory")


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


def dense_sessions(sessions: Ints) -> Ints:
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
        offsets = offsets_of(lengths)
        chains = prefix_chains(source_ids.astype(np.int64), offsets)
        ids, notes = chains.ids, chains.notes()
    checked = columns | {
        "request_id": np.arange(count),
        "session_id": np.full(count, NONE) if sessions is None else sessions,
    }
    check_columns(checked, offsets, block_tokens, _IN_MEMORY)
    numbered = None if sessions is None else dense_sessions(sessions)
    turns = None if numbered is None else turns_of(numbered)
    return Requests(
        columns["arrival_ns"],
        columns["input_tokens"],
        columns["output_tokens"],
        offsets,
        ids,
        block_tokens,
        {"kind": "memory", "requests": count, "block_tokens": block_tokens or None},
        tuple(notes),
        session_id=numbered,
        turn=turns,
    )


def _integers(table: pa.Table, name: str) -> Ints:
    """Return a column of a user's table as int64."""
    values = table.column(name).combine_chunks()
    if not pa.types.is_integer(values.type) or values.null_count:
        raise ConfigError(f"column {name}: must hold integers, and no nulls")
    return np.asarray(values.cast(pa.int64()).to_numpy(zero_copy_only=False), np.int64)
