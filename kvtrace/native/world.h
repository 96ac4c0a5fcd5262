// The complete state of a simulation, and what each field means.
// Python reads this header (kvtrace/native/records.py) and lays out its NumPy records and tables by
// it, so no preprocessor directive may stand inside a struct. TABLE(type, name) declares an array
// and its length.
//
// Times are virtual and in nanoseconds, sizes are in bytes. An index, a number or a time that does
// not exist is NONE. A field named for a set of tiers ("..._tiers") holds one bit for each level.
#ifndef KVTRACE_WORLD_H
#define KVTRACE_WORLD_H

#include "core.h"

#define TABLE(type, name)                                                                          \
    type *name;                                                                                    \
    int64_t name##_count

// A time that never comes, or a capacity without a bound.
#define UNBOUNDED ((int64_t)1 << 62)

// What the simulation asks Python for: to take the rows made since the last flush, or to enlarge
// tables for at least so many more slots of objects, slots of copies, actors, objects of one
// request, or seconds.
enum { FLUSH, MORE_SLOTS, MORE_COPIES, MORE_ACTORS, LONGER_CHAIN, MORE_SECONDS };

// The next step of an actor, which is a user or a request in flight.
enum { STEP_ASK, STEP_ENQUEUE, STEP_LOAD, STEP_PREFILL, STEP_STORE, STEP_DECODE, STEP_END };

// Knobs.promotion, in the order of preset.Promotion.
enum { NO_PROMOTION, ALWAYS_PROMOTE, SECOND_TOUCH, TEMPORARY };

// Knobs.mode, in the order of workload.Mode.
enum { PREFILL_AND_DECODE, PREFILL_ONLY, DECODE_ONLY };

// Knobs.source: synthetic users, a file whose requests share objects within their conversation, or
// a file whose requests name their objects.
enum { USERS, CONVERSATIONS, CHAINS };

// Tier.admission, in the order of tier.Admission.
enum { ALWAYS, NTH_OFFER, FREQUENCY, TINYLFU };

// Tier.recency, in the order of tier.Recency: in which order the objects of one request become
// recent.
enum { HEAD_FIRST, TAIL_FIRST, TAIL_FIRST_AT_END, AT_END };

// Piece.kind, in the order of shape.PieceKind: how a layer's cache grows with the context.
enum { GROWING, SLIDING, CHUNKED, STATE };

// Operations and phases of trace rows, in the order of the schema.
enum { OP_READ, OP_WRITE, OP_DELETE };
enum {
    PHASE_POPULATE,
    PHASE_LOAD,
    PHASE_PROMOTE,
    PHASE_PREFILL,
    PHASE_STORE,
    PHASE_DECODE,
    PHASE_DEMOTE,
    PHASE_EVICT,
    PHASE_RETRIEVE,
    PHASE_OTHER,
    PHASE_SAVE,
    PHASE_RESTORE,
    PHASE_COLLECT,
    PHASE_LOSE
};

// FleetEvent.kind: a node is lost or joins, a tier of a node or rack is emptied, the shared store
// becomes unreachable or comes back.
enum { LOST, JOINED, EMPTIED, GONE, BACK };

enum { LISTS = 4 };     // The number of lists in which a tier may keep its slots.
enum { NOT_IDLE = -2 }; // Link.newer of a slot that is not in list IDLE of GPU memory.
enum { LINE = 16 };     // The number of consecutive objects whose copies share a CopyLine.

// A user continues its conversation with this chance, in a thousand, and for at most so many turns.
enum { CONTINUE_PER_MILLE = 800, MAX_TURNS = 50 };

// The bits of a packed entry, which stands for an object without a slot. From the lowest bit: one
// bit for each tier in which the object is live, whether it was loaded before, and 1 + the number
// of the node or rack whose own tiers have it (0: none). The object's number is above these. The
// packed entry itself is stored as -2 minus all that, because a slot is >= 0 and NONE is -1.
enum { LIVE_BITS = 8, PLACE_SHIFT = 9, PLACE_BITS = 15, PACKED_BITS = 24 };

typedef struct World World;

// Python's callback: does what is asked, for `need` items, and returns whether it could.
typedef bool Ask(int64_t what, int64_t need);

// The operations of an eviction policy; kvtrace/sim/policies.py describes them.
typedef int64_t ChooseVictim(World *world, int64_t level, int64_t incoming);
typedef void HitHook(World *world, int64_t level, int64_t slot);
typedef void InsertHook(World *world, int64_t level, int64_t slot, int64_t now);
typedef void RemoveHook(World *world, int64_t level, int64_t slot, int64_t is_evicted);
typedef void ForgetHook(World *world, int64_t level, int64_t slot);
typedef int64_t OfferAdmission(World *world, int64_t level, int64_t live_objects, int64_t is_full);
typedef void LookupHook(World *world, int64_t level, int64_t named, int64_t hit_end);
typedef void StoredHook(World *world, int64_t level, int64_t named, int64_t previous_offer);
typedef void EmptyHook(World *world, int64_t level, int64_t is_end);

// A router: the node that serves the request of an actor, whose `n` objects are in World.chain.
typedef int64_t RouteRequest(World *world, int64_t actor_id, int64_t n);

