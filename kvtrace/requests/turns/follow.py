"""Turns that follow: each comes a pause after the simulated answer before it, instead of at its recorded time."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

import numpy as np

from kvtrace.core.errors import ConfigError
from kvtrace.requests.requests import NONE, Requests
from kvtrace.requests.turns.waits import Waits


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
            raise ConfigError("--turns follow: no request has a turn of its session before it; leave the option out")
        return requests, None
    notes = tuple(note for note in requests.notes if note != requests.untimed)
    return replace(requests, notes=(*notes, _note(requests, waits))), waits


def waits_of(requests: Requests) -> Waits:
    """Return which requests follow which: as the source says, or each the one before it of its session.

    The pause is the recorded time from the end of the one answer to the arrival of the next turn, none if that came
    earlier; where the end is not recorded, from the one arrival to the next.
    """
    if requests.waits is not None:
        return requests.waits
    sessions, arrivals = requests.session_id, requests.arrival_ns
    row = before = np.zeros(0, dtype=np.int64)
    if sessions is not None:
        order = np.argsort(sessions, kind="stable")
        order = order[sessions[order] != NONE]
        is_next = sessions[order[1:]] == sessions[order[:-1]]
        row, before = order[1:][is_next], order[:-1][is_next]
    ended = arrivals if requests.answered_ns is None else requests.answered_ns
    delay = np.maximum(0, arrivals[row] - ended[before])
    return Waits(row, before, delay, np.zeros(len(row), dtype=bool), np.zeros(len(requests), dtype=np.int64))


def _note(requests: Requests, waits: Waits) -> str:
    pause = requests.pause
    if not pause and requests.answered_ns is None:
        pause = "the recorded time between their arrivals, in which the answer's own time is: the source lacks that"
    pause = pause or "the recorded time from the end of that answer on"
    return (
        f"closed loop: {waits.followers} of {len(requests)} requests follow others and arrive a pause after the "
        f"simulated answer before them ended, the others at their recorded time; the pause is {pause}"
    )
