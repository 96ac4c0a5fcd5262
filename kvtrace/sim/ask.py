"""The compiled prompts: which request comes next, and of which objects it consists.

A user plans its next turn, or the next request of a file arrives. Its objects are made when first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.core.compiled import njit
from kvtrace.sim.records import FREE_COUNT, HELD, LIVE, NONE, OBJECT, SEEN, SIZE
from kvtrace.sim.tiers import release
from kvtrace.sim.world import (
    ASKED_NS,
    C_CONTEXT,
    C_LENGTH,
    C_REMAINING,
    C_TOKENS,
    CHAINS,
    CONTEXT,
    CONVERSATIONS,
    DECODE_ONLY,
    ENTRY,
    FIRST,
    HISTORY,
    INPUT,
    ITEM_FIRST,
    ITEM_OBJECTS,
    ITEM_TOKENS,
    ITEM_USES,
    LENGTH,
    LOAD,
    LOGGED,
    MADE,
    MAX_SIZE,
    MIN_SIZE,
    NEW,
    NEW_TOKENS,
    NEXT_OBJECT,
    NEXT_REQUEST,
    NEXT_SESSION,
    NOW,
    OUTPUT,
    PROMPT,
    REQUEST,
    RETRIEVED,
    RETRIEVED_OBJECTS,
    RETRIEVED_TOKENS,
    SESSION,
    SHARED,
    STAGE,
    STEP,
    TURN,
)
from kvtrace.users.synthetic import KIND, QOS, next_extra, next_turn, pick, pick_distinct

if TYPE_CHECKING:
    from kvtrace.sim.world import World

MILLION = 1_000_000


@njit
def ask(world: World, user: int) -> int:
    """Plan the next request of a user; return NONE if no more may ask."""
    me, knobs, control = world.actors[user], world.knobs, world.control
    if control[NEXT_REQUEST] >= knobs.max_requests:
        return NONE
    if knobs.mode == DECODE_ONLY:
        _choose_entry(world, user)
    else:
        _plan_turn(world, user)
    me[REQUEST] = control[NEXT_REQUEST]
    control[NEXT_REQUEST] += 1
    line = world.log[control[LOGGED]]
    control[LOGGED] += 1
    line[0], line[1], line[2], line[3] = control[NOW], me[REQUEST], me[SESSION], me[TURN]
    line[4], line[5], line[6], line[7] = (me[INPUT], me[OUTPUT], world.users[user, QOS], world.users[user, KIND])
    me[STAGE], me[ASKED_NS], me[STEP] = 0, control[NOW], LOAD
    return 0


@njit
def _plan_turn(world: World, user: int) -> None:
    """Draw the user's next turn, its conversation, and what it retrieves."""
    me, knobs, control = world.actors[user], world.knobs, world.control
    turn = next_turn(world.users, knobs.seed, user, me[TURN], me[HISTORY], knobs.max_context_tokens)
    if turn.is_new_conversation:
        _leave_conversation(world, user)
        me[SESSION] = control[NEXT_SESSION]
        control[NEXT_SESSION] += 1
        _choose_prompt(world, user)
    me[NEW_TOKENS], me[OUTPUT] = turn.new_tokens, turn.output_tokens
    me[INPUT] = me[HISTORY] + turn.new_tokens
    me[NEW] = me[INPUT] // knobs.chunk_tokens - me[SHARED] - me[LENGTH] if knobs.chunk_tokens else 1
    _note_size(world, user)
    _retrieve(world, user)


@njit
def _choose_prompt(world: World, user: int) -> None:
    """Draw whether the user's new conversation begins with a system prompt, and with which."""
    me, knobs = world.actors[user], world.knobs
    me[PROMPT], me[SHARED] = NONE, 0
    if knobs.prompt_ppm and next_extra(world.users, knobs.seed, user, 0, MILLION - 1) < knobs.prompt_ppm:
        me[PROMPT] = next_extra(world.users, knobs.seed, user, 0, knobs.prompts - 1)
        me[SHARED] = world.items[me[PROMPT], ITEM_OBJECTS]
        me[HISTORY] = world.items[me[PROMPT], ITEM_TOKENS]