typedef struct {
    // Capacity.
    int64_t limit_bytes;          // The most bytes the tier may hold.
    int64_t low_bytes;            // Eviction goes on until the tier holds no more than this.
    int64_t largest_object_bytes; // Larger objects are never stored here.
    int64_t live_bytes;           // The bytes the tier holds now.

    // Compression. Rows have stored bytes; all other bytes here, limits included, are of whole
    // objects.
    int64_t stored_part_bytes; // What is stored of full_part_bytes.
    int64_t full_part_bytes;

    // Counters.
    int64_t hits;            // Objects found here by lookups.
    int64_t hit_bytes;       // Bytes of these.
    int64_t written_bytes;   // Bytes written, those before the start included.
    int64_t deleted_bytes;   // Bytes deleted.
    int64_t read_bytes;      // Bytes read.
    int64_t populated_bytes; // Bytes written before the start.

    // The service model of reads and writes, each indexed by OP_READ or OP_WRITE.
    int64_t bytes_per_s[2];   // Bandwidth; 0 if operations take no time.
    int64_t busy_until_ns[2]; // When the last operation that was submitted leaves the server.
    int64_t latency_ns;       // Added to each operation.
    int64_t concurrency;      // Operations in flight at once; 0 if unlimited.

    // The operations of one request.
    int64_t request_reads;    // Reads of one request in flight at once; 0 if unlimited.
    int64_t request_writes;   // Writes of one request in flight at once; 0 if unlimited.
    int64_t stage_operations; // Operations so far in the stage that is being made.
    int64_t parallel_reads;   // Reads so far in the batch of the request that is in flight.
    int64_t reads_began_ns;   // When this batch of reads began.
    int64_t reads_end_ns;     // When the last read of the request so far is done.
    int64_t readers;          // The ranks that read each object.

    // Lookup.
    int64_t takes_whole_offers; // Objects offered together are stored all or not at all.
    int64_t looks_past_miss;    // Lookups go on after the first miss.
    int64_t file_lookups;       // How many lookups there were of that kind.
    int64_t recency;            // The order in which a request's objects become recent.

    // The eviction policy; all of these are NULL for LRU.
    ChooseVictim *choose_victim;
    OfferAdmission *admits_offer;
    HitHook *on_hit;
    InsertHook *on_insert;
    RemoveHook *on_remove;
    ForgetHook *forget;
    LookupHook *on_lookup;
    StoredHook *on_stored;
    EmptyHook *on_empty;
    int64_t link;        // Which of a slot's links is that of this tier.
    int64_t behind_slot; // LRU: 1 + the slot right behind which the next used one goes; 0: first.

    // Admission.
    int64_t admission;              // The admission filter.
    int64_t admission_count;        // The offers or uses that the filter requires.
    int64_t admission_decay_ns;     // FREQUENCY: how often counts go down by one.
    int64_t admission_window_bytes; // TINYLFU: counts are halved after so many referenced bytes.
    int64_t window_bytes;           // TINYLFU: bytes referenced since counts were last halved.
    int64_t halvings;               // TINYLFU: how often counts were halved.
    int64_t refused_objects;        // Objects that the filter did not admit.
    int64_t refused_bytes;          // Bytes of these.

    // The store queue.
    int64_t queue_first;     // The first of the tier's places in World.store_queues.
    int64_t queue_limit;     // How many places these are.
    int64_t queue_head;      // The place of the oldest queued object.
    int64_t waiting_objects; // The queued objects.
    int64_t heartbeat_ns;    // The interval at which the queue is emptied; 0: as soon as possible.
    int64_t next_heartbeat_ns; // When it is emptied next; 0 if nothing is queued.
    int64_t dropped_objects;   // Objects for which the queue had no room.
    int64_t dropped_bytes;     // Bytes of these.
    int64_t lost_objects;      // Queued objects that the tier above had evicted meanwhile.
    int64_t lost_bytes;        // Bytes of these.

    int64_t pins_queued;     // The tier above does not evict what is queued; see leases.c.
    int64_t carried_objects; // Objects that count toward the next bucket and are not in it.
    int64_t carried_bytes;   // Bytes of one part of these.

    // Read leases.
    int64_t lease_ns;   // For how long what was read is not evicted; 0: without leases.
    int64_t full_bytes; // Bytes it may hold if it cannot evict down to its limit.

    // Buckets: many objects in one file.
    int64_t bucket_objects;    // The most objects of a bucket; 0 if the tier has no buckets.
    int64_t bucket_bytes;      // The most bytes of a bucket.
    int64_t bucket_key_bytes;  // What each object adds to the bucket beside its own bytes.
    int64_t bucket_meta_bytes; // What each object adds to the metadata file of the bucket.
    double collect_share;      // A bucket with a smaller share of live bytes is rewritten; 0: none.
    int64_t collected_bytes;   // Bytes written by such rewriting.

    // Eviction rounds, for a tier that evicts only at times.
    int64_t evict_every_ns; // The interval of the rounds; 0 if the tier evicts when it is full.
    int64_t next_round_ns;  // When the next round is due; 0 if none is.
    int64_t trigger_bytes;  // A round evicts if the tier holds at least so much.
    int64_t evict_ppm;      // The share of the live bytes that a round evicts; 0: to the low mark.
    int64_t goal_bytes;   // The bytes down to which the current round evicts; NONE between rounds.
    int64_t fits_at_once; // A full tier evicts just enough between rounds, too.

    // How loads and stores of a request count as uses.
    int64_t loads_backwards;  // Loaded objects count as used from the last to the first.
    int64_t loads_twice;      // Loaded objects count as used in both directions.
    int64_t stores_backwards; // Staged objects count as used from the last to the first.
    int64_t loads_whole;      // All that a request loads through the tier must be in it at once.

    // State of single policies.
    int64_t ttl_ns;          // TTL: how long an object lives.
    double arc_target_bytes; // ARC: the bytes that T1 should have.
    int64_t has_evicted;     // S3-FIFO: whether the tier has evicted anything.
    int64_t hand_slot;       // SIEVE: where the hand is.
} Tier;

