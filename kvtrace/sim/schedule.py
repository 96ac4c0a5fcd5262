"""The compiled schedule: who acts when, by time; and those who decode, by the steps of the batch that they are in.

Each step of the batch makes one token for each request in it, and takes as long as all of them need together, which
changes only when one joins or leaves. So a clock of steps runs beside the time, and a request is done once that clock
has gone on by as many steps as it generates tokens, however long each of them took.
"""

from __future__ import annotations

from typing import Any

from kvtrace.core.compiled import forced, inner
from kvtrace.sim.records import CHUNKED, GROWING, NONE, SLIDING, UNBOUNDED, World

WAITS = -2
"""Instead of how long an actor waits: until the batch's clock gets where `decoding` says."""
PARTS = 1 << 10
"""Of a step: what the clock counts."""


@inner
def push(heap: Any, count: int, when: int, actor: int) -> None:
    """Schedule `actor` in `heap`, which has `count` entries; ties go by actor number."""
    i = count
    while i > 0:
        up = (i - 1) >> 1
        if heap[up].when < when or (heap[up].when == when and heap[up].actor < actor):
            break
        heap[i].when, heap[i].actor = heap[up].when, heap[up].actor
        i = up
    heap[i].when, heap[i].actor = when, actor


@inner
def pop(heap: Any, count: int) -> int:
    """Take the first of the `count` entries of `heap`; return its actor."""
    n = count - 1
    first: int = heap[0].actor
    when, actor = heap[n].when, heap[n].actor
    i = 0
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and _is_before(heap, child + 1, heap[child].when, heap[child].actor):
            child += 1
        if not _is_before(heap, child, when, actor):
            break
        heap[i].when, heap[i].actor = heap[child].when, heap[child].actor
        i = child
    heap[i].when, heap[i].actor = when, actor
    return first


@forced
def _is_before(heap: Any, i: int, when: int, actor: int) -> bool:
    event = heap[i]
    return event.when < when or (event.when == when and event.actor < actor)


@inner
def next_arrival_ns(world: World) -> int:
    """Return when the next request of the file arrives, as far as is known; UNBOUNDED if none is left."""
    control, when = world.control, UNBOUNDED
    if control.arrived < world.knobs.max_requests:
        if world.knobs.follows:
            if control.coming > 0:
                when = world.following.coming[0].when
        elif control.arrived < len(world.arrival_ns):
            when = world.arrival_ns[control.arrived]
    return when


@inner
def take_arrival(world: World) -> int:
    """Let the next request of the file arrive, now; return which of the file it is."""
    control = world.control
    request: int = control.arrived
    if world.knobs.follows:
        request = pop(world.following.coming, control.coming)
        control.coming -= 1
        came = world.following.came[control.arrived]
        came.when, came.actor = control.now, request
    control.arrived += 1
    return request


@inner
def call_followers(world: World, request: int, is_of_start: int) -> None:
    """Let those come that follow the file's `request` once it starts, or has ended, and that wait for nothing else."""
    control = world.control
    for i in range(world.following.first[request], world.following.first[request + 1]):
        follower = world.following.followers[i]
        if follower.is_of_start == is_of_start:
            waiting = world.following.waiting[follower.request]
            waiting.ready_ns = max(waiting.ready_ns, control.now + follower.delay_ns)
            waiting.left -= 1
            if waiting.left == 0:
                push(world.following.coming, control.coming, waiting.ready_ns, follower.request)
                control.coming += 1


