"""The compiled decode: an entry is read again as tokens are generated, and the request ends."""

from __future__ import annotations

from kvtrace.core.compiled import inner
from kvtrace.sim.ask import gather, leave, make_objects
from kvtrace.sim.policies.queues import link_of, on_hit, queue_of
from kvtrace.sim.records import ASK, DECODE_ONLY, END, NONE, PREFILL_ONLY, USERS, World
from kvtrace.sim.schedule import after_steps, call_followers, depart, join
from kvtrace.sim.store import store_rest
from kvtrace.sim.tiers.rows import DECODE as DECODE_PHASE
from kvtrace.sim.tiers.rows import is_endless, live_in, member_of
from kvtrace.sim.tiers.slots import see
from kvtrace.sim.tiers.tiers import fastest, read, touch
from kvtrace.users.synthetic import think_ns


@inner
def decode(world: World, actor: int) -> int:
    """Read the turn's own entry again as tokens are generated; return the time to the next such step."""
    me, knobs, control = world.actors[actor], world.knobs, world.control
    if control.now < me.served_ns:
        return me.served_ns - control.now
    done, reads = me.decoded, _reads(world, actor)
    is_read = done < reads and me.entry != NONE
    if not (is_read and knobs.reads_at_once) and (done == 0 or knobs.reads_at_once):
        me.decode_start = control.now
        if knobs.is_batched:
            join(world, actor)
    if not is_read:
        me.step = END
        if knobs.stores_generated and knobs.chunk_tokens and knobs.source == USERS:
            tokens = me.input - me.retrieved_tokens + me.output
            me.new = tokens // knobs.chunk_tokens - me.shared - me.length
        return _until(world, actor, me.output)
    see(world, me.entry)
    t = fastest(world, me.entry)
    me.served_ns = control.now
    if t == NONE:
        world.total.decode_misses += 1
    else:
        touch(world, t, me.entry)
        me.served_ns = read(world, t, me.entry, control.now, DECODE_PHASE, me.request, me.stage)
        me.stage += 1
    me.decoded = done + 1
    if done + 1 == reads or knobs.reads_at_once:
        return me.served_ns - control.now
    # The first read fetches the entry; read k >= 1 begins the k-th run of decode_read_tokens tokens. (On its own,
    # decoding has loaded the entry already, and begins with such a run.)
    run = done + 1 if knobs.mode == DECODE_ONLY else done
    return _until(world, actor, run * knobs.decode_read_tokens)


@inner
def _until(world: World, actor: int, tokens: int) -> int:
    """Return how long it takes until the request has generated so many `tokens`, or WAITS."""
    knobs, me = world.knobs, world.actors[actor]
    if knobs.is_batched:
        return after_steps(world, actor, tokens)
    return max(0, me.decode_start + tokens * knobs.decode_ns_per_token - world.control.now)


@inner
def _reads(world: World, actor: int) -> int:
    """Return how often the request's entry is read while it is decoded."""
    me, knobs = world.actors[actor], world.knobs
    is_long = 0 < knobs.prefill_only_from_tokens <= me.new_tokens
    if not knobs.decode_read_tokens or knobs.mode == PREFILL_ONLY or is_long:
        return 0
    runs: int = -(-me.output // knobs.decode_read_tokens)
    return runs if knobs.mode == DECODE_ONLY else 1 + runs


@inner
def end(world: World, actor: int) -> int:
    """End a request: a user thinks, for the time returned; a file's actor is idle again."""
    me, total = world.actors[actor], world.total
    total.decoded_tokens += me.output
    total.decoding_ns += world.control.now - me.decode_start
    depart(world, actor)
    node = world.fleet.nodes[me.node]
    node.outstanding -= 1
    node.active_tokens -= me.input
    if me.new:
        make_objects(world, actor)
    if me.new + me.refused:
        store_rest(world, actor)
    if world.knobs.is_tail_first_at_end:
        _use_backwards(world, actor)
    if world.knobs.source != USERS:
        if world.knobs.follows:
            call_followers(world, world.following.came[me.request].actor, 0)
        leave(world, actor)
        me.step = ASK  # as one that is idle
        world.idle[world.control.idle] = actor
        world.control.idle += 1
        return NONE
    me.history = me.input - me.retrieved_tokens + me.output
    me.turn += 1
    me.step = ASK
    return max(1, think_ns(world.users[actor], world.knobs.seed, actor))


@inner
def _use_backwards(world: World, actor: int) -> None:
    """Make the request's first objects the most recent ones of each tier that evicts by LRU and does so."""
    n, chain = gather(world, actor), world.chain
    for t in range(len(world.tiers)):
        tier = world.tiers[t]
        is_kept = tier.is_tail_first_at_end and tier.on_hit == 0 and not is_endless(world, t)
        if is_kept and not world.control.gone & (1 << t) and not _are_first(world, t, n):
            for i in range(n - 1, -1, -1):
                if live_in(world, chain[i]) & (1 << t):
                    on_hit(world, t, member_of(world, t, chain[i]))


@inner
def _are_first(world: World, t: int, n: int) -> bool:
    """Return whether those of `chain[:n]` that tier `t` has are its most recent ones already, in that order."""
    slot = queue_of(world, t, 0).head
    for i in range(n):
        if live_in(world, world.chain[i]) & (1 << t):
            if member_of(world, t, world.chain[i]) != slot:
                return False
            slot = link_of(world, t, slot).older
    return True