// A list of a tier's slots, from the most recent to the least recent.
typedef struct {
    int64_t head;  // The most recent slot.
    int64_t tail;  // The least recent slot.
    int64_t bytes; // Bytes of all slots in it; not counted for LRU.
} RecencyList;

// A slot holds an object that some tier may evict, or one node's or rack's copy of it.
typedef struct {
    int64_t object;    // The number of the object, in order of creation.
    int64_t size;      // Bytes of all ranks together.
    int64_t home;      // Where World.contexts names it; of a copy, the object's own slot. Of a free
                       // slot: 1 + the next free one; 0 for the last.
    int16_t live;      // A bit for each tier that has it.
    int16_t held_by;   // HELD_BY_REQUESTS and HELD_BY_TIER bits: the slot is not reused.
    int8_t was_loaded; // It was loaded once and not promoted yet.
    int8_t is_pending; // It is in World.pending_release.
    int16_t place;     // Of a copy: 1 + the number of its place, nodes before racks.
} Slot;

// Slots of one kind, which is objects or copies. Each kind takes ranges of the slots for itself: so
// memory that tables have for the slots of the other kind is never touched, and takes no room.
typedef struct {
    int64_t first_free; // 1 + the first slot that was released; 0 if none is free.
    int64_t unused;     // The first slot of the last range that was never taken.
    int64_t unused_end; // The end of that range.
} SlotPool;

// A slot in GPU memory.
typedef struct {
    int32_t running_requests; // The requests in flight that use it.
    int32_t generation;       // Changes as the object leaves GPU memory.
} GpuUse;

// The neighbours of a slot in the list of a tier.
typedef struct {
    int32_t newer;
    int32_t older;
} Link;

// What a policy other than LRU notes of a slot.
typedef struct {
    int64_t count; // Uses, as the policy counts them; of TTL, when the slot expires.
    int32_t list;  // The list it is in; of SAE, the session it belongs to.
} Note;

// An object in a store queue.
typedef struct {
    int64_t slot;
    int64_t since_ns; // When it was queued.
    int64_t node;     // The node that queued it.
} QueuedStore;

// An object for which a tier with leases has no room yet.
typedef struct {
    int64_t slot;
    int64_t level;
    int64_t next; // 1 + the one behind it of the same node, or of those free; 0 for the last.
} WaitingStore;

// Of a slot in a bucket, and of the slot that stands for a bucket.
typedef struct {
    int64_t bucket; // Of an object: the bucket's slot. Of a bucket: bytes of its live objects.
    int64_t offset; // Of an object: where it begins. Of a bucket: its bytes.
    int64_t older;  // Of an object: the one before it in the bucket. Of a bucket: its last object.
    int64_t newer;  // Of an object: the one behind it in the bucket.
} Member;

// Of a slot in a tier that stores offers whole: what keeps it from being evicted.
typedef struct {
    int32_t new_in_offer; // The offer that stored it; 0 if it was evicted since.
    int32_t last_offer;   // The offer that named it last.
} Pin;

// A slot that a running request uses in GPU memory, as long as the slot's generation is the same.
typedef struct {
    int32_t slot;
    int32_t generation;
} GpuHold;

// An object of an answer that no request can name.
typedef struct {
    int64_t slot;
    int64_t object; // Its number: the slot holds another object once it was evicted.
} AnswerObject;