@inner
def join(world: World, actor: int) -> None:
    """Begin to decode the actor's request with those that do."""
    me = world.actors[actor]
    _change(world, 1, _step_bytes(world, me.input + me.output // 2))
    me.first_step, me.decode_start = batch_of(world).steps, world.control.now


@inner
def depart(world: World, actor: int) -> None:
    """Have decoded the actor's request."""
    me = world.actors[actor]
    if me.first_step != NONE:
        _change(world, -1, -_step_bytes(world, me.input + me.output // 2))
        me.first_step = NONE


@inner
def after_steps(world: World, actor: int, steps: int) -> int:
    """Let the actor act when so many `steps` are done since it joined; return WAITS, or 0 if they are."""
    batch = batch_of(world)
    _advance(world)
    when = world.actors[actor].first_step + steps * PARTS
    if when <= batch.steps:
        return 0
    mine = world.decoding[actor]
    mine.when, mine.left, mine.right = when, NONE, NONE
    batch.first = _merge(world, batch.first, actor)
    _set_due(world)
    return WAITS


@inner
def pop_decoding(world: World) -> int:
    """Take the first that waits for the clock of the batch at hand; return its actor."""
    batch = batch_of(world)
    actor: int = batch.first
    batch.first = _merge(world, world.decoding[actor].left, world.decoding[actor].right)
    _set_due(world)
    return actor


@inner
def disband(world: World) -> None:
    """Let nobody decode any more at the node at hand."""
    batch = batch_of(world)
    batch.size, batch.bytes, batch.first, batch.since_ns = 0, 0, NONE, world.control.now
    _set_due(world)


@inner
def _merge(world: World, one: int, other: int) -> int:
    """Return the first of two heaps of those that wait, made into one (a skew heap); NONE is an empty one."""
    heap, root, last = world.decoding, NONE, NONE
    while one >= 0 and other >= 0:
        if heap[other].when < heap[one].when or (heap[other].when == heap[one].when and other < one):
            one, other = other, one
        if last == NONE:
            root = one
        else:
            heap[last].left = one
        # What is left to merge becomes its left heap.
        last, rest = one, heap[one].right
        heap[one].right = heap[one].left
        one = rest
    rest = other if one == NONE else one
    if last == NONE:
        root = rest
    else:
        heap[last].left = rest
    return root


@forced
def batch_of(world: World) -> Any:
    """Return the batch of the node whose tiers are at hand."""
    return world.fleet.batches[world.control.node]


@inner
def first_due(world: World) -> int:
    """Return the node in whose batch somebody is due first."""
    return world.fleet.winners[1] if world.fleet.count > 1 else 0


@inner
def _play(world: World) -> None:
    """Let the batch at hand, whose first has changed, play the tournament again."""
    winners, i = world.fleet.winners, (len(world.fleet.winners) // 2 + world.control.node) >> 1
    while i > 0:
        one, other = winners[2 * i], winners[2 * i + 1]
        if other != NONE and _is_earlier(world, other, one):
            one = other
        winners[i] = one
        i >>= 1


@inner
def _is_earlier(world: World, one: int, other: int) -> bool:
    """Return whether somebody in the batch of node `one` is due before anybody in that of `other`."""
    mine, yours = world.fleet.batches[one], world.fleet.batches[other]
    return mine.due_ns < yours.due_ns or (mine.due_ns == yours.due_ns and mine.first < yours.first)


@inner
def _change(world: World, requests: int, step_bytes: int) -> None:
    """Add `requests` to the batch, which take `step_bytes` of each step."""
    batch, knobs = batch_of(world), world.knobs
    _advance(world)
    batch.size += requests
    batch.bytes += step_bytes
    weights = min(knobs.decode_ns_per_token, batch.size * knobs.decode_active_ns)
    if knobs.decode_active_ns == 0:
        weights = knobs.decode_ns_per_token
    if knobs.decode_bytes_per_us > 0:
        weights += batch.bytes * 1000 // knobs.decode_bytes_per_us
    batch.step_ns = max(1, weights, batch.size * knobs.decode_compute_ns)
    _set_due(world)


@inner
def _advance(world: World) -> None:
    """Bring the clock of steps up to now."""
    batch, now = batch_of(world), world.control.now
    if batch.size > 0:
        passed = now - batch.since_ns
        batch.steps += passed // batch.step_ns * PARTS + passed % batch.step_ns * PARTS // batch.step_ns
    batch.since_ns = now


@inner
def _set_due(world: World) -> None:
    """Note when the first that waits for the clock is due if the batch stays as it is: never if after the end."""
    batch = batch_of(world)
    batch.due_ns = UNBOUNDED
    if batch.first != NONE:
        left = max(0, world.decoding[batch.first].when - batch.steps)
        if left // PARTS < (world.knobs.until_ns - batch.since_ns) // batch.step_ns + 1:
            due = batch.since_ns + left // PARTS * batch.step_ns - (-(left % PARTS) * batch.step_ns // PARTS)
            if due < world.knobs.until_ns:
                batch.due_ns = due
    if world.fleet.count > 1:
        _play(world)


@inner
def _step_bytes(world: World, tokens: int) -> int:
    """Return what one decode step reads of the cache of a context of `tokens` on one rank; states are written too."""
    pieces, size = world.pieces, 0
    for p in range(len(pieces)):
        piece, read = pieces[p], 0
        if piece.kind == GROWING:
            read = tokens
        elif piece.kind in (SLIDING, CHUNKED):
            read = min(tokens, piece.window)
        size += read * piece.token_bytes + 2 * piece.state_bytes
    return size
