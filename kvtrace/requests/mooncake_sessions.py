"""Sessions of a Mooncake file (AIPerf's and Dynamo's rows): when their turns arrive, and their prompts as a whole.

A later turn may say only how long after the turn before it comes (`delay`), and only what it adds to the prompt: then
its prompt is all earlier inputs and outputs of its session and that.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np

from kvtrace.requests.requests import MAX_TOKENS, NONE, Ints, column


@dataclass(slots=True)
class _Session:
    number: int
    turns: int = 0
    last_ns: int = 0
    first_id: int = NONE
    tokens: int = 0
    blocks: array[int] = field(default_factory=lambda: array("q"))


class Sessions:
    """The sessions of a file, row by row."""

    def __init__(self) -> None:
        """Start without any."""
        self.number, self.turn = array("q"), array("q")
        self.untimed = self.later = self._continued = 0
        self._known: dict[str | int, _Session] = {}

    def __len__(self) -> int:
        """Return how many sessions there are."""
        return len(self._known)

    def knows(self, name: str | int | None) -> bool:
        """Whether an earlier row is of the session `name`."""
        return name in self._known

    def add(self, name: str | int | None, time_ns: int | None, delay_ns: int, ids: list[int] | None) -> int:
        """Enter the next row, of the session `name`; return when it arrives: at `time_ns`, or after its last turn."""
        if name is None:
            self.number.append(NONE)
            self.turn.append(NONE)
            return time_ns or 0
        session = self._known.setdefault(name, _Session(len(self._known)))
        if time_ns is None:
            self.untimed += 1
            time_ns = session.last_ns + delay_ns
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
        if not self.is_delta:
            return inputs, NONE
        known = [_Session(n) for n in range(len(self))]
        free = 1 + max((max(chain) for chain in chains if chain), default=-1)
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

    def columns(self, order: Ints) -> dict[str, Ints]:
        """Return the columns session_id and turn, by `order`; none if no row names a session."""
        if not self._known:
            return {}
        return {"session_id": column(self.number)[order], "turn": column(self.turn)[order]}

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
            notes.append(
                f"{self.untimed} rows have no timestamp: they arrive their delay after the turn before them arrived, "
                "and first turns at 0; how long an answer took is not in the file"
            )
        return notes


def flat(chains: list[array[int]], order: Ints) -> tuple[Ints, Ints]:
    """Return the offsets and the ids of `chains`, by `order`."""
    lengths = np.array([len(chain) for chain in chains], dtype=np.int64)[order]
    ids = array("q")
    for row in order.tolist():
        ids.extend(chains[row])
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]), column(ids)
