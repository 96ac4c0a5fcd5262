"""Published request traces: CSVs of Azure and BurstGPT, Qwen-Bailian, and clients of ServeGen.

Azure and BurstGPT differ in the names of their columns, which are read as Arrow columns. Errors have
file, line and column.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvtrace.core import pa
from kvtrace.core.arrays import Array
from kvtrace.core.csv_tables import read_csv
from kvtrace.core.errors import ConfigError, TraceError, need_file, refuse
from kvtrace.core.files import decode_json, read_json
from kvtrace.core.json_types import JsonObject
from kvtrace.core.parameters import named
from kvtrace.core.schema import numbers
from kvtrace.core.text import open_utf8, read_bounded, utf8_lines
from kvtrace.core.units import NS_PER_S
from kvtrace.requests.int_columns import NONE, Ints, dense
from kvtrace.requests.json_lines import BlockId, Count, JsonLines, Seconds
from kvtrace.requests.notes import backwards_notes, counted
from kvtrace.requests.request_collector import RequestCollector
from kvtrace.requests.requests import (
    MAX_NS,
    MAX_TOKENS,
    Requests,
    Waits,
    origin_of,
    successive,
    turns_of,
    with_history_note,
    without_blocks,
)
from kvtrace.requests.source_files import Start, files_of, sha256_of, source

# The first data row is on line 2.
FIRST_LINE = 2
_BLOCK_BYTES = 4 << 20
_MAX_S = 2**31
_NO_SESSIONS = (
    "the source has no sessions, turns or block ids: they are null, and no request reuses another's"
    " cache"
)


@dataclass(frozen=True, slots=True)
class Columns:
    """A CSV source, by the names of its columns; a name is empty if the source lacks the column.

    A new source needs one of these, and a Source in the registry that names it.
    """

    kind: str
    time: str
    input: str
    output: str
    is_seconds: bool = False
    """Whether times are seconds from a start, and not dates."""
    files: str = ""
    """Pattern of files that are merged on one clock; empty if the source reads single files."""
    session: str = ""
    images: str = ""
    total: str = ""
    """Sum of input and output tokens, as the source gives it."""
    unused: tuple[str, ...] = ()
    has_failures: bool = False
    """Whether a row without output tokens is a request that failed, which is dropped."""

    def is_own(self, start: Start) -> bool:
        """Return whether the file has this source's columns of arrival and lengths."""
        return start.columns >= {self.time, self.input, self.output}

    def read(self, path: Path) -> Requests:
        """Return the requests of the file at `path`, or of the files of a directory or glob, by name.

        Prompts of one session are assumed to carry their history. Rows out of order are sorted, and
        counted in the notes. TraceError if a column is missing, a cell is empty or does not fit,
        only some dates have a zone, or all requests failed.
        """
        tables = [
            self._table(file) for file in (files_of(path, self.files) if self.files else [path])
        ]
        times, inputs, outputs = (
            np.concatenate(column_parts)
            for column_parts in zip(*map(self._counts, tables), strict=True)
        )
        order = np.argsort(times, kind="stable")
        facts: JsonObject = {"out_of_order": int(np.count_nonzero(np.diff(times) < 0))}
        facts["files"] = [table.path.name for table in tables]
        if self.has_failures:
            order = order[outputs[order] > 0]
            facts["failures"] = len(times) - len(order)
            if not len(order):
                raise TraceError(f"holds no request that succeeded ({self.output} > 0)", path=path)
        if int(times[order[-1]]) - int(times[order[0]]) > MAX_NS:
            raise TraceError(
                "its times span more than a trace's clock can hold", path=path, column=self.time
            )
        arrivals, prompts, answers = times[order] - times[order[0]], inputs[order], outputs[order]
        sessions = _session_numbers(tables, self.session)
        if sessions is not None:
            sessions = sessions[order]
            sessions[sessions != NONE] = dense(sessions[sessions != NONE])[0]
        facts["conversations"] = None if sessions is None else int(sessions.max()) + 1
        images = [
            int(table.arrays[self.images].fill_null(0).to_numpy().sum())
            for table in tables
            if self.images in table.arrays
        ]
        wrong_totals = sum(
            int(
                np.count_nonzero(
                    numbers(table.arrays[self.total])
                    != table.tokens(self.input) + table.tokens(self.output)
                )
            )
            for table in tables
            if self.total in table.arrays
        )
        unknown = sorted(
            {name for table in tables for name in table.unread if name not in self.unused}
        )
        facts |= {
            "images": sum(images) if images else None,
            "wrong_totals": wrong_totals,
            "unknown_columns": unknown,
        }
        after, before = successive(sessions)
        shorter_prompts = np.count_nonzero(prompts[after] < prompts[before] + answers[before])
        notes = self._notes(facts, int(shorter_prompts))
        origin = origin_of(
            self.kind,
            path,
            sha256_of(*(table.path for table in tables)),
            len(order),
            0,
            **facts,
        )
        turns = None if sessions is None else turns_of(sessions)
        return without_blocks(
            arrivals, prompts, answers, origin, tuple(notes), session_id=sessions, turn=turns
        )

    def _table(self, path: Path) -> ColumnsRead:
        names = header_of(path)
        if missing := [name for name in (self.time, self.input, self.output) if name not in names]:
            problem = (
                f"the header has no {' nor '.join(map(repr, missing))}; it reads"
                f" {','.join(names)[:200]}"
            )
            raise TraceError(problem, path=path, row=1)
        if duplicates := [name for name in names if name and names.count(name) > 1]:
            raise TraceError(f"the header names {duplicates[0]!r} twice", path=path, row=1)
        zone = "UTC" if not self.is_seconds and _has_zone(path, names.index(self.time)) else None
        required = {self.time: pa.float64() if self.is_seconds else pa.timestamp("ns", zone)}
        required |= dict.fromkeys((self.input, self.output), pa.int64())
        optional = dict.fromkeys((self.images, self.total), pa.int64()) | {
            self.session: pa.string()
        }
        types = required | {name: kind for name, kind in optional.items() if name and name in names}
        frame = read_csv(
            open_utf8(path), names, types, path, 1, skip_rows=1, block_size=_BLOCK_BYTES
        )
        if not frame.num_rows:
            raise TraceError("holds no request", path=path)
        arrays = {name: frame.column(name) for name in types}
        columns = ColumnsRead(path, arrays, tuple(n for n in names if n not in types))
        for name in required:
            is_empty = columns.arrays[name].is_null().to_numpy()
            refuse(
                is_empty,
                "empty, but it must have a value",
                path=path,
                column=name,
                first_row=FIRST_LINE,
            )
        return columns

    def _counts(self, table: ColumnsRead) -> tuple[Ints, Ints, Ints]:
        """Return arrivals on the file's clock, and tokens of prompts and answers."""
        tokens = table.tokens(self.input), table.tokens(self.output)
        if not self.is_seconds:
            return table.arrays[self.time].cast(pa.int64()).to_numpy(), *tokens
        seconds = table.arrays[self.time].to_numpy()
        # Not a number fails every comparison.
        table.refuse(
            self.time,
            ~((seconds >= 0) & (seconds <= _MAX_S)),
            seconds,
            f"must be from 0 to {_MAX_S} seconds",
        )
        return np.rint(seconds * NS_PER_S).astype(np.int64), *tokens

    def _notes(self, facts: JsonObject, shorter: int) -> list[str]:
        of_sessions = (
            f"the source has no block ids: prompts of one {self.session} are assumed to carry their"
            " history"
        )
        notes = [_NO_SESSIONS if facts["conversations"] is None else of_sessions]
        notes += counted(
            (
                shorter,
                "later prompts are shorter than the turn before them, so they cannot carry it fully",
            )
        )
        if facts["images"] is not None:
            treatment = (
                f"are not simulated beyond the source's own {self.input}, whose image share is"
                " unknown"
            )
            notes.append(f"{facts['images']} images {treatment}")
        notes += counted(
            (facts.get("failures", 0), "failed requests (no response tokens) were dropped")
        )
        if (files := len(facts["files"])) > 1:
            notes.append(f"{files} files were merged on one clock, seconds from the first day")
        notes += backwards_notes(facts["out_of_order"])
        notes += counted(
            (facts["wrong_totals"], "rows have a total that is not request plus response tokens")
        )
        if facts["unknown_columns"]:
            notes.append(f"unknown columns were not read: {', '.join(facts['unknown_columns'])}")
        return notes


