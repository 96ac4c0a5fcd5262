"""The compiled prompts: which request comes next, and of which objects it consists.

A user plans its next turn, or the next request of a file arrives. Its objects are made when first asked for.
"""

from __future__ import annotations

from kvtrace.core.compiled import inner
from kvtrace.sim.records import CHAINS, CONVERSATIONS, DECODE_ONLY, LOAD, NONE, PACKED_BITS, World
from kvtrace.sim.tiers.rows import packed
from kvtrace.sim.tiers.slots import release, renew, see_all
from kvtrace.users.synthetic import next_extra, next_turn, pick, pick_distinct

MILLION = 1_000_000


@inner
def ask(world: World, user: int) -> int:
    """Plan the next request of a user; return NONE if no more may ask."""
    me, knobs, control = world.actors[user], world.knobs, world.control
    if control.next_request >= knobs.max_requests:
        return NONE
    if knobs.mode == DECODE_ONLY:
        _choose_entry(world, user)
    else:
        _plan_turn(world, user)
    me.request = control.next_request
    control.next_request += 1
    line = world.log[control.logged]
    control.logged += 1
    line.arrival_ns, line.request_id, line.session_id, line.turn = control.now, me.request, me.session, me.turn
    line.input_tokens, line.output_tokens = me.input, me.output
    line.qos, line.kind = world.users[user].qos, world.users[user].kind
    me.stage, me.asked_ns, me.step = 0, control.now, LOAD
    me.restarts, me.answered = 0, 0
    return 0


@inner
def _plan_turn(world: World, user: int) -> None:
    """Draw the user's next turn, its conversation, and what it retrieves."""
    me, knobs, control = world.actors[user], world.knobs, world.control
    is_new, me.new_tokens, me.output = next_turn(
        world.users[user], knobs.seed, user, me.turn, me.history, knobs.max_context_tokens
    )
    if is_new:
        _leave_conversation(world, user)
        me.session = control.next_session
        control.next_session += 1
        _choose_prompt(world, user)
    me.input = me.history + me.new_tokens
    me.new = me.input // knobs.chunk_tokens - me.shared - me.length if knobs.chunk_tokens else 1
    _note_size(world, user)
    _retrieve(world, user)


@inner
def _choose_prompt(world: World, user: int) -> None:
    """Draw whether the user's new conversation begins with a system prompt, and with which."""
    me, knobs, who = world.actors[user], world.knobs, world.users[user]
    me.prompt, me.shared = NONE, 0
    if knobs.prompt_ppm and next_extra(who, knobs.seed, user, 0, MILLION - 1) < knobs.prompt_ppm:
        me.prompt = next_extra(who, knobs.seed, user, 0, knobs.prompts - 1)
        me.shared = world.items[me.prompt].objects
        me.history = world.items[me.prompt].tokens


@inner
def _retrieve(world: World, user: int) -> None:
    """Draw whether the user's request retrieves chunks of a document, and which; none that its context cannot hold."""
    me, knobs, who = world.actors[user], world.knobs, world.users[user]
    me.retrieved, me.retrieved_objects, me.retrieved_tokens = 0, 0, 0
    if not knobs.retrieve_ppm or next_extra(who, knobs.seed, user, 0, MILLION - 1) >= knobs.retrieve_ppm:
        return
    document = pick(world.document_weight, who, knobs.seed, user)
    first, end = world.documents[document], world.documents[document + 1]
    chosen, at = world.retrieved, user * knobs.top_chunks
    count = pick_distinct(chosen, at, knobs.top_chunks, end - first, knobs.is_zipf_chunk, who, knobs.seed, user)
    tokens = 0
    for i in range(at, at + count):
        chosen[i] += first
        tokens += world.items[chosen[i]].tokens
    if me.input + tokens + me.output > knobs.max_context_tokens:
        return
    me.retrieved, me.retrieved_tokens = count, tokens
    for i in range(at, at + count):
        me.retrieved_objects += world.items[chosen[i]].objects
    me.input += tokens


@inner
def _choose_entry(world: World, user: int) -> None:
    """Draw which of its entries the user decodes on; the entry is a conversation that only ever decodes."""
    me, knobs, who = world.actors[user], world.knobs, world.users[user]
    _, _, me.output = next_turn(who, knobs.seed, user, 0, 0, knobs.max_context_tokens)
    me.session = user * knobs.entries + next_extra(who, knobs.seed, user, 0, knobs.entries - 1)
    me.prompt = knobs.first_entry + me.session
    item = world.items[me.prompt]
    me.turn = item.uses
    item.uses += 1
    me.shared, me.input, me.new_tokens, me.new = item.objects, item.tokens, 0, 0


@inner
def arrive(world: World, actor: int, request: int) -> None:
    """Make `actor` the request in row `request` of the file; requests are numbered as they arrive."""
    me, knobs = world.actors[actor], world.knobs
    me.step, me.request, me.stage, me.asked_ns = LOAD, world.control.arrived - 1, 0, world.control.now
    me.input, me.output = world.input_tokens[request], world.output_tokens[request]
    me.new_tokens = me.input
    me.restarts, me.answered = 0, 0
    me.prompt = NONE
    if knobs.source == CHAINS:
        if len(world.conversation):
            me.session = world.conversation[request]
        me.first, me.new = world.offsets[request], 0
        me.length = world.offsets[request + 1] - me.first
        return
    row = world.conversation[request]
    mine = world.conversations[row]
    if mine.context == NONE:
        mine.context = _take_context(world)
    me.session, me.context, me.length = row, mine.context, mine.length
    if knobs.chunk_tokens:
        chunks = me.input // knobs.chunk_tokens
        me.new = max(0, chunks - me.length)
        me.length = min(chunks, me.length)
    else:
        new_tokens = max(0, me.input - mine.tokens)
        mine.tokens = me.input + me.output
        me.new = int(new_tokens > 0)
        if new_tokens:
            me.new_tokens = new_tokens
    if me.new:
        _note_size(world, actor)


