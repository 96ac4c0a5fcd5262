"""BurstGPT CSVs: arrival and lengths in whole seconds; newer files also name sessions. No block ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kvtrace.core.errors import TraceError
from kvtrace.core.units import NS_PER_S
from kvtrace.requests.csvtable import CsvColumns, in_time_order, read_columns
from kvtrace.requests.requests import (
    NONE,
    Ints,
    Requests,
    Start,
    dense,
    need_file,
    origin_of,
    sha256_of,
    without_blocks,
)

TIME, INPUT, OUTPUT = "Timestamp", "Request tokens", "Response tokens"
SESSION, TOTAL = "Session ID", "Total tokens"
UNUSED = ("Elapsed time", "Model", "Log Type")
_MAX_S = 2**31
_GLOB = "*?["


def is_own(start: Start) -> bool:
    """Return whether the file is a BurstGPT CSV: its header has the three columns."""
    return {TIME, INPUT, OUTPUT} <= start.columns


def read(path: Path) -> Requests:
    """Return the requests of the BurstGPT CSV at `path`, or of all that a directory or a glob names, by name.

    Failures (no response tokens) are dropped and counted. Several files share one clock, and are merged by time.
    Prompts of one `Session ID` are taken to carry their history.

    Raises:
        TraceError: a column is missing, a cell is empty or does not fit, or nothing but failures is left.

    """
    import pyarrow as pa

    paths = files_of(path)
    required = {TIME: pa.float64(), INPUT: pa.int64(), OUTPUT: pa.int64()}
    tables = [read_columns(p, required, {SESSION: pa.string(), TOTAL: pa.int64()}) for p in paths]
    times = np.concatenate([_times(t) for t in tables])
    inputs = np.concatenate([t.tokens(INPUT) for t in tables])
    outputs = np.concatenate([t.tokens(OUTPUT) for t in tables])
    named = _session_names(tables)
    order, backwards = in_time_order(times)
    kept = np.arange(len(times)) if order is None else order
    kept = kept[outputs[kept] > 0]
    if not len(kept):
        raise TraceError(f"holds no request that succeeded ({OUTPUT} > 0)", path=path)
    unknown = sorted({n for t in tables for n in t.others if n not in UNUSED})
    counts = {
        "failures": len(times) - len(kept),
        "out_of_order": backwards,
        "unknown_columns": unknown,
        "wrong_totals": sum(_wrong_totals(t) for t in tables),
    }
    sessions, turns = (None, None) if named is None else _turns(named[kept])
    shorter = 0 if sessions is None else _without_history(sessions, inputs[kept], outputs[kept])
    facts = {"files": [p.name for p in paths], "conversations": _count(sessions), **counts}
    origin = origin_of("burstgpt", path, sha256_of(*paths), len(kept), 0, **facts)
    first = times[kept[0]]
    tokens, notes = (inputs[kept], outputs[kept]), _notes(counts, len(paths), sessions, shorter)
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


def _times(table: CsvColumns) -> Ints:
    seconds = table.arrays[TIME].to_numpy()
    # Not a number fails every comparison.
    table.refuse(TIME, ~((seconds >= 0) & (seconds <= _MAX_S)), seconds, f"must be from 0 to {_MAX_S} seconds")
    nanoseconds: Ints = np.rint(seconds * NS_PER_S).astype(np.int64)
    return nanoseconds


def _wrong_totals(table: CsvColumns) -> int:
    if TOTAL not in table.arrays:
        return 0
    sums = table.arrays[INPUT].to_numpy() + table.arrays[OUTPUT].to_numpy()
    return int(np.count_nonzero(table.arrays[TOTAL].to_numpy() != sums))


def _session_names(tables: list[CsvColumns]) -> Ints | None:
    """Return a number for each session name of all files together, NONE where a row has none; None if none has."""
    import pyarrow as pa

    if not any(SESSION in t.arrays for t in tables):
        return None
    chunks: list[Any] = []
    for table in tables:
        rows = len(table.arrays[TIME])
        chunks.extend(table.arrays[SESSION].chunks if SESSION in table.arrays else [pa.nulls(rows, pa.string())])
    codes = pa.chunked_array(chunks, pa.string()).combine_chunks().dictionary_encode().indices
    numbers: Ints = codes.fill_null(NONE).to_numpy(zero_copy_only=False).astype(np.int64)
    return None if (numbers == NONE).all() else numbers


def _turns(named: Ints) -> tuple[Ints, Ints]:
    """Return the sessions numbered by first appearance, and how many requests of its session precede each."""
    is_named = named != NONE
    sessions = np.full(len(named), NONE, dtype=np.int64)
    turns = np.full(len(named), NONE, dtype=np.int64)
    numbers, count = dense(named[is_named])
    by_session = np.argsort(numbers, kind="stable")
    starts = np.searchsorted(numbers[by_session], np.arange(count))
    place = np.empty(len(numbers), dtype=np.int64)
    place[by_session] = np.arange(len(numbers)) - starts[numbers[by_session]]
    sessions[is_named], turns[is_named] = numbers, place
    return sessions, turns


def _without_history(sessions: Ints, inputs: Ints, outputs: Ints) -> int:
    """Return how many later prompts of a session are shorter than the prompt and answer before them."""
    order = np.argsort(sessions, kind="stable")
    order = order[sessions[order] != NONE]
    before, after = order[:-1], order[1:]
    same = sessions[before] == sessions[after]
    return int(np.count_nonzero(same & (inputs[after] < inputs[before] + outputs[before])))


def _count(sessions: Ints | None) -> int | None:
    return None if sessions is None else int(sessions.max()) + 1


def _notes(counts: dict[str, Any], files: int, sessions: Ints | None, shorter: int) -> tuple[str, ...]:
    notes = []
    if sessions is None:
        notes.append(
            "the source has no sessions, turns or block ids: they are null, and no request reuses another's cache"
        )
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
    if counts["out_of_order"]:
        notes.append(f"times went backwards {counts['out_of_order']} times: the requests were sorted by arrival")
    if counts["wrong_totals"]:
        notes.append(f"{counts['wrong_totals']} rows have a total that is not request plus response tokens")
    if counts["unknown_columns"]:
        notes.append(f"unknown columns were not read: {', '.join(counts['unknown_columns'])}")
    return tuple(notes)
