"""Sessions of a Mooncake file (AIPerf's and Dynamo's rows): when their turns arrive, and their prompts as a whole.

A later turn may say only how long after the turn before it comes (`delay`), and only what it adds to the prompt: then
its prompt is all earlier inputs and outputs of its session and that.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvtrace.requests.requests import MAX_NS, MAX_TOKENS, NONE, Ints, column


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
        """Start without any."""
        self.number, self.turn, self.answered = array("q"), array("q"), array("q")
        self.untimed = self.first_untimed = self.later = self.delays = self.unnamed = self._continued = 0
        self._known: dict[str | int, _Session] = {}

    def __len__(self) -> int:
        """Return how many sessions there are."""
        return len(self._known)

    def last_ns(self, name: str | int) -> int:
        """Return when the last turn of the session `name` arrives; 0 before its first."""
        session = self._known.get(name)
        return 0 if session is None else session.last_ns

    def add(self, name: str | int | None, time_ns: int | None, delay_ns: int | None, ids: list[int] | None) -> int:
        """Enter the next row, of the session `name`; return when it arrives: at `time_ns`, or after its last turn."""
        if name is None:
            self.number.append(NONE)
            self.turn.append(NONE)
            self.answered.append(min(time_ns or 0, MAX_NS))
            return time_ns or 0
        session = self._known.setdefault(name, _Session(len(self._known)))
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
        """Whether later turns say what they add: most of them do not begin with their session's first block."""
        return 2 * self._continued < self.later

    def whole(self, inputs: Ints, outputs: Ints, chains: list[array[int]], block_tokens: int) -> tuple[Ints, int]:
        """Make the rows' `chains` and the returned inputs those of whole prompts; and the first row too long, or NONE.

        The whole blocks of a session's first prompt keep their ids, which other sessions may share. From its first
        answer on a session is its own, and so are its blocks, which get new ids; a partial last one gets none. Rows of
        a file whose prompts are whole stay as they are.
        """
        free = 1 + max((max(chain) for chain in chains if chain), default=-1)
        if not self.is_delta:
            for row, chain in enumerate(chains if self.unnamed else ()):
                if not chain:
                    chain.extend(range(free, free := free + int(inputs[row]) // block_tokens))
            return inputs, NONE
        known = [_Session(n) for n in range(len(self))]
        whole = inputs.copy()
        for row, number in enumerate(self.number):
            if number == NONE:
                continue
            session = known[number]
            tokens = session.tokens + int(inputs[row])
            if tokens + int(outputs[row]) > MAX_TOKENS:
                return whole, row
            if not session.turns:
                session.blocks = chains[row][: tokens // block_tokens]
            missing = tokens // block_tokens - len(session.blocks)
            session.blocks.extend(range(free, free + missing))
            free += missing
            chains[row], whole[row] = session.blocks[:], tokens
            session.turns, session.tokens = session.turns + 1, tokens + int(outputs[row])
        return whole, NONE

    def facts(self) -> dict[str, int]:
        """Return what the metadata says of the sessions; nothing without any."""
        return {"conversations": len(self)} if self._known else {}

    def columns(self, order: Ints, start_ns: int) -> dict[str, Any]:
        """Return what Requests has of sessions, by `order` and from `start_ns` on; nothing if no row names one."""
        if not self._known:
            return {}
        found: dict[str, Any] = {"session_id": column(self.number)[order], "turn": column(self.turn)[order]}
        if self.delays:
            found["answered_ns"] = column(self.answered)[order] - start_ns
            found["pause"] = "the file's delay, and where a turn has none, the time between arrivals"
        return found | ({"untimed": self._untimed_note} if self.untimed else {})

    @property
    def _untimed_note(self) -> str:
        return (
            f"{self.untimed} later turns have no timestamp: they arrive their delay after the turn before them "
            "arrived; how long an answer took is not in the file"
        )

    def notes(self) -> list[str]:
        """Return what was assumed of the file's sessions."""
        if not self._known:
            return ["the source has no sessions or turns: they are null, and reuse comes from block ids alone"]
        how = f"{self._continued} of {self.later} later turns begin with their session's first block"
        notes = [f"sessions are the file's session_id, and their prompts are whole: {how}"]
        if self.is_delta:
            notes[0] = (
                f"input_length of a session's later turns is taken as what they add ({how}): prompts are all earlier "
                "inputs and outputs and that, and blocks after a session's first prompt are its own"
            )
        if self.untimed:
            notes.append(self._untimed_note)
        if self.first_untimed:
            notes.append(f"{self.first_untimed} first turns have no timestamp: they arrive at 0")
        if self.unnamed:
            notes.append(f"{self.unnamed} rows have no hash_ids: what they ask for is shared within their session only")
        return notes


def flat(chains: list[array[int]], order: Ints) -> tuple[Ints, Ints]:
    """Return the offsets and the ids of `chains`, by `order`."""
    lengths = np.array([len(chain) for chain in chains], dtype=np.int64)[order]
    ids = array("q")
    for row in order.tolist():
        ids.extend(chains[row])
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]), column(ids)