@njit
def _retrieve(world: World, user: int) -> None:
    """Draw whether the user's request retrieves chunks of a document, and which; none that its context cannot hold."""
    me, knobs, users = world.actors[user], world.knobs, world.users
    me[RETRIEVED], me[RETRIEVED_OBJECTS], me[RETRIEVED_TOKENS] = 0, 0, 0
    if not knobs.retrieve_ppm or next_extra(users, knobs.seed, user, 0, MILLION - 1) >= knobs.retrieve_ppm:
        return
    document = pick(world.document_weight, users, knobs.seed, user)
    first, end = world.documents[document], world.documents[document + 1]
    chosen = world.retrieved[user]
    count = pick_distinct(chosen, end - first, knobs.is_zipf_chunk, users, knobs.seed, user)
    tokens = 0
    for i in range(count):
        chosen[i] += first
        tokens += world.items[chosen[i], ITEM_TOKENS]
    if me[INPUT] + tokens + me[OUTPUT] > knobs.max_context_tokens:
        return
    me[RETRIEVED], me[RETRIEVED_TOKENS] = count, tokens
    for i in range(count):
        me[RETRIEVED_OBJECTS] += world.items[chosen[i], ITEM_OBJECTS]
    me[INPUT] += tokens


@njit
def _choose_entry(world: World, user: int) -> None:
    """Draw which of its entries the user decodes on; the entry is a conversation that only ever decodes."""
    me, knobs, items = world.actors[user], world.knobs, world.items
    turn = next_turn(world.users, knobs.seed, user, 0, 0, knobs.max_context_tokens)
    number = user * knobs.entries + next_extra(world.users, knobs.seed, user, 0, knobs.entries - 1)
    item = knobs.first_entry + number
    me[SESSION], me[TURN] = number, items[item, ITEM_USES]
    items[item, ITEM_USES] += 1
    me[PROMPT], me[SHARED] = item, items[item, ITEM_OBJECTS]
    me[INPUT], me[OUTPUT], me[NEW_TOKENS], me[NEW] = items[item, ITEM_TOKENS], turn.output_tokens, 0, 0


@njit
def arrive(world: World, actor: int, request: int) -> None:
    """Make `actor` the request number `request` of the file."""
    me, knobs = world.actors[actor], world.knobs
    me[STEP], me[REQUEST], me[STAGE], me[ASKED_NS] = LOAD, request, 0, world.control[NOW]
    me[INPUT], me[OUTPUT] = world.input_tokens[request], world.output_tokens[request]
    me[NEW_TOKENS] = me[INPUT]
    me[PROMPT] = NONE
    if knobs.source == CHAINS:
        me[FIRST], me[NEW] = world.offsets[request], 0
        me[LENGTH] = world.offsets[request + 1] - me[FIRST]
        return
    row = world.conversation[request]
    mine = world.conversations[row]
    if mine[C_CONTEXT] == NONE:
        mine[C_CONTEXT] = _take_context(world)
    me[SESSION], me[CONTEXT], me[LENGTH] = row, mine[C_CONTEXT], mine[C_LENGTH]
    if knobs.chunk_tokens:
        chunks = me[INPUT] // knobs.chunk_tokens
        me[NEW] = max(0, chunks - me[LENGTH])
        me[LENGTH] = min(chunks, me[LENGTH])
    else:
        new_tokens = max(0, me[INPUT] - mine[C_TOKENS])
        mine[C_TOKENS] = me[INPUT] + me[OUTPUT]
        me[NEW] = int(new_tokens > 0)
        if new_tokens:
            me[NEW_TOKENS] = new_tokens
    if me[NEW]:
        _note_size(world, actor)


@njit
def _take_context(world: World) -> int:
    idle = world.idle_contexts
    last = len(idle) - 1
    idle[last] -= 1
    context: int = idle[idle[last]]
    return context


@njit
def _note_size(world: World, actor: int) -> None:
    size, control = _new_size(world, actor), world.control
    control[MIN_SIZE] = min(control[MIN_SIZE], size)
    control[MAX_SIZE] = max(control[MAX_SIZE], size)


@njit
def _new_size(world: World, actor: int) -> int:
    """Return the bytes of each object that the actor's request makes."""
    knobs = world.knobs
    size: int = knobs.chunk_bytes if knobs.chunk_tokens else world.actors[actor, NEW_TOKENS] * knobs.bytes_per_token
    return size


