"""Everything the compiled simulation knows, as records: of tiers, slots, actors, and what drives them."""

from __future__ import annotations

import numpy as np

from kvtrace.core.structures import Structure, number, part, record, table
from kvtrace.sim.events import ASKED, EVENT, WAIT, Following, RowColumns, int64s
from kvtrace.sim.fleet.nodes import Fleet
from kvtrace.users.synthetic import USER

UNBOUNDED = 2**62
NONE = -1

DONE, ROWS_FULL, SLOTS_FULL, ACTORS_FULL, CHAIN_FULL, CONTEXTS_FULL, FREQUENCIES_FULL = range(7)
"""Why the loop returned."""

ASK, LOAD, PROMOTE, STORE, DECODE, END = range(6)
"""What an actor (a user, or a request in flight) does next."""

# Knobs.promotion and Knobs.mode, as preset.Promotion and workload.Mode order them.
SECOND_TOUCH, TEMPORARY = 2, 3
PREFILL_ONLY, DECODE_ONLY = 1, 2

# Knobs.source: users, requests that share within a conversation, requests that name their objects.
USERS, CONVERSATIONS, CHAINS = range(3)

# TIER.admission, as tier.Admission orders them.
ALWAYS, NTH_OFFER, FREQUENCY, TINYLFU = range(4)

# PIECE.kind, as shape.PieceKind orders them.
GROWING, SLIDING, CHUNKED, STATE = range(4)

QUEUES = 4
"""Lists that a tier may keep its slots in."""


TIER = np.dtype(
    [
        *int64s("limit low largest used").descr,
        # What happened in it, in bytes but for the hits; populated: written before the start.
        *int64s("hits hit_bytes written_bytes deleted_bytes read_bytes populated_bytes").descr,
        # The service model: bytes a microsecond (0: takes no time), operations at once, and until when it is busy.
        *int64s("read_rate write_rate latency_ns concurrency read_busy_ns write_busy_ns").descr,
        # Operations of one request at once (0: all), those of the stage being written, those being read, since and
        # until when; whether it takes offers whole, whether look-ups go on past a miss, and how many there were;
        # whether an object used is less recent than those before it in its request, and whether as the request ends.
        *int64s("request_reads request_writes staged reading reads_began_ns reads_end_ns is_whole").descr,
        *int64s("looks_past_miss looked_up is_tail_first is_tail_first_at_end").descr,
        # Its policy's operations, as addresses of compiled functions; all 0: LRU.
        *int64s("on_hit on_insert choose on_remove forget").descr,
        # With LRU: 1 + the slot that the next one used comes right behind, or 0: it is the most recent.
        *int64s("behind").descr,
        # Which objects it takes, as admission.py counts: the count or the window that its admission needs, what was
        # referred to since the last halving of counts, how often they were halved, and what it did not take.
        *int64s("admission admission_count decay_ns window referred halvings refused refused_bytes").descr,
        # What waits to be stored: where in World.offers, how much may, the oldest, and how many; how often it is looked
        # at (0: whenever the tier is free), and when next; what it had no room for, and what was gone before its turn.
        *int64s("queue_first queue_limit queue_head waiting heartbeat_ns beat_ns").descr,
        *int64s("dropped dropped_bytes lost lost_bytes").descr,
        # Objects and bytes of a bucket (0: none), what each object adds to it and to its file beside; how many live.
        *int64s("bucket_objects bucket_bytes bucket_key_bytes bucket_meta_bytes buckets").descr,
        # Below which share of live bytes a bucket is collected (0: it goes whole), and the bytes written for that.
        ("collect_share", "f8"),
        ("collected_bytes", "i8"),
        # When it makes room, if only at times: each so many ns (0: whenever it must), the next of these times (0: it
        # holds too little), the bytes from which on it does, by what share of them (in millionths; 0: down to `low`),
        # and to which bytes it is going down (NONE: it is not). Whether what is loaded from it and staged in it counts
        # as used backwards.
        *int64s("evict_every_ns poll_ns trigger evict_ppm goal loads_backwards stores_backwards").descr,
        # What one policy alone needs: how long an object lives (TTL); bytes ARC means T1 to have; whether S3-FIFO ever
        # evicted; SIEVE's hand; LFU's unused groups (one of them, and how many were ever used).
        ("ttl_ns", "i8"),
        ("target", "f8"),
        *int64s("has_evicted hand free_group groups").descr,
    ]
)
"""A tier: bytes it may hold, bytes it goes down to when it must make room, largest object it takes, bytes it holds."""