azure = Columns("azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens", images="NumImages")
"""Azure LLM inference CSVs (2023, 2024, multimodal 2025).

Arrival and lengths, no conversations and no ids.
"""
burstgpt = Columns(
    *("burstgpt", "Timestamp", "Request tokens", "Response tokens", True, "*.csv", "Session ID"),
    total="Total tokens",
    unused=("Elapsed time", "Model", "Log Type"),
    has_failures=True,
)
"""BurstGPT CSVs.

Arrival and lengths in whole seconds; newer files also name sessions. No block ids.
"""


def _has_zone(path: Path, index: int) -> bool:
    """Return whether the first cell of the column `index` of the CSV at `path` has a zone, as
    `+00:00` or `Z`.
    """
    lines = utf8_lines(path)
    next(lines, b"")
    cells = next(lines, b"")[: 1 << 16].decode(errors="replace").split(",")
    # The date has dashes of its own.
    clock = cells[index].strip().strip('"')[10:] if index < len(cells) else ""
    return clock.endswith("Z") or "+" in clock or "-" in clock


def _session_numbers(tables: Sequence[ColumnsRead], name: str) -> Ints | None:
    """Return a number for each session of all files together, NONE where a row has none.

    None if no row has one.
    """
    if not any(name in table.arrays for table in tables):
        return None
    rows = (
        pa.nulls(len(table), pa.string())
        if name not in table.arrays
        else table.arrays[name].combine_chunks()
        for table in tables
    )
    codes = pa.chunked_array(list(rows), pa.string()).combine_chunks().dictionary_encode().indices
    numbers: Ints = codes.fill_null(NONE).to_numpy(zero_copy_only=False).astype(np.int64)
    return None if (numbers == NONE).all() else numbers