// A user, or a request in flight.
//
// Its prompt consists of the objects of the retrieved items, then of those shared with others (a
// system prompt), then of its own. Its own objects are row `context` of World.contexts; with
// CHAINS they are named by World.chains from `chain_first` on.
typedef struct {
    // The request.
    int64_t step;          // What the actor does next.
    int64_t request;       // The number of the request, in order of arrival.
    int64_t session;       // Its conversation.
    int64_t turn;          // Which turn of the conversation it is.
    int64_t input_tokens;  // Tokens of the prompt.
    int64_t output_tokens; // Tokens of the answer.
    int64_t new_tokens;    // Prompt tokens that the conversation did not have before.
    int64_t arrival_ns;    // When it arrived.
    int64_t node;          // The node that serves it.

    // The objects of its prompt.
    int64_t chain_first;       // With CHAINS: its first place in World.chains.
    int64_t context;           // Its row of World.contexts.
    int64_t own_objects;       // Objects that are neither retrieved nor shared.
    int64_t new_objects;       // The last of these, which are to be made or stored.
    int64_t made_objects;      // The objects it made when it was first served.
    int64_t prompt_item;       // The item of its system prompt; NONE without one.
    int64_t shared_objects;    // The objects of this item.
    int64_t retrieved_items;   // Chunks of a document that it retrieves.
    int64_t retrieved_objects; // The objects of these.
    int64_t retrieved_tokens;  // The tokens of these.
    int64_t decode_entry;      // The entry that decoding reads again; NONE without one.
    int64_t history_tokens;    // Tokens of the conversation before this turn.

    // Load, prefill and store.
    int64_t stage;              // The stage of its next operation.
    int64_t hit_end;            // The end of the objects that the lookup lets it load.
    int64_t missed_tokens;      // Prompt tokens that have to be computed.
    int64_t computed_tokens;    // Those of them that have been computed.
    int64_t ready_ns;           // Since when it could be computed.
    int64_t ttft_ns;            // Time to first token.
    int64_t offer;              // The number of its last offer.
    int64_t refused_objects;    // The last objects of that offer which a tier refused.
    int64_t sae_session;        // SAE: the session of its last hit; 0 if none.
    int64_t sae_session_number; // SAE: the number of that session, which tells reuse.

    // Decode.
    int64_t decode_reads;    // How often its entry was read for decoding.
    int64_t decode_start_ns; // When decoding began.
    int64_t reads_done_ns;   // When its last read for decoding is done.
    int64_t join_step;       // The batch's clock when it joined; NONE if it is in no batch.

    // Failures of nodes.
    int64_t restarts;        // How often it began again because its node was lost.
    int64_t has_first_token; // Whether its first token was recorded.
    int64_t first_token_ns;  // When its first token was there, the first time.

    // Waiting for its turn, and GPU memory.
    int64_t next_queued;   // 1 + the actor behind it in the prefill queue of its node; 0 if none.
    int64_t gpu_bytes;     // GPU memory reserved for it while it runs.
    int64_t loading_bytes; // Buffers of the staging tier that its loads from below take now.
    GpuHold *holds;        // The slots it uses there; allocated by C.
    int64_t holds_count;   // How many these are.

    // The objects of its answer in GPU memory (answers.c). Places are tokens of its conversation,
    // without what it retrieves.
    int64_t answer_begin;     // Where the answer begins.
    int64_t answer_end;       // Where the tokens end whose KV cache is computed.
    int64_t answer_next;      // Where the next of these objects begins.
    int64_t named_answers;    // Those in its context, which its next turn names.
    AnswerObject behind;      // The object behind which the next one goes in the recency list.
    AnswerObject *answers;    // Those without a name, in order; allocated by C.
    int64_t answers_count;    // How many these are.
    int64_t unfilled_answers; // The last of them, which the answer does not fill.
    int64_t generated_first;  // Of a user: the first of its own objects that its last turn
    int64_t generated_end;    // generated, and the end of these.
    int64_t next_decoding;    // 1 + the actor that decodes at its node and began after it; 0: none.
    int64_t previous_decoding; // 1 + the one that began before it; 0: none.
} Actor;

// The entries of a conversation's own objects, in order; allocated by C.
typedef struct {
    int64_t *entries;
    int64_t capacity; // How many entries there is memory for.
} Context;

// A conversation of a file.
typedef struct {
    int64_t objects;         // Its objects so far.
    int64_t tokens;          // Its tokens so far.
    int64_t remaining;       // Its requests that have not ended.
    int64_t generated_first; // The first of its objects that its last request generated.
    int64_t generated_end;   // The end of these.
} Conversation;

// A prompt part that conversations share.
typedef struct {
    int64_t tokens;
    int64_t first_slot; // The first of its slots, which are consecutive.
    int64_t objects;    // How many slots these are.
    int64_t uses;       // How often it was decoded.
} Item;

// A part of a chunk: the layers of one kind.
typedef struct {
    int64_t bytes;       // Bytes of all ranks.
    int64_t kind;        // How it grows with the context.
    int64_t window;      // The tokens of its window; 0 if it has none.
    int64_t token_bytes; // Bytes that one rank reads in a decode step for each token.
    int64_t state_bytes; // Bytes of state that one rank reads and writes in a decode step.
} Piece;

// A group of layers of a chunk that is an object of its own, and is read by a rule of its own.
typedef struct {
    int64_t bytes;  // Bytes of all ranks, padding included.
    int64_t kind;   // How the cache of its layers grows with the context.
    int64_t window; // The tokens of their window; 0 if they have none.
} Group;

// What attention adds to computing a prompt, for the layers of one span.
typedef struct {
    int64_t pair_fs;       // Femtoseconds for each pair of a query and a key.
    int64_t window_tokens; // The most keys of a query; 0: all before it.
    int64_t is_aligned;    // The keys are those since the last multiple of window_tokens.
} Attention;

// The outcome of the lookup of one request.
typedef struct {
    int64_t ts_ns;
    int64_t lookups;         // Objects looked up.
    int64_t local_hits;      // Hits in tiers of the node.
    int64_t shared_hits;     // Hits in tiers that nodes share.
    int64_t computed_tokens; // Prompt tokens to be computed.
    int64_t restarted;       // Whether the request began again.
} LookupOutcome;

// The first token of a request.
typedef struct {
    int64_t request; // The number of the request.
    int64_t ttft_ns; // Time to first token.
} FirstToken;

// A request that has ended.
typedef struct {
    int64_t request;   // The number of the request.
    int64_t answer_ns; // From its first token to its end.
    int64_t steps;     // The decode steps in that time, each of which generated a token.
} EndedRequest;

// A change of the fleet, as sim/fleet.py schedules it.
typedef struct {
    int64_t when;
    int64_t kind;
    int64_t place; // The node.
    int64_t tier;  // A level; of a lost node, a bit for each tier that keeps what it holds.
} FleetEvent;

