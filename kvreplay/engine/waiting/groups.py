"""Rows in their chains: a row finds its group when its turn to be looked at comes, and waits until that is opened.

So nothing is known of rows that are further ahead, and a group is forgotten when no row can join or follow it any more.
All functions take the address of a `tables.JOB`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvreplay.engine.filling.ahead import prepare_all, prepare_if_worth
from kvreplay.engine.tables import CHAIN_KINDS, CLOSED, ENDED, NEXT, NONE, OPEN, chains_at, groups_at, heap_push, job_at
from kvreplay.plan.chains import NO_CHAIN
from kvtrace.core.compiled import inner, int8s, int32s, int64s


@inner
def enter(address: int, row: int) -> bool:
    """Let a row take its place in its chains; return whether it waits for nothing."""
    job = job_at(address)
    unmet, since, is_next = 0, 0, False
    for kind in range(CHAIN_KINDS):
        chain: Any = chains_at(job.chains)[kind]
        link, of_rows, number = np.int64(int32s(chain.links)[row]), int32s(chain.groups), np.int64(NONE)
        if link != NO_CHAIN:
            if link > 0:
                number = _follower(address, np.int64(of_rows[row - link]))
            elif link == 0:
                number = _new_group(address)
                if chain.since:
                    groups_at(job.groups)[number].opened_ns = int64s(chain.since)[row]
            else:
                number = np.int64(of_rows[row + link])
            group = groups_at(job.groups)[number]
            group.left += 1
            if group.state == OPEN:
                since = max(since, group.opened_ns)
            else:
                unmet += 1
                is_next = group.state == NEXT
                int32s(chain.waiting)[row], group.waiting = group.waiting, row
        of_rows[row] = number
    int8s(job.unmet)[row] = unmet
    if unmet == 1 and is_next:
        prepare_if_worth(address, row)
    if unmet == 0 and job.ready_ns:
        int64s(job.ready_ns)[row] = since
    return unmet == 0


@inner
def _new_group(address: int) -> int:
    """Return an open group that waits for none."""
    job, number = job_at(address), np.int64(0)
    if job.free_group == NONE and job.returned_group != NONE:
        job.free_group, job.returned_group = job.returned_group, NONE
    if job.free_group == NONE:
        number = job.groups_used
        job.groups_used += 1
    else:
        number = job.free_group
        job.free_group = groups_at(job.groups)[number].follower
    group = groups_at(job.groups)[number]
    group.left, group.waiting, group.follower, group.state, group.opened_ns, group.done_ns = 0, NONE, NONE, OPEN, 0, 0
    return number


@inner
def _follower(address: int, before: int) -> int:
    """Return the group that comes after the group `before`, which no row will join any more."""
    first = groups_at(job_at(address).groups)[before]
    if not first.left:
        # It is over: its place is that of the next.
        first.opened_ns = first.done_ns
        return before
    number = _new_group(address)
    groups_at(job_at(address).groups)[number].state = NEXT if first.state == OPEN else CLOSED
    first.follower = number
    return number


@inner
def _free_group(address: int, number: int) -> None:
    job = job_at(address)
    groups_at(job.groups)[number].follower = job.free_group
    job.free_group = number


@inner
def leave(address: int, row: int, now: int) -> None:
    """Note that a row has completed, and release what waited for it."""
    job = job_at(address)
    for kind in range(CHAIN_KINDS):
        chain: Any = chains_at(job.chains)[kind]
        of = np.int64(int32s(chain.groups)[row])
        if of == NONE:
            continue
        group = groups_at(job.groups)[of]
        group.left -= 1
        if group.left:
            continue
        group.done_ns = now
        if group.follower != NONE:
            _open(address, kind, np.int64(group.follower), now)
            _free_group(address, of)
    int8s(job.unmet)[row] = ENDED


@inner
def _open(address: int, kind: int, number: int, now: int) -> None:
    """Open a group: the group before it has completed; note that its rows have to wait for one group less."""
    job = job_at(address)
    group, chain = groups_at(job.groups)[number], chains_at(job.chains)[kind]
    unmet, waiting, row = int8s(job.unmet), int32s(chain.waiting), np.int64(group.waiting)
    group.state, group.opened_ns, group.waiting = OPEN, now, NONE
    while row != NONE:
        unmet[row] -= 1
        if unmet[row] == 0:
            if job.ready_ns:
                int64s(job.ready_ns)[row] = now
            heap_push(job.ready, row)
        row = np.int64(waiting[row])
    if group.follower != NONE:
        following = groups_at(job.groups)[group.follower]
        following.state = NEXT
        prepare_all(address, np.int64(following.waiting), chain.waiting)