BLOCK_TOKENS = 16
ROOT = -1
TYPES = ("text", "search", "image", "file", "api", "thinking", "coder")


class _Chat(msgspec.Struct):
    chat_id: int
    timestamp: Seconds
    input_length: Count
    output_length: Count
    hash_ids: list[BlockId] | None = None
    parent_chat_id: int = ROOT
    type: str = "text"
    turn: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] = 1


@source(lambda start: start.is_json_with("timestamp", "input_length", "chat_id"))
def bailian(path: Path, *, block_tokens: int = BLOCK_TOKENS) -> Requests:
    """Return the requests of the Qwen-Bailian JSONL file at `path`; its times are seconds.

    A conversation is a tree of chats by `parent_chat_id`; turns are counted from 0, as the file's
    `turn` less 1. Prompts have ids for all their blocks, or for whole blocks only. In a file without
    ids prompts share a prefix only within a conversation. TraceError if a line is not such an object,
    its ids do not fit its length, a chat is there twice, or time goes backwards.

    Qwen-Bailian JSONL request traces (Alibaba, ATC'25): conversations by parent links, and 16-token
    block ids.
    """
    lines, gathered, latest_ns = (
        JsonLines(path, _Chat),
        RequestCollector(has_numbers=True),
        0,
    )
    chats: dict[int, tuple[int, int, int]] = {}
    """Row, conversation and time of each chat."""
    waits: list[tuple[int, int, int, bool]] = []
    types, conversations, orphans = Counter[str](), 0, 0
    with_ids = without_ids = branches = 0
    parents: set[int] = set()
    for number, line in lines:
        time_ns = round(line.timestamp * NS_PER_S)
        if time_ns < latest_ns:
            times_text = f"from {latest_ns / NS_PER_S:g} to {line.timestamp:g} s"
            raise lines.fault(
                f"time goes backwards, {times_text}; sort the file by timestamp",
                number,
                "timestamp",
            )
        latest_ns = time_ns
        if line.hash_ids is None:
            without_ids += 1
        else:
            with_ids += 1
            lines.check_ids(len(line.hash_ids), line.input_length, block_tokens, number)
        if line.chat_id in chats:
            raise lines.fault(f"chat {line.chat_id} appears twice", number, "chat_id")
        types[line.type] += 1
        parent = None if line.parent_chat_id == ROOT else chats.get(line.parent_chat_id)
        if parent is None:
            orphans += line.parent_chat_id != ROOT
            session, conversations = conversations, conversations + 1
        else:
            before, session, parent_ns = parent
            branches += line.parent_chat_id in parents
            parents.add(line.parent_chat_id)
            waits.append((len(gathered), before, time_ns - parent_ns, False))
        chats[line.chat_id] = len(gathered), session, time_ns
        gathered.add(
            time_ns,
            line.input_length,
            line.output_length,
            line.hash_ids or (),
            session,
            turn=line.turn - 1,
            row=number,
        )
    facts = {
        "conversations": conversations,
        "orphans": orphans,
        "types": dict(sorted(types.items())),
    }
    unknown = sorted(name for name in types if name not in TYPES)
    treatment = "each starts a new conversation here, and keeps its turn number"
    notes = counted(
        (orphans, f"requests name a parent that is not before them in the file: {treatment}"),
        (
            sum(types[name] for name in unknown),
            f"requests are of unknown types: {', '.join(unknown)}",
        ),
    )
    if with_ids:
        notes += counted((without_ids, "requests have no hash_ids"))
    elif without_ids:
        block_tokens = 0
        notes.append(
            "the file has no hash_ids: prompts of one conversation are assumed to carry its history"
        )
        notes += counted(
            (branches, "chats branch off an earlier one, and are taken as its conversation's turns")
        )
    requests = gathered.build_requests("bailian", path, lines.sha256, block_tokens, notes, **facts)
    if not block_tokens:
        requests = with_history_note(requests)
    return replace(requests, waits=Waits.of(len(requests), waits))


