"""Everything the compiled simulation loop knows, as one tuple of int64 arrays, and what their columns hold.

state.py says the same of tiers, slots and rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kvtrace.sim.records import STORE_CONTROLS

DONE, ROWS_FULL, SLOTS_FULL, ACTORS_FULL, CHAIN_FULL, CONTEXTS_FULL = range(6)
"""Why the loop returned."""

ASK, LOAD, PROMOTE, STORE, DECODE, END = range(6)
"""What an actor (a user, or a request in flight) does next."""

# Knobs.promotion and Knobs.mode, as hierarchy.Promotion and workload.Mode order them.
SECOND_TOUCH, TEMPORARY = 2, 3
PREFILL_ONLY, DECODE_ONLY = 1, 2

# Knobs.source: users, requests that share within a conversation, requests that name their objects.
USERS, CONVERSATIONS, CHAINS = range(3)

# Columns of World.pieces, and the kinds as models.PieceKind orders them.
PIECE_BYTES, PIECE_KIND, PIECE_WINDOW = range(3)
GROWING, SLIDING, CHUNKED, STATE = range(4)

# An actor's fields, columns of an int64 matrix. Its objects are, in order, those of RETRIEVED items, SHARED ones of
# the item PROMPT, and LENGTH of its own, of which up to NEW last ones are to be made or stored. Its own ones stand in
# row CONTEXT of World.contexts, or with CHAINS in World.chains from place FIRST on.
(
    STEP, REQUEST, SESSION, TURN, INPUT, OUTPUT, NEW_TOKENS, FIRST, CONTEXT, LENGTH, NEW, STAGE, DECODED, DECODE_START,
    HISTORY, ASKED_NS, REACHED, MISSED_TOKENS, ENTRY, PROMPT, SHARED, RETRIEVED, RETRIEVED_OBJECTS, RETRIEVED_TOKENS,
    ACTOR_FIELDS,
) = range(25)  # fmt: skip

# Columns of World.conversations: row of World.contexts (NONE before it begins and after it ends), how many objects,
# tokens so far, and requests that have not ended.
C_CONTEXT, C_LENGTH, C_TOKENS, C_REMAINING, CONVERSATION_FIELDS = range(5)

# Columns of World.items: what is shared by all: tokens, first of its slots (they are consecutive), how many slots,
# and how often it was decoded.
ITEM_TOKENS, ITEM_FIRST, ITEM_OBJECTS, ITEM_USES, ITEM_FIELDS = range(5)

# Fields of World.control.
(
    PENDING, NOW, ARRIVED, HEAP_SIZE, NEXT_REQUEST, NEXT_SESSION, NEXT_OBJECT, MADE, LOGGED, NEED, MIN_SIZE, MAX_SIZE,
    ANSWERED, POPULATED, CONTROLS,
) = range(STORE_CONTROLS, STORE_CONTROLS + 15)  # fmt: skip

# Fields of World.total.
(
    REQUESTS, INPUT_TOKENS, OUTPUT_TOKENS, LOOKUPS, LOOKUP_BYTES, DECODE_MISSES, UNPLACED,
    PROMPT_LOOKUPS, PROMPT_HITS, DOCUMENT_LOOKUPS, DOCUMENT_HITS, TOTALS,
) = range(12)  # fmt: skip


class Knobs(NamedTuple):
    """What the preset and the model say, as numbers."""

    source: int
    keeps_ghosts: int
    """A policy remembers what it evicted: then even what no request of the file names again must not be forgotten."""
    is_prefix: int
    is_write_back: int
    promotion: int
    """0 never, 1 always, SECOND_TOUCH, or TEMPORARY: to the fastest tier only."""
    is_exclusive: int
    """What is promoted leaves the tier it was in."""
    min_load_tokens: int
    stores_generated: int
    chunk_tokens: int
    """0: one object a turn."""
    chunk_bytes: int
    """Of all ranks and layers together, padding included."""
    decode_read_tokens: int
    prefill_only_from_tokens: int
    prefill_ns_per_token: int
    decode_ns_per_token: int
    bytes_per_token: int
    """Of all ranks together."""
    max_context_tokens: int
    seed: int
    until_ns: int
    max_requests: int
    mode: int
    """0 prefill and decode, PREFILL_ONLY, or DECODE_ONLY."""
    prompt_ppm: int
    """Conversations in a million that begin with a system prompt: one of the first `prompts` items."""
    prompts: int
    retrieve_ppm: int
    """Requests in a million that retrieve chunks of a document."""
    is_zipf_chunk: int
    first_entry: int
    entries: int
    """With DECODE_ONLY: each user's items, from `first_entry` on."""


class World(NamedTuple):
    """All state of a simulation, as int64 arrays; state.py says what tiers, slots and rows hold."""

    tiers: Any
    slots: Any
    free: Any
    """A stack of unused slots; control[FREE_COUNT] of them."""
    rows: Any
    knobs: Knobs
    pieces: Any
    """[pieces, 3]: what a chunk consists of: bytes of all ranks, kind, window in tokens."""
    control: Any
    total: Any
    users: Any
    """[users, synthetic.FIELDS]; empty with a file."""
    actors: Any
    """[actors, ACTOR_FIELDS]; actor n is user n."""
    idle: Any
    """[actors + 1]: a stack of unused actors; its size is the last element."""
    heap_ns: Any
    heap_actor: Any
    arrival_ns: Any
    """[requests]; empty with users. The rest of the file's columns follow."""
    input_tokens: Any
    output_tokens: Any
    conversation: Any
    """With CONVERSATIONS: [requests]: the row of `conversations`."""
    conversations: Any
    """With CONVERSATIONS: [conversations, CONVERSATION_FIELDS]."""
    contexts: Any
    """int32[users or conversations that go on, chunks]: the slots of each one's own objects, in order."""
    idle_contexts: Any
    """With CONVERSATIONS: [contexts + 1]: a stack of unused rows of `contexts`; its size is the last element."""
    offsets: Any
    """With CHAINS: request n has the objects chains[offsets[n]:offsets[n + 1]]."""
    chains: Any
    object_slot: Any
    """With CHAINS: [objects]: the slot of each object that was asked for."""
    object_uses: Any
    """With CHAINS: [objects]: how often requests name it."""
    items: Any
    """[items, ITEM_FIELDS]: system prompts, then the documents' chunks, then the users' entries to decode."""
    documents: Any
    """[documents + 1]: the first item of each document's chunks."""
    document_weight: Any
    """[documents]: how often each is asked for, cumulated."""
    retrieved: Any
    """[actors, top_chunks]: the items that each actor's request retrieves."""
    made_size: Any
    """[rows]: sizes of the objects that were made since the last flush."""
    log: Any
    """[rows, 8]: requests of users since the last flush, columns as in the requests table, no blocks."""
    first_ns: Any
    """[rows, 2]: time to the first token since the last flush, with and without the cache; empty if not modelled."""
    chain: Any
    """Scratch: the slots of one request."""
    where: Any
    """Scratch: the tier in which each was found."""
    wanted: Any
    """Scratch of make_room_by_demotion."""
