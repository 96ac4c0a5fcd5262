"""Mooncake JSONL request traces (FAST'25 release): arrival, lengths, and global block ids.

Rows may have sessions, as those of AIPerf and Dynamo. A later turn may then have only a `delay` after
the turn before it, and only the tokens that it adds: its prompt is all earlier inputs and outputs of
its session, and these tokens.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import numpy as np

from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.json_types import JsonObject
from kvtrace.core.parameters import named
from kvtrace.core.units import NS_PER_MS, NS_PER_S
from kvtrace.requests.block_ids import BlockIds, prefix_chains
from kvtrace.requests.int_columns import NONE, Ints, column
from kvtrace.requests.json_lines import BlockId, Count, JsonLines, Milliseconds
from kvtrace.requests.notes import counted, unused_notes
from kvtrace.requests.request_collector import RequestCollector
from kvtrace.requests.requests import MAX_NS, MAX_TOKENS, Requests, SessionColumns, Waits, origin_of
from kvtrace.requests.source_files import Start, source

BLOCK_TOKENS = 512
TIME_UNITS_NS = {"ms": NS_PER_MS, "s": NS_PER_S}
# Above this rate, milliseconds were most likely read as seconds, or the reverse.
_SUSPICIOUS_PER_S = 1000.0

_Time = Annotated[float, msgspec.Meta(ge=0, le=2**43)]


class _Line(msgspec.Struct):
    input_length: Count
    output_length: Count | None = None
    timestamp: _Time | None = None
    hash_ids: list[BlockId] | None = None
    block_size: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    session_id: str | int | None = None
    delay: _Time | None = None


def is_own(start: Start) -> bool:
    """Return whether the file is a Mooncake trace.

    Its first line is a request without chat_id and event_type.
    """

    def has(*names: bytes) -> bool:
        return any(b'"%b"' % name in start.line for name in names)

    is_request = (
        has(b"timestamp", b"session_id")
        and has(b"hash_ids", b"session_id")
        and has(b"input_length")
    )
    return start.text.startswith(b"{") and is_request and not has(b"chat_id", b"event_type")


def read(path: Path, *, time_unit: str = "ms", block_tokens: int | None = None) -> Requests:
    """Return the requests of the Mooncake JSONL file at `path`; times are in `time_unit`.

    Blocks have the `block_size` of the file's rows, or `block_tokens`, or 512 tokens; each line is
    checked against it. Rows may have a `session_id`; later turns may have a `delay` instead of a timestamp,
    and added tokens instead of a whole prompt. Rows of sessions may be in any order of time, and
    without ids, in which case their blocks are not shared. TraceError if a line is not such an object,
    its chain does not fit its length, or time goes backwards.
    """
    if time_unit not in TIME_UNITS_NS:
        raise ConfigError(f"unknown time unit {time_unit!r}; use {' or '.join(TIME_UNITS_NS)}")
    lines = JsonLines(path, _Line, name_fields=True)
    times, inputs, outputs, numbers = (array("q") for _ in range(4))
    chains = BlockIds()
    sessions, scale, last_ns, unanswered = Sessions(), TIME_UNITS_NS[time_unit], 0, 0
    for number, line in lines:
        block_tokens = block_tokens or line.block_size or BLOCK_TOKENS
        _check(line, block_tokens, lines, number)
        time_ns = None if line.timestamp is None else round(line.timestamp * scale)
        previous_ns = last_ns if line.session_id is None else sessions.last_ns(line.session_id)
        if time_ns is not None and time_ns < previous_ns:
            times_text = f"from {previous_ns / scale:g} to {line.timestamp:g} {time_unit}"
            raise lines.fault(
                f"time goes backwards, {times_text}; sort the file by timestamp",
                number,
                "timestamp",
            )
        last_ns = last_ns if time_ns is None else max(last_ns, time_ns)
        delay_ns = None if line.delay is None else round(line.delay * scale)
        if (delay_ns or 0) > MAX_NS:
            raise lines.fault(
                f"{line.delay:g} {time_unit} is beyond the clock of a trace", number, "delay"
            )
        arrival_ns = sessions.add(line.session_id, time_ns, delay_ns, line.hash_ids)
        if arrival_ns > MAX_NS:
            problem = (
                f"{arrival_ns / scale:g} {time_unit} is beyond the clock of a trace; another time"
                f" unit? ({named('time_unit')})"
            )
            raise lines.fault(problem, number, "timestamp")
        times.append(arrival_ns)
        inputs.append(line.input_length)
        outputs.append(line.output_length or 0)
        unanswered += line.output_length is None
        numbers.append(number)
        chains.append(line.hash_ids or ())
    if not times:
        raise TraceError("holds no request", path=path)
    answers, block_tokens = column(outputs), block_tokens or BLOCK_TOKENS
    prompts, chains, too_long_row = sessions.rebuild_prompts(
        column(inputs), answers, chains, block_tokens
    )
    if too_long_row != NONE:
        problem = f"its session has more than {MAX_TOKENS} tokens by then"
        raise lines.fault(problem, numbers[too_long_row], "input_length")
    order = np.argsort(column(times), kind="stable")
    arrivals = column(times)[order]
    offsets, all_ids = chains.reordered(order)
    prefixes = prefix_chains(all_ids, offsets)
    facts: JsonObject = {"time_unit": time_unit, "block_references": len(all_ids)}
    prefix_notes: list[str] = []
    if prefixes.renamed:
        facts["rechained_ids"] = prefixes.renamed
        prefix_notes = prefixes.notes(numbers[order[prefixes.first_request]])
    facts |= {"conversations": len(sessions)} if len(sessions) else {}
    origin = origin_of("mooncake", path, lines.sha256, len(times), block_tokens, **facts)
    notes = (
        *sessions.notes(),
        *prefix_notes,
        *_notes(arrivals, time_unit, unanswered),
        *unused_notes(lines.fields, _Line),
    )
    columns = (prompts[order], answers[order], offsets, prefixes.ids)
    session_columns = sessions.columns(order, arrivals[0])
    return Requests(
        arrivals - arrivals[0], *columns, block_tokens, origin, notes, **session_columns
    )


def _check(line: _Line, block_tokens: int, lines: JsonLines[_Line], number: int) -> None:
    if line.block_size not in (None, block_tokens):
        raise lines.fault(
            f"{line.block_size}, but blocks are of {block_tokens} tokens", number, "block_size"
        )
    if line.timestamp is None and line.session_id is None:
        raise lines.fault("missing required field `timestamp`, and no session_id", number, None)
    if line.hash_ids is None:
        if line.session_id is not None:
            return
        raise lines.fault("missing required field `hash_ids`, and no session_id", number, None)
    lines.check_ids(
        len(line.hash_ids), line.input_length, block_tokens, number, may_lack_last=False
    )
    if len(set(line.hash_ids)) < len(line.hash_ids):
        raise lines.fault(
            "an id appears twice, but an id names one whole prefix", number, "hash_ids"
        )


def _notes(arrivals: Ints, time_unit: str, unanswered: int) -> tuple[str, ...]:
    notes = counted(
        (unanswered, "rows have no output_length, which is taken as 0: nothing is decoded")
    )
    span_s = (arrivals[-1] - arrivals[0]) / 1e9
    if span_s and len(arrivals) / span_s > _SUSPICIOUS_PER_S:
        other_unit = next(unit for unit in TIME_UNITS_NS if unit != time_unit)
        notes.append(
            f"timestamps were read as {time_unit}, which makes {len(arrivals) / span_s:,.0f}"
            f" requests a second: if they are in {other_unit}, use --time-unit {other_unit}"
        )
    return tuple(notes)


@dataclass(slots=True)
class _Session:
    number: int
    last_row: int = NONE
    turns: int = 0
    last_ns: int = 0
    first_id: int = NONE
    tokens: int = 0
    blocks: array[int] = field(default_factory=lambda: array("q"))


class Sessions:
    """The sessions of a file, row by row."""

    def __init__(self) -> None:
        """Start without sessions."""
        self.number, self.turn, self.answered = array("q"), array("q"), array("q")
        self.untimed = self.first_untimed = self.later = self.delays = self.unnamed = (
            self._continued
        ) = 0
        self._sessions: dict[str | int, _Session] = {}

    def __len__(self) -> int:
        """Return the number of sessions."""
        return len(self._sessions)

    def last_ns(self, name: str | int) -> int:
        """Return the arrival of the last turn of the session `name`; 0 before its first."""
        return self._sessions[name].last_ns if name in self._sessions else 0

    def add(
        self,
        name: str | int | None,
        time_ns: int | None,
        delay_ns: int | None,
        ids: list[int] | None,
    ) -> int:
        """Enter the next row, of the session `name`.

        Returns its arrival: `time_ns`, or a delay after the last turn.
        """
        if name is None:
            self.number.append(NONE)
            self.turn.append(NONE)
            self.answered.append(min(time_ns or 0, MAX_NS))
            return time_ns or 0
        session = self._sessions.setdefault(name, _Session(len(self._sessions)))
        if time_ns is None:
            self.untimed += bool(session.turns)
            self.first_untimed += not session.turns
            time_ns = session.last_ns + (delay_ns or 0)
        if session.turns and delay_ns is not None:
            self.delays += 1
            self.answered[session.last_row] = time_ns - delay_ns
        session.last_row = len(self.answered)
        self.answered.append(min(time_ns, MAX_NS))
        self.unnamed += ids is None
        first = ids[0] if ids else NONE
        if session.turns:
            self.later += 1
            self._continued += first == session.first_id != NONE
        else:
            session.first_id = first
        self.number.append(session.number)
        self.turn.append(session.turns)
        session.turns, session.last_ns = session.turns + 1, time_ns
        return time_ns

    @property
    def is_delta(self) -> bool:
        """Tell whether later turns contain added tokens only.

        That is so if most of them do not begin with the first block of their session.
        """
        return 2 * self._continued < self.later

    def rebuild_prompts(
        self,
        inputs: Ints,
        outputs: Ints,
        chains: BlockIds,
        block_tokens: int,
    ) -> tuple[Ints, BlockIds, int]:
        """Return the tokens of the rows' whole prompts, their chains, and the first row too long.

        The full blocks of a session's first prompt keep their ids, which other sessions may share.
        From its first answer on, the blocks of a session are not shared and get new ids; a partial
        last block gets none. Rows with whole prompts are unchanged. The row is NONE if all fit.
        """
        if not self.is_delta:
            if self.unnamed:
                chains = chains.with_new_ids((inputs // block_tokens) * (chains.lengths == 0))
            return inputs, chains, NONE
        next_id, whole_chains = chains.next_id, BlockIds()
        rebuilt = [_Session(n) for n in range(len(self))]
        prompt_tokens = inputs.copy()
        for row, number in enumerate(self.number):
            if number == NONE:
                whole_chains.append(chains[row])
                continue
            session = rebuilt[number]
            tokens = session.tokens + int(inputs[row])
            if tokens + int(outputs[row]) > MAX_TOKENS:
                return prompt_tokens, chains, row
            if not session.turns:
                session.blocks = chains[row][: tokens // block_tokens]
            missing = tokens // block_tokens - len(session.blocks)
            session.blocks.extend(range(next_id, next_id + missing))
            next_id += missing
            whole_chains.append(session.blocks)
            prompt_tokens[row] = tokens
            session.turns, session.tokens = session.turns + 1, tokens + int(outputs[row])
        return prompt_tokens, whole_chains, NONE

    def columns(self, order: Ints, start_ns: int) -> SessionColumns:
        """Return the session columns of Requests, in `order`, with times from `start_ns`.

        Empty if no row has a session.
        """
        if not self._sessions:
            return {}
        session_columns: SessionColumns = {
            "session_id": column(self.number)[order],
            "turn": column(self.turn)[order],
        }
        if self.delays:
            session_columns["answered_ns"] = column(self.answered)[order] - start_ns
            session_columns["pause"] = (
                "the file's delay, and where a turn has none, the time between arrivals"
            )
        if self.untimed:
            session_columns["untimed"] = self._untimed_note
        return session_columns

    @property
    def _untimed_note(self) -> str:
        return (
            f"{self.untimed} later turns have no timestamp: they arrive their delay after the"
            " arrival of the turn before them, because the file has no times of answers"
        )

    def notes(self) -> list[str]:
        """Return notes on assumptions about the file's sessions."""
        if not self._sessions:
            return [
                (
                    "the source has no sessions or turns: they are null, and reuse comes from block ids"
                    " alone"
                )
            ]
        evidence = (
            f"{self._continued} of {self.later} later turns begin with their session's first block"
        )
        notes = [f"sessions are the file's session_id, and their prompts are whole: {evidence}"]
        if self.is_delta:
            notes[0] = (
                f"input_length of later turns is assumed to be the added tokens ({evidence}):"
                " prompts are all earlier inputs and outputs and these, and blocks after a"
                " session's first prompt are not shared"
            )
        if self.untimed:
            notes.append(self._untimed_note)
        return notes + counted(
            (self.first_untimed, "first turns have no timestamp: they arrive at 0"),
            (
                self.unnamed,
                "rows have no hash_ids: their prompts are shared within their session only",
            ),
        )