// The position of the main loop, and how far buffers and stacks are filled.
typedef struct {
    int64_t now;
    int64_t next_request;    // The number of the next request of a user.
    int64_t next_session;    // The number of the next conversation of a user.
    int64_t next_object;     // The number of the next object.
    int64_t arrived;         // Requests of the file that have arrived.
    int64_t heap_size;       // Entries of World.heap.
    int64_t coming;          // Entries of Following.coming.
    int64_t idle;            // Entries of World.idle.
    int64_t pending_release; // Entries of World.pending_release.
    int64_t released;        // Entries of World.released.

    // Entries of the buffers that a flush empties.
    int64_t rows;
    int64_t made;
    int64_t logged;
    int64_t answered; // Entries of World.first_tokens.
    int64_t ended;    // Entries of World.ended_requests.
    int64_t lookups;

    // The actor at hand.
    int64_t actor_id;
    int64_t node;         // The node whose tiers are in World.tiers.
    int64_t chain_length; // The objects of its request, in World.chain.

    // The store at hand.
    int64_t offers;          // How many offers there were.
    int64_t offer;           // The number of this one; 0 if it is none.
    int64_t is_refused;      // Whether the tier refused it.
    int64_t known_objects;   // The first objects of the chain, which were found cached.
    int64_t is_stage_used;   // The stage that is being made has an operation.
    int64_t uses;            // Uses so far, as World.ages counts them.
    int64_t populated;       // Items written before the start.
    int64_t populating_node; // The node for which they are being written.

    // The fleet.
    int64_t next_node;              // Round-robin: the node whose turn it is.
    int64_t open_nodes;             // Nodes to which requests may be sent.
    int64_t events_done;            // Entries of World.fleet_events that have happened.
    int64_t next_event_ns;          // When the next one is due; UNBOUNDED if there is none.
    int64_t unreachable_tiers;      // A bit for the tier that is out of reach.
    int64_t reachable_object_bytes; // The largest object of this tier once it is reachable.
} Control;

// Counters of the whole simulation.
typedef struct {
    int64_t requests;
    int64_t input_tokens;
    int64_t output_tokens;
    int64_t lookups;
    int64_t lookup_bytes;
    int64_t prompt_lookups;   // Lookups of objects of system prompts.
    int64_t prompt_hits;      // Hits among these.
    int64_t document_lookups; // Lookups of retrieved objects.
    int64_t document_hits;    // Hits among these.
    int64_t decode_misses;    // Reads for decoding that found nothing.
    int64_t decoded_tokens;   // Tokens of the answers of requests that ended.
    int64_t decode_steps;     // Decode steps of these requests.
    int64_t decoding_ns;      // Time that these requests decoded.
    int64_t generated_tokens; // Tokens of all answers until the end, also of unfinished ones.
    int64_t prefills;
    int64_t waiting_ns;      // Time that prompts waited to be computed.
    int64_t missed_tokens;   // Prompt tokens to be computed, each time that a prompt begins.
    int64_t unplaced;        // New objects that no tier takes.
    int64_t offers;          // Offers to a tier that stores them whole.
    int64_t refused_offers;  // Those it refused.
    int64_t refused_objects; // The objects of these.
    int64_t stalled;         // Loads that are larger than a tier through which they must go.
    int64_t largest_load;    // Bytes of the largest load through such a tier.
    int64_t last_io_ns;      // The time of the last row.
} Total;

// An entry of a heap: who acts at a time, or at a count of the batch's clock.
typedef struct {
    int64_t when;
    int64_t actor; // An actor; in Following, a request.
} Event;

// The requests that a node decodes together.
typedef struct {
    int64_t size;           // How many they are.
    int64_t bytes;          // Bytes of KV cache that a step reads on one rank.
    int64_t step_ns;        // How long a step takes.
    int64_t prompt_step_ns; // How long a step takes that computes a part of a prompt, too.
    int64_t steps;          // The clock of steps, in STEP_PARTS of a step.
    int64_t since_ns;       // When the clock was brought up to date.
    int64_t due_ns;         // When the first that waits for the clock acts; UNBOUNDED if none does.
    int64_t first_actor;    // Who that is.
    int64_t waiting;        // Entries of the heap.
    Event *heap;            // Who waits, by the count of the clock; allocated by C.
} Batch;

// A request of a user, as in the table of requests.
typedef struct {
    int64_t arrival_ns;
    int64_t request_id;
    int64_t session_id;
    int64_t turn;
    int64_t input_tokens;
    int64_t output_tokens;
    int64_t qos;
    int64_t kind;
} LoggedRequest;

// A request that follows another one.
typedef struct {
    int64_t request;
    int64_t delay_ns;    // The time between the other one and this.
    int64_t is_of_start; // The delay begins with the start of the other one, not with its end.
} Follower;

// The state of a request that follows others.
typedef struct {
    int64_t left;     // How many it still waits for.
    int64_t ready_ns; // The earliest time at which it may arrive.
} Predecessors;

// A synthetic user.
typedef struct {
    int64_t kind;
    int64_t qos;
    int64_t context;     // Prompt tokens of its longest turn.
    int64_t output;      // Answer tokens of its longest turn.
    int64_t think_ns;    // Its usual think time.
    int64_t draws;       // Random numbers drawn for its turns.
    int64_t extra_draws; // Random numbers drawn for what it shares, so that turns stay the same.
} User;

// A turn in an open loop.
typedef struct {
    int64_t session;
    int64_t turn;
    int64_t input;
    int64_t output;
    int64_t qos;
    int64_t kind;
} Turn;

// One of the conversations that go on at the same time in an open loop.
typedef struct {
    int64_t user;           // Its user; NONE before the first.
    int64_t turns;          // Its turns so far.
    int64_t history_tokens; // Its tokens so far.
} LiveConversation;