QUEUE = int64s("head tail bytes")
"""A list of a tier's slots: the most recent, the least recent, and the bytes of all (not counted for LRU)."""

SLOT = np.dtype(
    [
        *int64s("object size home").descr,
        *(("live", "i2"), ("held", "i2"), ("seen", "i1"), ("is_loose", "i1"), ("place", "i2")),
    ],
    align=True,
)
"""A slot: the object it holds, its bytes (all ranks together), where in World.contexts it is named (NONE: nowhere, or
in World.items), a bit for each tier it is live in, 1 if somebody may still ask for it and 2 << t if it waits for tier t
(or'd; either way it is not reused), whether it was loaded once and not promoted yet, and if it is in World.loose. Of a
copy that a node or rack has: `place`, 1 + its number (nodes first), and `home` is the object's own slot."""

LINK = np.dtype([("newer", "i4"), ("older", "i4")])
"""Of a slot in a tier: its neighbours in the list it is in."""

NOTE = np.dtype([("count", "i8"), ("place", "i4"), ("top", "i4"), ("members", "i4")], align=True)
"""Of a slot in a tier whose policy is not LRU: a count (uses; TTL: when it expires) and in which list it is (LFU: in
which group); and of the LFU group of this number its most recent slot (if unused: the next unused group) and how many
it has."""

OFFER = int64s("slot since node")
"""What waits to be stored, since when, and which node offered it."""

MEMBER = int64s("bucket offset older newer")
"""Of a slot in a bucket: the bucket's slot, where in it it begins, and the members before and after it; of a bucket's
slot: of all ranks and layers, how many bytes live in it (if it may be collected) and it has, and its last member."""

SEEN = np.dtype([("count", "i4"), ("since", "i4")])
"""How often an object was offered to a tier, or used there: its count, and how often counts had decayed when it was."""

PACKED_BITS = 9
"""Of what stands for an object that needs no slot: a bit for each tier it is live in, and whether it was seen. The
number of the object is above; and -2 less all that is what stands in World.contexts, where a slot is >= 0."""

PIN = int64s("offer until_ns")
"""Of a slot: which offer it was last in (negative: it was there already), and until when it is read or written."""

ACTOR = int64s(
    "step request session turn input output new_tokens first context length new stage decoded decode_start history "
    "asked_ns reached missed_tokens entry prompt shared retrieved retrieved_objects retrieved_tokens queued_ns "
    "served_ns first_step computed refused offer node made restarts answered"
)
"""A user, or a request in flight. Its objects are, in order, those of `retrieved` items, `shared` ones of the item
`prompt`, and `length` of its own, of which up to `new` last ones are to be made or stored. Its own ones stand in row
`context` of World.contexts, or with CHAINS are named by World.chains from place `first` on. `queued_ns` is what was to
be computed before it when it came, `served_ns` when its last read is done, `first_step` the batch's clock when it
joined, `computed` its prompt's tokens computed so far, `refused` how many of the objects offered last a tier has not
taken, `offer` the number of the offer before, `node` where it is served. Where nodes are lost: `made`, how many of its
own it made as it was first served, `restarts`, how often it was begun again, and whether it was `answered` before."""

CONVERSATION = int64s("context length tokens remaining")
"""A conversation of a file: row of World.contexts (NONE before it begins and after it ends), how many objects, tokens
so far, and requests that have not ended."""

ITEM = int64s("tokens first objects uses")
"""What is shared by all: tokens, first of its slots (they are consecutive), how many, and how often it was decoded."""

PIECE = int64s("bytes kind window token_bytes state_bytes")
"""What a chunk consists of: bytes of all ranks, kind, window in tokens; and what one rank reads in a decode step, for
each token and of a state."""

WANTED = int64s("tier slot leaving lower")
"""At a depth of demotions: the tier that makes room, for which slot, which it gives up (NONE: not yet
chosen), and the tier that takes that (NONE: none does)."""

