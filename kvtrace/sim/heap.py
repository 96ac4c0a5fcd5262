"""The compiled schedule: who acts next, a binary heap by time and then by actor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.core.compiled import njit
from kvtrace.sim.world import HEAP_SIZE

if TYPE_CHECKING:
    from kvtrace.sim.world import World


@njit
def push(world: World, time_ns: int, actor: int) -> None:
    """Schedule `actor` at `time_ns`; ties go by actor number."""
    times, who = world.heap_ns, world.heap_actor
    i = world.control[HEAP_SIZE]
    world.control[HEAP_SIZE] = i + 1
    while i > 0:
        up = (i - 1) >> 1
        if times[up] < time_ns or (times[up] == time_ns and who[up] < actor):
            break
        times[i], who[i] = times[up], who[up]
        i = up
    times[i], who[i] = time_ns, actor


@njit
def pop(world: World) -> int:
    """Take the first of the schedule; return its actor."""
    times, who = world.heap_ns, world.heap_actor
    n = world.control[HEAP_SIZE] - 1
    world.control[HEAP_SIZE] = n
    first = who[0]
    time_ns, actor = times[n], who[n]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        right = child + 1
        if right < n and (times[right] < times[child] or (times[right] == times[child] and who[right] < who[child])):
            child = right
        if time_ns < times[child] or (time_ns == times[child] and actor < who[child]):
            break
        times[i], who[i] = times[child], who[child]
        i = child
    times[i], who[i] = time_ns, actor
    return first