// A request of a user that does not wait for answers.
typedef struct {
    int64_t time_ns;
    int64_t user;
    int64_t rank;         // The rank of its class of service; set by Python.
    int64_t conversation; // Its number among the conversations of the user.
    int64_t turn;
    int64_t input;
    int64_t output;
} OverlappingRequest;

// A node of the fleet.
typedef struct {
    int64_t is_up;
    int64_t outstanding;           // Requests sent to it that have not ended.
    int64_t waiting;               // Those of them whose prompt is not computed yet.
    int64_t prefilling_tokens;     // Prompt tokens it has yet to compute.
    int64_t active_tokens;         // Prompt tokens of its outstanding requests.
    int64_t prefill_busy_until_ns; // When it has computed all prompts that were begun.
    int64_t requests;              // Requests sent to it.
    int64_t turns;                 // The same as routers compare it: a new node starts level.
    int64_t input_tokens;          // Prompt tokens sent to it.
    int64_t computed_tokens;       // Prompt tokens it computed.
    int64_t computing_ns;          // How long it computed them.
    int64_t lookups;
    int64_t local_hits;
    int64_t shared_hits;
    int64_t link_busy_until_ns;  // When it has sent all that it has to send.
    int64_t sent_bytes;          // Bytes it sent to nodes that decode.
    int64_t first_queued;        // 1 + the first actor of its prefill queue; 0 if it is empty.
    int64_t last_queued;         // 1 + the last one.
    int64_t gpu_bytes;           // GPU memory of its running requests; what they share counts once.
    int64_t held_bytes;          // Bytes of the objects in GPU memory that they use now.
    int64_t first_decoding;      // 1 + the first actor that decodes there; 0 if none does.
    int64_t last_decoding;       // 1 + the last one.
    int64_t is_gpu_full;         // Whether the first of the queue waits for such memory.
    int64_t loading_requests;    // Requests whose loads from below the staging tier are in flight.
    int64_t loading_bytes;       // Buffers that these take there.
    int64_t is_load_full;        // Whether the first of the queue waits for one of them to end.
    int64_t first_waiting_store; // 1 + the first object that a tier with leases refused it.
    int64_t last_waiting_store;  // 1 + the last one; 0 if none waits.
} Node;

// The copies of an object that nodes and racks have.
typedef struct {
    int32_t node_copy;  // The copy in the node at hand.
    int32_t rack_copy;  // The copy in the rack at hand.
    int32_t first_copy; // The first of the list of all copies, but for that in the own slot.
    int16_t own_place;  // 1 + the place whose copy is in the object's own slot; 0 if none is.
    int16_t own_live;   // A bit for each tier of that place which has it.
} Copies;

// The copies of LINE consecutive objects at one place.
typedef struct {
    int32_t slot[LINE];
} CopyLine;

// What the preset and the model say; constant while the simulation runs.
typedef struct {
    // The load.
    int64_t source;       // Where requests come from.
    int64_t mode;         // Whether nodes compute prompts, decode, or both.
    int64_t seed;         // Of all random draws.
    int64_t until_ns;     // When the simulation ends.
    int64_t max_requests; // After how many requests it ends.
    int64_t follows;      // Requests of the file wait for others.
    int64_t max_context_tokens;

    // What users share.
    int64_t prompt_ppm;    // Conversations in a million that begin with a system prompt.
    int64_t prompts;       // The number of system prompts, which are the first items.
    int64_t retrieve_ppm;  // Requests in a million that retrieve chunks of a document.
    int64_t top_chunks;    // The most chunks that a request retrieves.
    int64_t is_zipf_chunk; // The popularity of chunks follows a Zipf distribution.
    int64_t first_entry;   // With DECODE_ONLY: the item of the first entry.
    int64_t entries;       // With DECODE_ONLY: the entries of each user.

    // Sizes.
    int64_t ranks;           // Ranks that store an object each for a slot.
    int64_t layers;          // Groups of layers that are an object each for a slot.
    int64_t chunk_tokens;    // Tokens of an object; 0 if a turn is one object.
    int64_t chunk_objects;   // Objects of a chunk, one for each of World.groups; else 1.
    int64_t chunk_bytes;     // Bytes of an object of a chunk, of all ranks, padding included.
    int64_t partial_unit;    // The size of a partial chunk is a multiple of this; 0: none stored.
    int64_t bytes_per_token; // Of all ranks together.

    // Sets of tiers.
    int64_t endless_tiers;  // Those that never evict.
    int64_t linked_tiers;   // How many there are of the others, whose lists link slots.
    int64_t filtered_tiers; // Those with an admission filter.
    int64_t queued_tiers;   // Those with a store queue.
    int64_t bucketed_tiers; // Those that store many objects in one file.
    int64_t whole_tier;     // The level of the tier that stores offers whole, if any does.
    int64_t staging;        // 1 + the level of the staging tier; 0 if there is none.

    // Slots.
    int64_t is_packed;    // An object that no tier may evict has no slot.
    int64_t shares_slots; // In a fleet, an object's own slot is that of one of its copies, too.
    int64_t keeps_ghosts; // A policy remembers what it evicted, so no object may be forgotten.

    // Lookup and load.
    int64_t is_prefix;         // Only the leading run of a prompt can be used.
    int64_t is_by_tier;        // Each tier continues the run where the tier before it had a miss.
    int64_t recomputes_last;   // The object with a prompt's last token is never a hit.
    int64_t min_load_tokens;   // A shorter run is not loaded from below the fastest tier.
    int64_t loads_at_once;     // Requests that load from below the staging tier; 0: any number.
    int64_t loads_limit_bytes; // No other begins from so many bytes of buffers on; 0: no limit.
    int64_t min_lookup_tokens; // A shorter prompt is not looked up below the fastest tier.
    int64_t looks_past_miss;   // In any tier, lookups go on past the first miss.
    int64_t loads_backwards;   // In any tier, loads count as used backwards or both ways.

    // Placement.
    int64_t is_write_back;    // New objects go to the fastest tier only, which demotes others.
    int64_t promotion;        // When loaded objects are copied to faster tiers.
    int64_t is_exclusive;     // A promoted object leaves the tier it was in.
    int64_t keeps_age;        // A demoted object stays as recent as it was.
    int64_t uses_backwards;   // In any tier, a request's objects count as used again as it ends.
    int64_t skips_held;       // What some tier has is not stored again.
    int64_t has_timed_work;   // Tiers expire, evict or store objects at times.
    int64_t offer_tokens;     // Prompt tokens computed between two stores; 0: all.
    int64_t offers_hits;      // Hits are offered again with what was computed.
    int64_t stores_generated; // What was generated is stored as the request ends.
    int64_t holds_answers; // What is generated takes room in the first tier, which is GPU memory.
    int64_t answer_ppm;    // So many in a million of these objects do, of a sample of objects.

    // Computing.
    int64_t prefill_ns_per_token;
    int64_t prefill_in_turn;          // A node computes one prompt at a time.
    int64_t prefill_only_from_tokens; // Prompts as long are not decoded here; 0: all are.
    // How long a decode step reads all weights; without batching, how long a token takes.
    int64_t decode_ns_per_token;
    int64_t prefill_gives_token; // The prefill generates the first token of the answer.
    int64_t decode_read_tokens;  // The entry is read again each time so many tokens are decoded.
    int64_t reads_at_once;       // These reads come one right after the other.
    int64_t step_tokens;         // Tokens of a step that prompts and decoding share; 0: separate.
    int64_t is_bounded;          // Requests wait for GPU memory, which is the fastest tier.
    int64_t is_batched;          // The time of a decode step depends on its batch.
    int64_t decode_active_ns;    // Time to read the weights that one token uses.
    int64_t decode_compute_ns;   // Time to compute one token of a batch.
    int64_t decode_bytes_per_us; // Bandwidth at which a step reads KV cache.

    int64_t is_counted_alone; // Rows are counted in World.by_second and not kept.
} Knobs;