@njit
def _make(world: World, size: int, uses: int) -> int:
    """Take a slot for a new object of `size` bytes that `uses` will ask for; return it."""
    slots, control = world.slots, world.control
    control[FREE_COUNT] -= 1
    slot: int = world.free[control[FREE_COUNT]]
    slots[slot, OBJECT] = control[NEXT_OBJECT]
    control[NEXT_OBJECT] += 1
    slots[slot, SIZE] = size
    slots[slot, LIVE], slots[slot, HELD], slots[slot, SEEN] = 0, uses, 0
    world.made_size[control[MADE]] = size
    control[MADE] += 1
    return slot


@njit
def make_objects(world: World, actor: int) -> None:
    """Take slots for the NEW objects of the actor's request and append them to its conversation."""
    me = world.actors[actor]
    size = _new_size(world, actor)
    for i in range(me[NEW]):
        world.contexts[me[CONTEXT], me[LENGTH] + i] = _make(world, size, 1)
    me[LENGTH] += me[NEW]
    if world.knobs.source == CONVERSATIONS and me[NEW]:
        world.conversations[me[SESSION], C_LENGTH] = me[LENGTH]


@njit
def find_objects(world: World, actor: int) -> None:
    """Take slots for those objects of the actor's chain that nobody has asked for before."""
    me = world.actors[actor]
    for i in range(me[FIRST], me[FIRST] + me[LENGTH]):
        number = world.chains[i]
        if world.object_slot[number] == NONE:
            world.object_slot[number] = _make(world, world.knobs.chunk_bytes, world.object_uses[number])


@njit
def gather(world: World, actor: int) -> int:
    """Copy the slots of the actor's request, in order, to `chain`; return how many."""
    me, chain, items = world.actors[actor], world.chain, world.items
    n = 0
    for i in range(me[RETRIEVED]):
        item = world.retrieved[actor, i]
        for k in range(items[item, ITEM_OBJECTS]):
            chain[n] = items[item, ITEM_FIRST] + k
            n += 1
    for k in range(me[SHARED]):
        chain[n] = items[me[PROMPT], ITEM_FIRST] + k
        n += 1
    if world.knobs.source == CHAINS:
        for i in range(me[FIRST], me[FIRST] + me[LENGTH]):
            chain[n] = world.object_slot[world.chains[i]]
            n += 1
        return n
    for i in range(me[LENGTH]):
        chain[n] = world.contexts[me[CONTEXT], i]
        n += 1
    return n


@njit
def set_entry(world: World, actor: int, n: int) -> None:
    """Note the entry that decoding reads: the last of the `n` objects of the request, if it has any of its own."""
    me = world.actors[actor]
    is_any = me[LENGTH] > 0 or (world.knobs.mode == DECODE_ONLY and n > 0)
    me[ENTRY] = world.chain[n - 1] if is_any else NONE


@njit
def _leave_conversation(world: World, user: int) -> None:
    me = world.actors[user]
    _release_all(world, me[CONTEXT], me[LENGTH])
    me[LENGTH], me[TURN], me[HISTORY] = 0, 0, 0


@njit
def _release_all(world: World, context: int, length: int) -> None:
    slots = world.slots
    for i in range(length):
        slot = world.contexts[context, i]
        slots[slot, HELD] = 0
        release(world.tiers, slots, world.free, world.control, slot)


@njit
def leave(world: World, actor: int) -> None:
    """End the request of a file: what no request is to ask for any more is forgotten where nothing else needs it."""
    me, slots = world.actors[actor], world.slots
    if world.knobs.keeps_ghosts:
        return
    if world.knobs.source == CONVERSATIONS:
        mine = world.conversations[me[SESSION]]
        mine[C_REMAINING] -= 1
        if mine[C_REMAINING] == 0:
            _release_all(world, mine[C_CONTEXT], mine[C_LENGTH])
            idle = world.idle_contexts
            idle[idle[len(idle) - 1]] = mine[C_CONTEXT]
            idle[len(idle) - 1] += 1
            mine[C_CONTEXT], mine[C_LENGTH] = NONE, 0
        return
    for i in range(me[FIRST], me[FIRST] + me[LENGTH]):
        slot = world.object_slot[world.chains[i]]
        slots[slot, HELD] -= 1
        release(world.tiers, slots, world.free, world.control, slot)