AGENTIC_SCHEMA: Final = "dynamo.agentic_mooncake"
_AGENTIC_VERSION: Final = 2


class _Dependency(msgspec.Struct):
    request_id: str
    trigger: Literal["dispatch", "completion"]
    delay_ms: Milliseconds = 0.0


class _AgenticLine(msgspec.Struct):
    schema: str | None = None
    version: int | None = None
    block_size: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    hash_id_scope: Literal["local", "global"] = "local"
    request_id: str | None = None
    play_id: str = ""
    session_id: str | None = None
    input_length: Count | None = None
    output_length: Count | None = None
    hash_ids: list[BlockId] | None = None
    not_before_ms: Milliseconds = 0.0
    dependencies: list[_Dependency] = []


@source(lambda start: start.is_json_with(AGENTIC_SCHEMA))
def agentic_mooncake(path: Path) -> Requests:
    """Return the requests of the file at `path`, with their waits for dispatch or completion.

    The recorded arrival is `not_before_ms`, or the delay after the last request that it depends on,
    which is assumed to complete at its arrival: the file has no durations of requests. TraceError if the header is not of version 2, a line is not such a request, or it
    depends on a later one.

    Dynamo's agentic form of Mooncake rows (`dynamo.agentic_mooncake`): a header, then requests that
    wait for others.
    """
    lines = JsonLines(path, _AgenticLine, name_fields=True)
    rows = iter(lines)
    number, head = next(rows, (0, _AgenticLine()))
    if head.schema != AGENTIC_SCHEMA or head.version != _AGENTIC_VERSION or head.block_size is None:
        raise lines.fault(
            f"its first line must be of {AGENTIC_SCHEMA}, version {_AGENTIC_VERSION}, with a"
            " block_size",
            number,
            None,
        )
    gathered, is_local = RequestCollector(), head.hash_id_scope == "local"
    arrivals: dict[str, tuple[int, int]] = {}
    waits: list[tuple[int, int, int, bool]] = []
    not_before_ns = array("q")
    for number, line in rows:
        if line.request_id is None or line.input_length is None or line.hash_ids is None:
            raise lines.fault("a request needs request_id, input_length and hash_ids", number, None)
        lines.check_ids(len(line.hash_ids), line.input_length, head.block_size, number)
        name, tokens, ids = line.request_id, line.input_length, line.hash_ids
        if name in arrivals:
            raise lines.fault(f"{name!r} appears twice", number, "request_id")
        time_ns = round(line.not_before_ms * NS_PER_MS)
        not_before_ns.append(time_ns)
        for dependency in line.dependencies:
            if dependency.request_id not in arrivals:
                problem = f"depends on {dependency.request_id!r}, which is not before it"
                raise lines.fault(problem, number, "dependencies")
            (before_row, before_ns), delay_ns = (
                arrivals[dependency.request_id],
                round(dependency.delay_ms * NS_PER_MS),
            )
            time_ns = max(time_ns, before_ns + delay_ns)
            waits.append((len(gathered), before_row, delay_ns, dependency.trigger == "dispatch"))
        if time_ns > MAX_NS:
            raise lines.fault("it comes beyond the clock of a trace", number, "dependencies")
        arrivals[name] = len(gathered), time_ns
        session = None if line.session_id is None else (line.play_id, line.session_id)
        chain = [(line.play_id if is_local else None, block) for block in ids]
        gathered.add(time_ns, tokens, line.output_length or 0, chain, session, row=number)
    graph = Waits.of(len(gathered), waits, column(not_before_ns))
    completions = len(waits) - int(graph.is_of_start.sum())
    notes, untimed = [], ""
    if completions:
        untimed = (
            f"{completions} of the waits of {graph.followers} requests are for a completion, but"
            " the file has no durations, so they arrive their delay after the other's arrival"
        )
        notes.append(untimed)
    if is_local:
        notes.append("block ids are local to a play: nothing is shared between plays")
    notes += unused_notes(lines.fields, _AgenticLine)
    requests = gathered.build_requests(
        "agentic-mooncake", path, lines.sha256, head.block_size, notes
    )
    pause = "the delay of the file's dependencies, from dispatch or completion"
    return replace(requests, waits=gathered.reorder_waits(graph), untimed=untimed, pause=pause)