FIRST_TOKEN = int64s("with_cache_ns without_cache_ns")

CONTROL = int64s(
    "pending now arrived heap_size next_request next_session next_object made logged need min_size max_size answered "
    "populated rows free idle idle_contexts uses loose coming offers offer known is_staged is_refused node "
    "populating next_node open happened happen_ns gone gone_largest found due_ns counts"
)
"""Where the loop is: the actor whose step is due, the time, how much is in each buffer and stack, how much `need` asks
for, the least and largest size of an object, how many offers there were, what of the one being stored was found cached,
whether the stage being written has operations, whether the offer was refused, whose tiers World.tiers are, whose are
filled before the start, and whose turn it is to serve (round-robin); how many nodes may be sent requests; how many
steps of World.happenings are done, when the next is due (UNBOUNDED: never), a bit for the tier that is out of reach,
and the largest object that it takes else; when the first of Fleet.due is, or an earlier time; and how many of
Fleet.counted are in use."""

FOUND = int64s("ts_ns lookups local_hits shared_hits computed_tokens restarted")
"""What a request found as it was served, and tokens that it had to compute; whether it was begun again for it."""

HAPPENING = int64s("when kind place tier")
"""A step of what happens to the fleet, as fleet/incidents.py lays them out."""

TOTAL = int64s(
    "requests input_tokens output_tokens lookups lookup_bytes decode_misses unplaced prompt_lookups prompt_hits "
    "document_lookups document_hits decoded_tokens decoding_ns prefills waiting_ns offers refused_offers "
    "refused_objects"
)


class Knobs(Structure):
    """What the preset and the model say, as numbers."""

    source = number()
    keeps_ghosts = number()
    """A policy remembers what it evicted: then even what no request of the file names again must not be forgotten."""
    expires = number()
    """A tier forgets with time."""
    endless = number()
    """A bit for each tier that never gives anything up."""
    whole = number()
    """The tier that takes offers whole, if any does."""
    filtered = number()
    """A bit for each tier that does not take all that it is offered."""
    queued = number()
    """A bit for each tier that stores what it is offered later."""
    bucketed = number()
    """A bit for each tier that stores many objects as one."""
    is_packed = number()
    """Objects that no tier may give up have no slot."""
    ranks = number()
    """Objects of a slot: one for each rank and group of layers."""
    layers = number()
    is_prefix = number()
    is_write_back = number()
    promotion = number()
    """0 never, 1 always, SECOND_TOUCH, or TEMPORARY: to the fastest tier only."""
    is_exclusive = number()
    """What is promoted leaves the tier it was in."""
    is_tail_first_at_end = number()
    """In some tier: as a request ends, its objects count as used once more, backwards."""
    keeps_age = number()
    """What is demoted stays as recent as it was."""
    is_by_tier = number()
    """Each tier is asked for the run that goes on where the one before it had a miss."""
    staging = number()
    """1 + the tier whose buffers all that is stored and read from below takes, or 0."""
    skips_held = number()
    polls = number()
    """A tier makes room only at times."""
    loads_backwards = number()
    """In any tier."""
    min_load_tokens = number()
    offer_tokens = number()
    offers_hits = number()
    looks_past_miss = number()
    """Of any tier."""
    stores_generated = number()
    chunk_tokens = number()
    """0: one object a turn."""
    chunk_bytes = number()
    """Of all ranks and layers together, padding included."""
    decode_read_tokens = number()
    reads_at_once = number()
    prefill_only_from_tokens = number()
    prefill_ns_per_token = number()
    prefill_in_turn = number()
    decode_ns_per_token = number()
    is_batched = number()
    """A decode step depends on its batch, by the next three."""
    decode_active_ns = number()
    decode_compute_ns = number()
    decode_bytes_per_us = number()
    bytes_per_token = number()
    """Of all ranks together."""
    max_context_tokens = number()
    seed = number()
    until_ns = number()
    max_requests = number()
    mode = number()
    """0 prefill and decode, PREFILL_ONLY, or DECODE_ONLY."""
    prompt_ppm = number()
    """Conversations in a million that begin with a system prompt: one of the first `prompts` items."""
    prompts = number()
    retrieve_ppm = number()
    """Requests in a million that retrieve chunks of a document."""
    top_chunks = number()
    """The most that one retrieves."""
    is_zipf_chunk = number()
    first_entry = number()
    entries = number()
    """With DECODE_ONLY: each user's items, from `first_entry` on."""
    follows = number()
    """Requests of a file wait for others."""
    context_width = number()
    """Objects that a row of World.contexts holds."""