@inner
def _take_context(world: World) -> int:
    world.control.idle_contexts -= 1
    context: int = world.idle_contexts[world.control.idle_contexts]
    return context


@inner
def _note_size(world: World, actor: int) -> None:
    size, control = _new_size(world, actor), world.control
    control.min_size = min(control.min_size, size)
    control.max_size = max(control.max_size, size)


@inner
def _new_size(world: World, actor: int) -> int:
    """Return the bytes of each object that the actor's request makes."""
    knobs = world.knobs
    size: int = knobs.chunk_bytes if knobs.chunk_tokens else world.actors[actor].new_tokens * knobs.bytes_per_token
    return size


@inner
def _make(world: World, size: int, home: int) -> None:
    """Name a new object of `size` bytes at `home` of World.contexts."""
    control = world.control
    number = control.next_object
    control.next_object += 1
    world.made_size[control.made] = size
    control.made += 1
    if world.knobs.is_packed:
        world.contexts[home] = packed(number << PACKED_BITS)
        return
    control.free -= 1
    slot: int = world.free[control.free]
    what = world.slots[slot]
    what.object, what.size, what.home = number, size, home
    what.live, what.held, what.seen = 0, 1, 0
    renew(world, slot)
    world.contexts[home] = slot


@inner
def make_objects(world: World, actor: int) -> None:
    """Make the new objects of the actor's request and append them to its conversation."""
    me = world.actors[actor]
    size, end = _new_size(world, actor), me.context * world.knobs.context_width + me.length
    for i in range(end, end + me.new):
        _make(world, size, i)
    me.length += me.new
    if world.knobs.source == CONVERSATIONS and me.new:
        world.conversations[me.session].length = me.length


@inner
def find_objects(world: World, actor: int) -> None:
    """Make those objects of the actor's chain that nobody has asked for before."""
    me = world.actors[actor]
    for i in range(me.first, me.first + me.length):
        number = world.chains[i]
        if world.contexts[number] == NONE:
            _make(world, world.knobs.chunk_bytes, number)


@inner
def gather(world: World, actor: int) -> int:
    """Copy the objects of the actor's request, in order, to `chain`, seen from where it is served; return how many."""
    n = collect(world, actor)
    see_all(world, n)
    return n


@inner
def collect(world: World, actor: int) -> int:
    """Copy the objects of the actor's request, in order, to `chain`; return how many."""
    me, chain, knobs = world.actors[actor], world.chain, world.knobs
    n, at = 0, actor * knobs.top_chunks
    for i in range(at, at + me.retrieved):
        item = world.items[world.retrieved[i]]
        for k in range(item.objects):
            chain[n] = item.first + k
            n += 1
    if me.shared:
        first = world.items[me.prompt].first
        for k in range(me.shared):
            chain[n] = first + k
            n += 1
    if knobs.source == CHAINS:
        for i in range(me.first, me.first + me.length):
            chain[n] = world.contexts[world.chains[i]]
            n += 1
        return n
    first = me.context * knobs.context_width
    for i in range(first, first + me.length):
        chain[n] = world.contexts[i]
        n += 1
    return n


@inner
def home_of(world: World, actor: int, i: int) -> int:
    """Return where `chain[i]`, one of the actor's own objects, is named in World.contexts."""
    me, knobs = world.actors[actor], world.knobs
    home: int = 0
    if knobs.source == CHAINS:
        home = world.chains[me.first + i]
    else:
        home = me.context * knobs.context_width + i - me.retrieved_objects - me.shared
    return home


@inner
def set_entry(world: World, actor: int, n: int) -> None:
    """Note the entry that decoding reads: the last of the `n` objects of the request, if it has any of its own."""
    me = world.actors[actor]
    is_any = me.length > 0 or (world.knobs.mode == DECODE_ONLY and n > 0)
    me.entry = world.chain[n - 1] if is_any else NONE


@inner
def _leave_conversation(world: World, user: int) -> None:
    me = world.actors[user]
    _release_all(world, me.context, me.length)
    me.length, me.turn, me.history = 0, 0, 0


@inner
def _release_all(world: World, context: int, length: int) -> None:
    first = context * world.knobs.context_width
    for i in range(first, first + length):
        _forget(world, i)


@inner
def _forget(world: World, home: int) -> None:
    """Nobody can ask any more for what is named at `home`."""
    slot = world.contexts[home]
    world.contexts[home] = NONE
    if slot >= 0:
        world.slots[slot].held &= ~1
        world.slots[slot].home = NONE
        release(world, slot)


@inner
def leave(world: World, actor: int) -> None:
    """End the request of a file: what no request is to ask for any more is forgotten where nothing else needs it."""
    me = world.actors[actor]
    if world.knobs.keeps_ghosts:
        return
    if world.knobs.source == CONVERSATIONS:
        mine = world.conversations[me.session]
        mine.remaining -= 1
        if mine.remaining == 0:
            _release_all(world, mine.context, mine.length)
            world.idle_contexts[world.control.idle_contexts] = mine.context
            world.control.idle_contexts += 1
            mine.context, mine.length = NONE, 0
        return
    for i in range(me.first, me.first + me.length):
        number = world.chains[i]
        world.object_uses[number] -= 1
        if world.object_uses[number] == 0:
            _forget(world, number)
