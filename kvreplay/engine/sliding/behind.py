"""Rows that have ended: how far back all have, and what of them those that are still to come must know; compiled.

A row that is laid when the one before it in its chain has ended begins a chain anew, with the time at which its group
would have been opened. A group is free again when its last row has ended and no row that was laid can follow it.
"""

from __future__ import annotations

import numpy as np

from kvreplay.engine.tables import CHAIN_KINDS, ENDED, NONE, chains_at, groups_at, job_at
from kvreplay.plan.chains import LINK, OBJECT
from kvtrace.core.compiled import inner, int8s, int32s, njit
from kvtrace.core.structures import Structure, record, table

TIMES = np.dtype([("done_ns", "i8"), ("opened_ns", "i8")])
"""Of the last group of a chain: when it was over, and when it was opened."""
_BEHIND = np.dtype([(name, "i8") for name in ("low", "given", "free_group")])


class Behind(Structure):
    """How far the rows behind have come, and the tables that link them with those ahead."""

    state = record(_BEHIND)
    """All rows before `low` have ended, those before `given` are forgotten; the first group that is free."""
    requests, objects = table(LINK), table(OBJECT)
    stage_number, object_number = table("i4"), table("i4")
    stage_ended, object_ended = table("i4"), table("i4")
    """As in `chains.Laying`."""
    due = table("i8")
    stage_since, object_since = table("i8"), table("i8")
    """By row: when the group of one that begins a chain was opened; empty in a closed loop, as the next."""
    stage_times, object_times = table(TIMES), table(TIMES)
    """By number, of chains whose last row was forgotten before its successor was due."""


@njit
def follow(behind: Behind, address: int) -> int:
    """Return how many rows there are before the first that has not ended."""
    job, low = job_at(address), behind.state.low
    unmet = int8s(job.unmet)
    while low < job.cursor and unmet[low] == ENDED:
        low += 1
    behind.state.low = low
    return low


@inner
def _return_group(behind: Behind, address: int, number: int) -> None:
    """Let a group be used again."""
    groups_at(job_at(address).groups)[number].follower = behind.state.free_group
    behind.state.free_group = number


@inner
def _number(behind: Behind, kind: int, row: int) -> int:
    return behind.stage_number[row] if kind == 0 else behind.object_number[row]


@njit
def join(behind: Behind, address: int, first: int, last: int) -> None:
    """Let the rows from `first` to before `last`, just laid, know when those before them in their chains ended."""
    job, is_paced = job_at(address), len(behind.due) > 0
    for row in range(first, last):
        for kind in range(CHAIN_KINDS):
            ended = np.int64(behind.stage_ended[row] if kind == 0 else behind.object_ended[row])
            if ended == 0:
                continue
            before, done_ns, opened_ns = abs(ended) - 1, np.int64(0), np.int64(0)
            if before >= behind.state.given:
                number = np.int64(int32s(chains_at(job.chains)[kind].groups)[before])
                group = groups_at(job.groups)[number]
                done_ns, opened_ns = group.done_ns, group.opened_ns
                _return_group(behind, address, number)
            elif is_paced:
                number = _number(behind, kind, row)
                times = behind.stage_times[number] if kind == 0 else behind.object_times[number]
                done_ns, opened_ns = times.done_ns, times.opened_ns
            if is_paced:
                since = done_ns if ended > 0 else opened_ns
                if kind == 0:
                    behind.stage_since[row] = since
                else:
                    behind.object_since[row] = since


@njit
def forget(behind: Behind, address: int, until: int, laid: int) -> None:
    """Forget the rows before `until`, which have ended; so many are `laid`."""
    job, is_paced = job_at(address), len(behind.due) > 0
    for row in range(behind.state.given, until):
        for kind in range(CHAIN_KINDS):
            number = np.int64(_number(behind, kind, row))
            if number < 0:
                continue
            last = behind.requests[number].last if kind == 0 else behind.objects[number].last
            if last != row + 1:
                continue
            of = np.int64(int32s(chains_at(job.chains)[kind].groups)[row])
            group = groups_at(job.groups)[of]
            # Those that follow are due later than all that are laid: mostly, nothing of this will matter to them.
            if is_paced and group.done_ns > behind.due[laid - 1]:
                times = behind.stage_times[number] if kind == 0 else behind.object_times[number]
                times.done_ns, times.opened_ns = group.done_ns, group.opened_ns
            _return_group(behind, address, of)
    behind.state.given = until
    give_groups(behind, address)


@inner
def give_groups(behind: Behind, address: int) -> None:
    """Give what is free to the submitting thread, if it has taken what was given before."""
    job, state = job_at(address), behind.state
    if job.returned_group == NONE and state.free_group != NONE:
        job.returned_group, state.free_group = state.free_group, NONE
