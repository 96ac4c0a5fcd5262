"""Published request traces whose columns or fields become ours one by one: Azure, BurstGPT and Qwen-Bailian.

CSVs are read by column name as Arrow columns, each error placed by file, line and column.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from kvtrace.core.errors import TraceError, need_file, refuse
from kvtrace.core.tables import csv_fault
from kvtrace.core.units import NS_PER_S
from kvtrace.requests.requests import (
    MAX_NS,
    MAX_TOKENS,
    NONE,
    BlockId,
    Count,
    Gathered,
    Ints,
    JsonLines,
    Requests,
    Seconds,
    SourceFormat,
    Waits,
    backwards_notes,
    dense,
    origin_of,
    sha256_of,
    turns_of,
    without_blocks,
)

# The first data row is on line 2.
FIRST_LINE = 2
_BLOCK_BYTES = 4 << 20


class Columns(NamedTuple):
    """What the columns of arrival and lengths are called in a CSV: its header has all three."""

    time: str
    input: str
    output: str


_AZURE = Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_IMAGES = "NumImages"
_NO_SESSIONS = "the source has no sessions, turns or block ids: they are null, and no request reuses another's cache"


def _read_azure(path: Path) -> Requests:
    """Return the requests of the Azure CSV at `path`: times with or without a fraction, with or without a zone.

    Rows out of order are sorted, and counted in the notes.

    Raises:
        TraceError: a column is missing, a cell is empty or does not fit, or some times have a zone and some none.

    """
    import pyarrow as pa

    zone = "UTC" if _has_zone(path) else None
    table = read_columns(
        path,
        {_AZURE.time: pa.timestamp("ns", zone), _AZURE.input: pa.int64(), _AZURE.output: pa.int64()},
        {_IMAGES: pa.int64()},
    )
    times = table.arrays[_AZURE.time].cast(pa.int64()).to_numpy()
    inputs, outputs = table.tokens(_AZURE.input), table.tokens(_AZURE.output)
    order, backwards = in_time_order(times)
    times, inputs, outputs = times[order], inputs[order], outputs[order]
    if int(times[-1]) - int(times[0]) > MAX_NS:
        raise TraceError("its times span more than a trace's clock can hold", path=path, column=_AZURE.time)
    images = int(np.nansum(table.arrays[_IMAGES].to_numpy())) if _IMAGES in table.arrays else None
    facts = {"images": images, "out_of_order": backwards, "unknown_columns": list(table.others)}
    origin = origin_of("azure", path, sha256_of(path), len(times), 0, **facts)
    return without_blocks(times - times[0], inputs, outputs, origin, _azure_notes(images, backwards, table.others))


def _has_zone(path: Path) -> bool:
    """Return whether the first time of the CSV at `path` has a zone, as `+00:00` or `Z`."""
    names = header_of(path)
    if _AZURE.time not in names:
        return False
    with path.open("rb") as file:
        file.readline()
        cells = file.readline(1 << 16).decode(errors="replace").split(",")
    index = names.index(_AZURE.time)
    # The date has dashes of its own.
    clock = cells[index].strip().strip('"')[10:] if index < len(cells) else ""
    return clock.endswith("Z") or "+" in clock or "-" in clock


def _azure_notes(images: int | None, backwards: int, unknown: tuple[str, ...]) -> tuple[str, ...]:
    notes = [_NO_SESSIONS]
    if images is not None:
        notes.append(
            f"{images} images are not simulated beyond the source's own ContextTokens, whose image share is unknown"
        )
    return (*notes, *backwards_notes(backwards), *_unknown_notes(unknown))


def _unknown_notes(columns: Sequence[str]) -> list[str]:
    return [f"unknown columns were not read: {', '.join(columns)}"] if columns else []


azure = SourceFormat(_read_azure, lambda start: start.columns >= set(_AZURE))
"""Azure LLM inference CSVs (2023, 2024, multimodal 2025): arrival and lengths, no conversations and no ids."""
_BURSTGPT = Columns("Timestamp", "Request tokens", "Response tokens")
_SESSION, _TOTAL = "Session ID", "Total tokens"
_UNUSED = ("Elapsed time", "Model", "Log Type")
_MAX_S = 2**31
_GLOB = "*?["


def _read_burstgpt(path: Path) -> Requests:
    """Return the requests of the BurstGPT CSV at `path`, or of all that a directory or a glob names, by name.

    Failures (no response tokens) are dropped and counted. Several files share one clock, and are merged by time.
    Prompts of one `Session ID` are taken to carry their history.

    Raises:
        TraceError: a column is missing, a cell is empty or does not fit, or nothing but failures is left.

    """
    import pyarrow as pa

    paths = files_of(path)
    required = {_BURSTGPT.time: pa.float64(), _BURSTGPT.input: pa.int64(), _BURSTGPT.output: pa.int64()}
    tables = [read_columns(p, required, {_SESSION: pa.string(), _TOTAL: pa.int64()}) for p in paths]
    times = np.concatenate([_burstgpt_times(t) for t in tables])
    inputs = np.concatenate([t.tokens(_BURSTGPT.input) for t in tables])
    outputs = np.concatenate([t.tokens(_BURSTGPT.output) for t in tables])
    named = _session_names(tables)
    kept, backwards = in_time_order(times)
    kept = kept[outputs[kept] > 0]
    if not len(kept):
        raise TraceError(f"holds no request that succeeded ({_BURSTGPT.output} > 0)", path=path)
    unknown = sorted({n for t in tables for n in t.others if n not in _UNUSED})
    counts = {
        "failures": len(times) - len(kept),
        "out_of_order": backwards,
        "unknown_columns": unknown,
        "wrong_totals": sum(_wrong_totals(t) for t in tables),
    }
    sessions = turns = None
    if named is not None:
        sessions = named[kept]
        sessions[sessions != NONE] = dense(sessions[sessions != NONE])[0]
        turns = turns_of(sessions)
    shorter = 0 if sessions is None else _without_history(sessions, inputs[kept], outputs[kept])
    facts = {
        "files": [p.name for p in paths],
        "conversations": None if sessions is None else int(sessions.max()) + 1,
        **counts,
    }
    origin = origin_of("burstgpt", path, sha256_of(*paths), len(kept), 0, **facts)
    first = times[kept[0]]
    tokens, notes = (inputs[kept], outputs[kept]), _burstgpt_notes(counts, len(paths), sessions, shorter)
    return without_blocks(times[kept] - first, *tokens, origin, notes, session_id=sessions, turn=turns)


def files_of(path: Path) -> list[Path]:
    """Return the CSVs that `path` names: itself, those in it, or those it matches; TraceError if there is none."""
    if path.is_dir():
        found = sorted(path.glob("*.csv"))
    elif any(c in path.name for c in _GLOB) and not path.exists():
        found = sorted(p for p in path.parent.glob(path.name) if p.is_file())
    else:
        need_file(path)
        return [path]
    if not found:
        raise TraceError("no CSV file there", path=path)
    return found


def _burstgpt_times(table: CsvColumns) -> Ints:
    seconds = table.arrays[_BURSTGPT.time].to_numpy()
    # Not a number fails every comparison.
    table.refuse(
        _BURSTGPT.time, ~((seconds >= 0) & (seconds <= _MAX_S)), seconds, f"must be from 0 to {_MAX_S} seconds"
    )
    nanoseconds: Ints = np.rint(seconds * NS_PER_S).astype(np.int64)
    return nanoseconds


def _wrong_totals(table: CsvColumns) -> int:
    if _TOTAL not in table.arrays:
        return 0
    sums = table.arrays[_BURSTGPT.input].to_numpy() + table.arrays[_BURSTGPT.output].to_numpy()
    return int(np.count_nonzero(table.arrays[_TOTAL].to_numpy() != sums))


def _session_names(tables: list[CsvColumns]) -> Ints | None:
    """Return a number for each session name of all files together, NONE where a row has none; None if none has."""
    import pyarrow as pa

    if not any(_SESSION in t.arrays for t in tables):
        return None
    chunks: list[Any] = []
    for table in tables:
        rows = len(table.arrays[_BURSTGPT.time])
        chunks.extend(table.arrays[_SESSION].chunks if _SESSION in table.arrays else [pa.nulls(rows, pa.string())])
    codes = pa.chunked_array(chunks, pa.string()).combine_chunks().dictionary_encode().indices
    numbers: Ints = codes.fill_null(NONE).to_numpy(zero_copy_only=False).astype(np.int64)
    return None if (numbers == NONE).all() else numbers


def _without_history(sessions: Ints, inputs: Ints, outputs: Ints) -> int:
    """Return how many later prompts of a session are shorter than the prompt and answer before them."""
    order = np.argsort(sessions, kind="stable")
    order = order[sessions[order] != NONE]
    before, after = order[:-1], order[1:]
    same = sessions[before] == sessions[after]
    return int(np.count_nonzero(same & (inputs[after] < inputs[before] + outputs[before])))


def _burstgpt_notes(counts: dict[str, Any], files: int, sessions: Ints | None, shorter: int) -> tuple[str, ...]:
    notes = []
    if sessions is None:
        notes.append(_NO_SESSIONS)
    else:
        notes.append(
            "the source has no block ids: prompts of one Session ID are taken to carry their history, "
            "which the source does not say"
        )
        if shorter:
            notes.append(f"{shorter} later prompts are shorter than the turn before them: they cannot carry it all")
    if counts["failures"]:
        notes.append(f"{counts['failures']} failed requests (no response tokens) were dropped")
    if files > 1:
        notes.append(f"{files} files were merged on one clock, seconds from the first day")
    notes += backwards_notes(counts["out_of_order"])
    if counts["wrong_totals"]:
        notes.append(f"{counts['wrong_totals']} rows have a total that is not request plus response tokens")
    return (*notes, *_unknown_notes(counts["unknown_columns"]))


burstgpt = SourceFormat(_read_burstgpt, lambda start: start.columns >= set(_BURSTGPT))
"""BurstGPT CSVs: arrival and lengths in whole seconds; newer files also name sessions. No block ids."""
BLOCK_TOKENS = 16
ROOT = -1
TYPES = ("text", "search", "image", "file", "thinking")


class _Chat(msgspec.Struct):
    chat_id: int
    timestamp: Seconds
    input_length: Count
    output_length: Count
    hash_ids: list[BlockId]
    parent_chat_id: int = ROOT
    type: str = "text"
    turn: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] = 1


def _read_bailian(path: Path, *, block_tokens: int = BLOCK_TOKENS) -> Requests:
    """Return the requests of the Qwen-Bailian JSONL file at `path`; its times are seconds.

    A conversation is a tree of chats by `parent_chat_id`; turns are counted from 0, as the file's `turn` less 1.
    Prompts have ids for all their blocks, or for whole blocks only.

    Raises:
        TraceError: a line is not such an object, its ids do not fit its length, a chat is there twice, or time
            goes backwards.

    """
    lines, found, latest_ns = JsonLines(path, _Chat), Gathered(has_numbers=True), 0
    chats: dict[int, tuple[int, int, int]] = {}
    """Of each chat its row, conversation and time."""
    waits: list[tuple[int, int, int, bool]] = []
    types, conversations, orphans = Counter[str](), 0, 0
    for number, line in lines:
        time_ns = round(line.timestamp * NS_PER_S)
        if time_ns < latest_ns:
            when = f"from {latest_ns / NS_PER_S:g} to {line.timestamp:g} s"
            raise lines.fault(f"time goes backwards, {when}; sort the file by timestamp", number, "timestamp")
        latest_ns = time_ns
        lines.check_ids(len(line.hash_ids), line.input_length, block_tokens, number)
        if line.chat_id in chats:
            raise lines.fault(f"chat {line.chat_id} appears twice", number, "chat_id")
        types[line.type] += 1
        parent = None if line.parent_chat_id == ROOT else chats.get(line.parent_chat_id)
        if parent is None:
            orphans += line.parent_chat_id != ROOT
            session, conversations = conversations, conversations + 1
        else:
            before, session, asked_ns = parent
            waits.append((len(found), before, time_ns - asked_ns, False))
        chats[line.chat_id] = len(found), session, time_ns
        found.add(time_ns, line.input_length, line.output_length, line.hash_ids, session, turn=line.turn - 1)
    facts = {"conversations": conversations, "orphans": orphans, "types": dict(sorted(types.items()))}
    notes = _bailian_notes(orphans, types)
    requests = found.requests("bailian", path, lines.sha256, block_tokens, notes, **facts)
    return replace(requests, waits=Waits.of(len(requests), waits))


def _bailian_notes(orphans: int, types: Counter[str]) -> list[str]:
    notes = []
    if orphans:
        notes.append(
            f"{orphans} requests name a parent that is not before them in the file: each starts a "
            "conversation of its own here, and keeps its turn number"
        )
    unknown = [name for name in types if name not in TYPES]
    if unknown:
        notes.append(f"{sum(types[n] for n in unknown)} requests are of unknown types: {', '.join(sorted(unknown))}")
    return notes


bailian = SourceFormat(_read_bailian, lambda start: start.is_json_with("timestamp", "hash_ids", "chat_id"))
"""Qwen-Bailian JSONL request traces (Alibaba, ATC'25): conversations by parent links, and 16-token block ids."""


@dataclass(frozen=True, slots=True)
class CsvColumns:
    """The columns read from one CSV, Arrow chunked arrays by name, and the names of those that were not."""

    path: Path
    arrays: dict[str, Any]
    others: tuple[str, ...]

    def tokens(self, name: str) -> Ints:
        """Return the token counts of column `name`; TraceError if one is negative or too large."""
        values: Ints = self.arrays[name].to_numpy()
        self.refuse(name, (values < 0) | (values > MAX_TOKENS), values, f"must be from 0 to {MAX_TOKENS} tokens")
        return values

    def refuse(self, name: str, is_wrong: Any, values: Any, why: str) -> None:
        """Raise TraceError for the first row of column `name` that `is_wrong`, a boolean array."""
        refuse(is_wrong, f"{{}} {why}", values, path=self.path, column=name, first_row=FIRST_LINE)


def header_of(path: Path) -> list[str]:
    """Return the names in the first line of the CSV at `path`; TraceError if it is empty or no text."""
    need_file(path)
    with path.open("rb") as file:
        line = file.readline(1 << 16)
    if not line.strip():
        raise TraceError("empty: it has no header", path=path)
    try:
        names = line.decode("utf-8-sig").strip().split(",")
    except UnicodeDecodeError:
        raise TraceError("not a text file", path=path, row=1) from None
    return [name.strip().strip('"') for name in names]


def read_columns(path: Path, required: Mapping[str, Any], optional: Mapping[str, Any]) -> CsvColumns:
    """Return the columns of the CSV at `path`, whose names and Arrow types are `required` or `optional`.

    No required cell may be empty; a cell of an optional column may. Memory is that of the columns.

    Raises:
        TraceError: the header lacks a required name or has one twice, or a line does not fit.

    """
    names = header_of(path)
    _check_header(path, names, list(required))
    wanted = {**required, **{n: t for n, t in optional.items() if n in names}}
    chunks = _read(path, names, wanted)
    for name in required:
        is_empty = chunks[name].is_null().to_numpy()
        refuse(is_empty, "empty, but it must have a value", path=path, column=name, first_row=FIRST_LINE)
    return CsvColumns(path, chunks, tuple(n for n in names if n not in wanted))


def in_time_order(times: Ints) -> tuple[Ints, int]:
    """Return the order that sorts `times`, equal ones staying as they are, and how many times went backwards."""
    return np.argsort(times, kind="stable"), int(np.count_nonzero(np.diff(times) < 0))


def _check_header(path: Path, names: Sequence[str], required: Sequence[str]) -> None:
    missing = [name for name in required if name not in names]
    if missing:
        raise TraceError(
            f"the header has no {' nor '.join(map(repr, missing))}; it reads {','.join(names)[:200]}", path=path, row=1
        )
    twice = [name for name in names if name and names.count(name) > 1]
    if twice:
        raise TraceError(f"the header names {twice[0]!r} twice", path=path, row=1)


def _read(path: Path, names: list[str], types: Mapping[str, Any]) -> dict[str, Any]:
    import pyarrow as pa
    from pyarrow import csv

    batches = []
    try:
        with csv.open_csv(
            path,
            # Without threads an error names its row.
            read_options=csv.ReadOptions(column_names=names, skip_rows=1, use_threads=False, block_size=_BLOCK_BYTES),
            convert_options=csv.ConvertOptions(
                column_types=types, include_columns=list(types), null_values=[""], strings_can_be_null=True
            ),
        ) as reader:
            batches.extend(reader)
    except pa.ArrowInvalid as error:
        if "Empty CSV file" in str(error):
            raise TraceError("holds no request", path=path) from None
        # Arrow's first sentence says it; Arrow counts the skipped header as a row.
        first = str(error).split(". ", maxsplit=1)[0].split("\n", maxsplit=1)[0]
        raise csv_fault(ValueError(first), names, path, 1) from None
    if not batches:
        raise TraceError("holds no request", path=path)
    table = pa.Table.from_batches(batches)
    return {name: table.column(name) for name in types}