_CLIENTS = "chunk-*-trace.csv"
_NUMBERED = re.compile(rb"(?<![0-9.e+-])([0-9.e+-]++):")
"""A number before a colon; it begins where no number does, so that each is looked at once."""
_LAWS = {"Gamma": 1e-4, "Weibull": 1e-2}  # with the smallest shape that can be sampled
_MOST_REQUESTS = 10**8
_ROUNDED = 1e-3


@source(lambda start: fnmatch(start.path.name, _CLIENTS))
def servegen(
    path: Path,
    rng: np.random.Generator,
    *,
    time_window_ns: tuple[int, int] = (0, 600 * NS_PER_S),
    request_rate_per_s: float | None = None,
) -> Requests:
    """Return requests sampled from the clients in the directory at `path`, in a window of their days.

    Each client is a renewal process: in each stretch of its file, mostly 10 minutes, intervals have
    its law and mean, and lengths its latest histograms. `request_rate_per_s` scales all clients
    alike. TraceError if there is no client, a line or histogram is invalid, or no request falls in
    the window.

    ServeGen's clients (Alibaba): a directory of `chunk-N-trace.csv` and `chunk-N-dataset.json`,
    language and reasoning. A client has request rates over time, a law of intervals, and histograms
    of lengths, from which requests are sampled.
    """
    if request_rate_per_s is not None and request_rate_per_s <= 0:
        raise ConfigError(f"request rate(={request_rate_per_s:g}) must be > 0 a second")
    start_ns, length_ns = time_window_ns
    begin_s, end_s = start_ns / NS_PER_S, (start_ns + length_ns) / NS_PER_S
    traces = sorted(files_of(path, _CLIENTS), key=lambda file: (len(file.name), file.name))
    datasets = {
        trace: trace.with_name(trace.name.replace("-trace.csv", "-dataset.json"))
        for trace in traces
    }
    stretches: list[tuple[float, float, float, str, float, list[tuple[Array, Array]] | None]] = []
    for trace in traces:
        client_stretches = list(_stretches(trace, begin_s, end_s))
        histograms = _histograms(datasets[trace]) if client_stretches else {}
        stretches += [
            (
                *stretch,
                histograms.get(
                    max(
                        (from_second for from_second in histograms if from_second <= stretch[0]),
                        default=-1,
                    )
                ),
            )
            for stretch in client_stretches
        ]
    if not stretches:
        raise TraceError(
            f"its {len(traces)} clients have no requests from {begin_s:g} to {end_s:g} s", path=path
        )
    usable = [stretch for stretch in stretches if stretch[-1] is not None]
    mean_per_s = sum(rate * (end - begin) for begin, end, rate, *_ in usable) / (end_s - begin_s)
    factor = request_rate_per_s / mean_per_s if request_rate_per_s is not None and usable else 1.0
    if mean_per_s * factor * (end_s - begin_s) > _MOST_REQUESTS:
        raise TraceError(
            f"more than {_MOST_REQUESTS} requests in the window: use a shorter"
            f" {named('time_window')}",
            path=path,
        )
    sampled_parts: list[tuple[NDArray[np.float64], Ints, Ints]] = []
    for begin, end, rate, law, shape, lengths in usable:
        assert lengths is not None  # only these are usable
        times = begin + _renewals(rng, rate * factor, end - begin, law, shape)
        lengths_sampled = [rng.choice(values, len(times), p=shares) for values, shares in lengths]
        sampled_parts.append((times, lengths_sampled[0], lengths_sampled[1]))
    if not sum(len(times) for times, *_ in sampled_parts):
        raise TraceError(
            f"no request was sampled in the window: use a longer {named('time_window')}, or"
            " another seed",
            path=path,
        )
    times, inputs, outputs = (np.concatenate(column) for column in zip(*sampled_parts, strict=True))
    order = np.argsort(times, kind="stable")
    arrivals = np.rint((times[order] - begin_s) * NS_PER_S).astype(np.int64)
    files = [file for trace in traces for file in (trace, datasets[trace]) if file.exists()]
    facts = {
        "clients": len(traces),
        "time_window_ns": [start_ns, length_ns],
        "request_rate_per_s": mean_per_s * factor,
    }
    unusable_count = len(stretches) - len(usable)
    notes = [
        (
            f"the source has rates, laws and histograms of {len(traces)} clients: times and lengths"
            " are sampled"
        ),
        "it has no joint distribution of prompts and answers: lengths are sampled independently",
        _NO_SESSIONS,
        *counted(
            (unusable_count, "stretches of clients without histograms of lengths are omitted")
        ),
    ]
    origin = origin_of("servegen", path, sha256_of(*files), len(order), 0, **facts)
    prompts, answers = inputs[order].astype(np.int64), outputs[order].astype(np.int64)
    return without_blocks(arrivals - arrivals[0], prompts, answers, origin, tuple(notes))