// Trace rows, one table for each column. Request and stage are NONE for background work.
typedef struct {
    TABLE(int64_t, ts_ns);
    TABLE(int8_t, op);
    TABLE(int8_t, tier);
    TABLE(int8_t, phase);
    TABLE(int64_t, object_id);
    TABLE(int64_t, length_bytes);
    TABLE(int64_t, request_id);
    TABLE(int32_t, stage);
    TABLE(int16_t, rank);
} RowColumns;

// The requests of a file that follow others, by their rows there; empty if none does.
typedef struct {
    TABLE(int64_t, first); // [requests + 1]: followers[first[n]:first[n + 1]] follow request n.
    TABLE(Follower, followers);
    TABLE(Predecessors, predecessors); // [requests]
    TABLE(Event, coming);              // [requests]: a heap of those that wait for none, by time.
    TABLE(Event, came);                // [requests]: those that have arrived, in order.
} Following;

// The nodes, and what each has. With one node, most of it is empty.
//
// A place is a node or a rack. An object has one slot, which the tiers that all nodes share list.
// What a place has of it is a copy: a slot of its own, listed by the tiers of that place. Most
// objects have one copy: with Knobs.shares_slots it is in the object's own slot, which lists of
// both kinds of tiers may hold then, each with links of its own. While a node acts, World.tiers
// holds its tiers, and the slot of each object that is looked at says in which of them that object
// is live. One node alone is thus a fleet whose tiers are all shared.
typedef struct {
    int64_t count;            // Nodes.
    int64_t rack_nodes;       // Nodes of a rack.
    int64_t entry_nodes;      // The first so many nodes get requests; the others only decode.
    int64_t place_tiers;      // The tiers of which each node or rack has one; 0 with one node.
    int64_t rack_tiers;       // The tiers of which each rack has one.
    int64_t node_tiers;       // The tiers of which each node has one, with one node, too.
    int64_t link_bytes_per_s; // Bandwidth from a node to another; 0 if sending takes no time.
    RouteRequest *router;     // Chooses the node of a request.
    int64_t prefill_ppm;      // The router's weight of prefill, in millionths.
    int64_t prefix_ppm;       // The router's weight of cached prefixes, in millionths.
    int64_t load_ppm;         // The router's weight of load, in millionths.
    int64_t load_threshold;   // So many waiting requests count as full load.
    TABLE(Node, nodes);
    TABLE(Batch, batches);       // [nodes]
    TABLE(Tier, tiers);          // [places, levels]: those of the places that are not at hand.
    TABLE(RecencyList, lists);   // [places, levels, LISTS]: their lists.
    TABLE(Copies, copies);       // [slots]: of an object's slot.
    TABLE(Link, copy_links);     // [slots]: of a copy, its neighbours in the list of all copies.
    Table line_at;               // The index into `lines` by object number and place.
    CopyLine *lines;             // Allocated by C.
    int64_t lines_room;          // How many lines there is memory for.
    int64_t spare_line;          // 1 + the first unused line, which links to the next; 0 if none.
    TABLE(int64_t, due_ns);      // [places]: when a place that is not at hand has timed work next.
    TABLE(int64_t, prefix_runs); // [2 * nodes]: leading objects that each node has; their bytes.
    TABLE(int32_t, row_nodes);   // [rows]: the node of each row.
} Fleet;