class World(Structure):
    """All state of a simulation."""

    knobs = part(Knobs)
    control = record(CONTROL)
    total = record(TOTAL)
    fleet = part(Fleet)
    happenings = table(HAPPENING)
    """In order; empty if nothing happens."""
    found = table(FOUND)
    """[rows]: what requests found since the last flush; empty if nothing happens."""
    rows = part(RowColumns)
    following = part(Following)
    tiers = table(TIER)
    queues = table(QUEUE)
    """[tiers, QUEUES]"""
    slots = table(SLOT)
    links = table(LINK)
    """[slots, tiers]"""
    notes = table(NOTE)
    """[slots, tiers], if any tier's policy is not LRU."""
    offers = table(OFFER)
    """[tiers, of each its queue_limit]: rings."""
    members = table(MEMBER)
    """[slots]; empty without knobs.bucketed, as the next two."""
    row_offsets = table("i8")
    """[rows]: where in its object a row begins."""
    made_kind = table("i1")
    """[rows]: 1 for those of made_size that are buckets, or the files beside them."""
    frequencies = table(SEEN)
    """[objects, tiers], or beside Fleet.counted if that is not empty; empty without knobs.filtered."""
    ages = table("i8")
    """[slots]: how many uses there had been when each was last used; empty without knobs.keeps_age."""
    pins = table(PIN)
    """[slots], if any tier takes offers whole or not at all."""
    free = table("i4")
    """A stack of unused slots; control.free of them."""
    loose = table("i4")
    """[slots]: those that may need none any more; control.loose of them."""
    users = table(USER)
    """Empty with a file."""
    actors = table(ACTOR)
    """Actor n is user n."""
    idle = table("i8")
    """[actors]: a stack of unused ones; control.idle of them."""
    heap = table(EVENT)
    """[actors + 1]: who acts when; control.heap_size of them."""
    decoding = table(WAIT)
    """[actors]: heaps of those that wait for the clock of a batch, one a node."""
    arrival_ns = table("i8")
    """[requests]; empty with users. The rest of the file's columns follow."""
    input_tokens = table("i8")
    output_tokens = table("i8")
    conversation = table("i8")
    """With CONVERSATIONS: [requests]: the row of `conversations`."""
    conversations = table(CONVERSATION)
    contexts = table("i8")
    """[users or conversations that go on, knobs.context_width]: the slots of each one's own objects, in order, or what
    stands for those that need none. With CHAINS: [objects]: the same, of each object of the file; NONE before it is
    asked for, and after."""
    idle_contexts = table("i8")
    """With CONVERSATIONS: a stack of unused rows of `contexts`; control.idle_contexts of them."""
    offsets = table("i8")
    """With CHAINS: request n has the objects chains[offsets[n]:offsets[n + 1]]."""
    chains = table("i4")
    object_uses = table("i4")
    """With CHAINS: [objects]: how often requests will still name it."""
    pieces = table(PIECE)
    items = table(ITEM)
    """System prompts, then the documents' chunks, then the users' entries to decode."""
    documents = table("i8")
    """[documents + 1]: the first item of each document's chunks."""
    document_weight = table("i8")
    """[documents]: how often each is asked for, cumulated."""
    retrieved = table("i8")
    """[actors, knobs.top_chunks]: the items that each actor's request retrieves."""
    made_size = table("i8")
    """[rows]: sizes of the objects that were made since the last flush."""
    log = table(ASKED)
    """[rows]: requests of users since the last flush."""
    first_token = table(FIRST_TOKEN)
    """[rows]: times to the first token since the last flush; empty if not modelled."""
    chain = table("i8")
    """Scratch: the objects of one request, as in contexts."""
    where = table("i1")
    """Scratch: the tier in which each was found."""
    wanted = table(WANTED)
    """Scratch of make_room_by_demotion: [tiers + 1]."""