def _stretches(
    path: Path, begin_s: float, end_s: float
) -> Iterator[tuple[float, float, float, str, float]]:
    """Yield the stretches of a client within the window.

    A stretch has begin, end, requests a second, law of intervals, and its shape.
    """
    need_file(path)
    rows: list[tuple[float, float, str, float]] = []
    for number, line in enumerate(read_bounded(path).decode(errors="replace").splitlines(), 1):
        cells = line.strip().split(",")
        try:
            start_s, rate, _, shape, _ = (float(cells[position]) for position in (0, 1, 2, 4, 5))
        except (ValueError, IndexError):
            raise TraceError(
                "expected start, rate, cv, law and its two parameters", path=path, row=number
            ) from None
        law = cells[3]
        is_wrong = not 0 <= rate < math.inf or (
            law and not _LAWS.get(law, math.inf) <= shape < math.inf
        )
        if is_wrong or not (rows[-1][0] if rows else -1) < start_s <= _MAX_S:
            raise TraceError(
                f"{','.join(cells)[:80]!r} is not a stretch of a client", path=path, row=number
            )
        rows.append((start_s, rate if law else 0.0, law, shape))
    # The last stretch is as long as the one before it.
    ends = [row[0] for row in rows[1:]] + [
        2 * rows[-1][0] - rows[-2][0] if len(rows) > 1 else math.inf
    ]
    for (start_s, rate, law, shape), next_s in zip(rows, ends, strict=False):
        if rate and max(start_s, begin_s) < min(next_s, end_s):
            yield max(start_s, begin_s), min(next_s, end_s), rate, law, shape