struct World {
    Ask *ask;
    Knobs knobs;
    Control control;
    Total total;
    Fleet fleet;
    TABLE(FleetEvent, fleet_events);       // In order; empty if nothing happens.
    TABLE(LookupOutcome, lookup_outcomes); // [rows]: since the last flush; empty without events.
    RowColumns rows;                       // Since the last flush.
    // [seconds, levels, read and written, bytes and operations] of rows, without those before the
    // start; empty if not counted.
    TABLE(int64_t, by_second);
    Following following;
    TABLE(Tier, tiers);        // By level: 0 is the fastest.
    TABLE(RecencyList, lists); // [levels, LISTS]
    TABLE(Slot, slots);
    TABLE(Link, links);               // [slots, linked_tiers]
    TABLE(Link, idle_links);          // [slots]: list IDLE of GPU memory; empty if there is none.
    TABLE(GpuHold, released);         // A stack of slots that are to come into list IDLE.
    TABLE(Note, notes);               // [slots, levels]; empty if all tiers are LRU.
    TABLE(QueuedStore, store_queues); // [levels, queue_limit]: rings.
    WaitingStore *waiting_stores;     // Those of all nodes, and free ones; allocated by C.
    int64_t waiting_stores_end;       // The end of them.
    int64_t waiting_stores_count;     // Those that wait.
    int64_t free_waiting_store;       // 1 + the first that is free; 0 if none is.
    TABLE(Member, members);           // [slots]; empty without buckets.
    TABLE(int64_t, row_offsets);      // [rows]: where in its object a row begins, with buckets.
    TABLE(int8_t, made_kind);         // [rows]: 1 for made_size of a bucket or its metadata file.
    Table count_runs;                 // Admission: the run of counts of objects by tier and place.
    int64_t *counts;                  // Admission: [runs, COUNTS_IN_RUN]; allocated by C.
    int64_t counts_room;              // How many runs there is memory for.
    Table lfu_tops;                   // LFU: the most recent slot of each tier and count.
    void *sae_memories;               // SAE: its sessions, for each place; allocated by C.
    TABLE(int64_t, ages);             // [slots]: Control.uses at the last use, with keeps_age.
    TABLE(Pin, pins);                 // [slots]; empty if no tier stores offers whole.
    // [slots]: when the last read or write of each in a tier that stores offers whole is done;
    // empty without such a tier, or if reads and writes take no time.
    TABLE(int64_t, pinned_until_ns);
    TABLE(SlotPool, slot_pools);     // [2]: the slots of objects, and those of copies.
    TABLE(GpuUse, gpu_uses);         // [slots]; empty if requests do not wait for GPU memory.
    TABLE(int32_t, pending_release); // [slots]: a stack of those that may not be needed any more.
    TABLE(User, users);              // Empty with a file.
    TABLE(Actor, actors);            // Actor n is user n.
    TABLE(int64_t, idle);            // [actors]: a stack of unused ones.
    TABLE(Event, heap);              // [actors + 1]: who acts when.

    // Columns of a file of requests; empty with users.
    TABLE(int64_t, arrival_ns);
    TABLE(int64_t, input_tokens);
    TABLE(int64_t, output_tokens);
    TABLE(int64_t, conversation); // The row of `conversations`.
    TABLE(int64_t, offsets);      // With CHAINS: request n is chains[offsets[n]:offsets[n + 1]].
    TABLE(int32_t, chains);       // With CHAINS: the objects of all requests.
    TABLE(int32_t, object_uses);  // With CHAINS: [objects]: how often requests will name each.
    TABLE(Conversation, conversations);

    // Entries of each user or conversation. With CHAINS a single row with an entry for each object
    // of the file, which is NONE before the object is first named, and after it was forgotten.
    TABLE(Context, contexts);
    TABLE(Piece, pieces);
    TABLE(Group, groups); // Empty if a chunk is one object.
    TABLE(Attention, attention);
    TABLE(Item, items);              // System prompts, then document chunks, then decode entries.
    TABLE(int64_t, documents);       // [documents + 1]: the first item of each document.
    TABLE(int64_t, document_weight); // [documents]: cumulated popularity.
    TABLE(int64_t, retrieved);       // [actors, top_chunks]: the items that each actor retrieves.

    // Buffers that a flush empties.
    TABLE(int64_t, made_size); // [rows]: sizes of new objects.
    TABLE(LoggedRequest, log); // [rows]: requests of users.
    // [rows]: first tokens and ends of requests, in order; empty if nothing takes time.
    TABLE(FirstToken, first_tokens);
    TABLE(EndedRequest, ended_requests);

    // Scratch for the objects of one request, in the order of its prompt.
    TABLE(int64_t, chain);      // Their entries.
    TABLE(int8_t, hit_level);   // The fastest tier in which the lookup found each, or NONE.
    TABLE(int8_t, chain_mark);  // A flag of each, whose meaning is the current function's.
    TABLE(int64_t, group_runs); // [groups]: consecutive chunks that have an object of each group.
};

#endif