def _histograms(path: Path) -> dict[int, list[tuple[Array, Array]]]:
    """Return a client's histograms by the second from which they apply.

    Each is values and shares of prompts, and of answers.
    """
    histograms = {}
    for start_s, fields in read_json(path, dict[int, dict[str, str]]).items():
        pair = []
        for name in ("input_tokens", "output_tokens"):
            if name not in fields:
                problem = f"no {name} but {', '.join(fields)}: requests with images are not read"
                raise TraceError(problem, path=path, column=str(start_s))
            text = _NUMBERED.sub(rb'"\1":', fields[name].encode())
            shares_by_length = decode_json(
                text, dict[int, float], path, misfit=f"{name} at {start_s} is no histogram: {{}}"
            )
            if max(map(abs, shares_by_length), default=0) > MAX_TOKENS:
                raise TraceError(
                    f"{name} at {start_s} is no histogram of tokens", path=path, column=str(start_s)
                )
            values, shares = (
                np.array(list(shares_by_length), dtype=np.int64),
                np.array(list(shares_by_length.values())),
            )
            is_valid = len(shares_by_length) == 0 or bool(
                shares.min() >= 0 and np.isclose(shares.sum(), 1, atol=_ROUNDED)
            )
            if not is_valid or values.min(initial=0) < 0 or values.max(initial=0) > MAX_TOKENS:
                raise TraceError(
                    f"{name} at {start_s} is no histogram of tokens", path=path, column=str(start_s)
                )
            pair.append((values, shares / shares.sum() if len(shares_by_length) else shares))
        if all(len(values) for values, _ in pair):
            histograms[start_s] = pair
    return histograms


def _renewals(
    rng: np.random.Generator, rate_per_s: float, length_s: float, law: str, shape: float
) -> NDArray[np.float64]:
    """Return the times of a stationary renewal process with intervals of `law` over `length_s`.

        first time = uniform share of a length-biased interval (the one at a random moment)
        later times = previous time + interval

    So the expected rate is exact over any window; a process that starts with an arrival has more
    arrivals if it is bursty. Source: renewal theory (Cox, Renewal Theory, 1962).
    """
    mean, sample = (
        (shape, rng.gamma) if law == "Gamma" else (math.gamma(1 + 1 / shape), rng.weibull)
    )
    # A length-biased interval: a random moment falls into long ones more often.
    residual = rng.gamma(shape + 1) if law == "Gamma" else rng.gamma(1 + 1 / shape) ** (1 / shape)
    times = np.array([rng.random() * residual / (mean * rate_per_s)])
    while times[-1] < length_s:
        count = int(rate_per_s * (length_s - times[-1]) * 1.1) + 16
        times = np.append(
            times, times[-1] + np.cumsum(sample(shape, size=count)) / (mean * rate_per_s)
        )
    return times[times < length_s]


@dataclass(frozen=True, slots=True)
class ColumnsRead:
    """The columns read from one file as Arrow chunked arrays, and the names of unread columns."""

    path: Path
    arrays: dict[str, pa.ChunkedArray]
    unread: tuple[str, ...]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(next(iter(self.arrays.values())))

    def tokens(self, name: str) -> Ints:
        """Return the token counts of column `name`; TraceError if one is negative or too large."""
        values: Ints = self.arrays[name].to_numpy()
        self.refuse(
            name,
            (values < 0) | (values > MAX_TOKENS),
            values,
            f"must be from 0 to {MAX_TOKENS} tokens",
        )
        return values

    def refuse(self, name: str, is_wrong: Array, values: Array, reason: str) -> None:
        """Raise TraceError for the first row of column `name` that `is_wrong`, a boolean array."""
        refuse(
            is_wrong, f"{{}} {reason}", values, path=self.path, column=name, first_row=FIRST_LINE
        )


def header_of(path: Path) -> list[str]:
    """Return the names in the first line of the CSV at `path`.

    TraceError if it is empty or not text.
    """
    need_file(path)
    line = next(utf8_lines(path), b"")[: 1 << 16]
    if not line.strip():
        raise TraceError("empty: it has no header", path=path)
    header = line.decode(errors="replace").strip()
    if "\ufffd" in header:
        raise TraceError("not a text file", path=path, row=1)
    names = header.split(",")
    return [name.strip().strip('"') for name in names]
