// All state of a simulation. Python reads this header too (kvtrace/native/records.py) and lays its
// NumPy records and tables out by it, so: one field list a line, no preprocessor inside,
// TABLE(type, name) for an array and its length.
//
// Times are virtual, in ns; sizes in bytes; an index or number that is not there is NONE.
#ifndef KVTRACE_WORLD_H
#define KVTRACE_WORLD_H

#include "core.h"

#define TABLE(type, name)                                                                          \
    type *name;                                                                                    \
    int64_t name##_count

#define UNBOUNDED ((int64_t)1 << 62)

// What Python is asked for: to take what was made since the last flush; or larger tables, for at
// least so many slots more, actors more, objects of a request, seconds.
enum { FLUSH, MORE_SLOTS, MORE_ACTORS, LONGER_CHAIN, MORE_SECONDS };

// What an actor (a user, or a request in flight) does next.
enum { STEP_ASK, STEP_QUEUE, STEP_LOAD, STEP_PROMOTE, STEP_STORE, STEP_DECODE, STEP_END };

// Knobs.promotion and Knobs.mode, as preset.Promotion and workload.Mode order them.
enum { NO_PROMOTION, ALWAYS_PROMOTE, SECOND_TOUCH, TEMPORARY };
enum { PREFILL_AND_DECODE, PREFILL_ONLY, DECODE_ONLY };

// Knobs.source: users, requests that share within a conversation, requests that name their objects.
enum { USERS, CONVERSATIONS, CHAINS };

// Tier.admission and Tier.recency, as tier.Admission and tier.Recency order them.
enum { ALWAYS, NTH_OFFER, FREQUENCY, TINYLFU };
enum { HEAD_FIRST, TAIL_FIRST, TAIL_FIRST_AT_END, AT_END };

// Piece.kind, as shape.PieceKind orders them.
enum { GROWING, SLIDING, CHUNKED, STATE };

// Of trace rows, as the schema orders them.
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

// Happening.kind: to a node, to a node's or a rack's tier, or to the store.
enum { LOST, JOINED, EMPTIED, GONE, BACK };

enum { QUEUES = 4 }; // lists that a tier may keep its slots in
enum { LINE = 16 };  // objects whose copies at a place stand together

enum {
    CONTINUE_PER_MILLE = 800,
    MAX_TURNS = 50
}; // a user's conversation: its chance to go on, its most turns

// Of what stands for an object that needs no slot: a bit for each tier it is live in; whether it
// was seen; 1 + the number of the node or rack whose own tiers have it (0: none's). The number of
// the object is above; and -2 less all that is what stands in World.contexts, where a slot is >= 0.
enum { LIVE_BITS = 8, PLACE_SHIFT = 9, PLACE_BITS = 15, PACKED_BITS = 24 };

typedef struct World World;

// Python does what it is asked, with `need`; false if it cannot.
typedef bool Ask(int64_t what, int64_t need);

// A policy's or a router's operation: one that chooses, or one of a policy's others.
typedef int64_t Operation(World *w, int64_t t, int64_t slot, int64_t with);
typedef void Change(World *w, int64_t t, int64_t slot, int64_t with);

typedef struct {
    int64_t limit, low, largest,
        live_bytes; // that it may hold, goes down to to make room, of an object, in use
    // What happened in it, in bytes but for the hits; populated: written before the start.
    int64_t hits, hit_bytes, written_bytes, deleted_bytes, read_bytes, populated_bytes;
    // The service model: of reads and writes bytes a second (0: takes no time), and until when it
    // is busy with them; how long each takes besides, and how many are served at once.
    int64_t rate[2], busy_ns[2], latency_ns, concurrency;
    // Operations of one request at once (0: all), those of the stage being written, those being
    // read, since and until when; whether it takes offers whole, whether look-ups go on past a
    // miss, and how many there were; in which order the objects of a request count as used; ranks
    // that read each.
    int64_t request_reads, request_writes, staged, reading, reads_began_ns, reads_end_ns, is_whole;
    int64_t looks_past_miss, file_lookups, recency, readers;
    Operation *choose, *takes; // its policy's, as the next ones (sim/policies.py); all NULL: LRU
    Change *on_hit, *on_insert, *on_remove, *forget, *on_look_up, *on_stored, *on_empty;
    int64_t behind; // LRU: 1 + the slot that the next one used comes right behind; 0: it is the
                    // most recent
    // Which objects it takes: the count or the window that its admission needs, what was referred
    // to since the last halving of counts, how often they were halved, and what it did not take.
    int64_t admission, admission_count, decay_ns, window, referred, halvings, refused_objects,
        refused_bytes;
    // What waits to be stored: where in World.offers, how much may, the oldest, and how many; how
    // often it is looked at (0: whenever the tier is free), and when next; what it had no room for,
    // and what was gone before its turn.
    int64_t queue_first, queue_limit, queue_head, waiting_objects, heartbeat_ns, beat_ns;
    int64_t dropped_objects, dropped_bytes, lost_objects, lost_bytes;
    // Objects and bytes of a bucket (0: none), what each object adds to it and to its file beside;
    // how many live.
    int64_t bucket_objects, bucket_bytes, bucket_key_bytes, bucket_meta_bytes;
    double collect_share; // below which share of live bytes a bucket is collected; 0: it goes whole
    int64_t collected_bytes; // written for that
    // When it makes room, if only at times: each so many ns (0: whenever it must), the next of
    // these (0: none), the bytes from which on it does, by what share of them (in millionths; 0:
    // down to `low`), and to which bytes it is going down (NONE: it is not). Whether what is loaded
    // from it and staged in it counts as used backwards, or what is loaded both ways, and whether
    // what a request loads from it and below must be in it at once.
    int64_t evict_every_ns, poll_ns, trigger, evict_ppm, goal, loads_backwards, loads_twice,
        stores_backwards;
    int64_t loads_whole, fits_at_once; // the latter: beside the times at which it makes room, just
                                       // enough whenever it is full
    int64_t ttl_ns;                    // TTL: how long an object lives
    double target;                     // ARC: bytes that it means T1 to have
    int64_t has_evicted;               // S3-FIFO: whether it ever did
    int64_t hand;                      // SIEVE
} Tier;

// A list of a tier's slots: the most recent, the least recent, and the bytes of all (not counted
// for LRU).
typedef struct {
    int64_t head, tail, bytes;
} Queue;

// A slot holds an object. Of a copy that a node or rack has, `home` is the object's own slot.
typedef struct {
    int64_t object, size; // bytes: of all ranks together
    int64_t
        home; // where in World.contexts it is named (entry_at); NONE: nowhere, or in World.items
    int16_t live; // a bit for each tier
    int16_t held; // 1 if somebody may still ask for it, 2 << t if it waits for tier t (or is read
                  // in it), or'd: it is not reused
    int8_t seen;  // it was loaded once and not promoted yet
    int8_t is_loose;       // it is in World.loose
    int16_t place;         // of a copy: 1 + its number (nodes first)
    int32_t runners, came; // in a GPU's memory: how many requests run with it, and how often it was
                           // given up though some did
} Slot;

// Of a slot in a tier: its neighbours in the list it is in.
typedef struct {
    int32_t newer, older;
} Link;

// Of a slot in a tier whose policy is not LRU: a count (uses; TTL: when it expires) and in which
// list it is.
typedef struct {
    int64_t count;
    int32_t place;
} Note;

// What waits to be stored, since when, and which node offered it.
typedef struct {
    int64_t slot, since, node;
} Offer;

// Of a slot in a bucket: the bucket's slot, where in it it begins, and the members before and after
// it; of a bucket's slot: of all ranks and layers, how many bytes live in it (if it may be
// collected) and it has, and its last member.
typedef struct {
    int64_t bucket, offset, older, newer;
} Member;

// Of a slot: which offer it was new in last, which it was last in, and until when it is read or
// written.
typedef struct {
    int64_t offer, seen, until_ns;
} Pin;

// A slot that a request runs with in a GPU's memory, while its `came` is still this.
typedef struct {
    int32_t slot, came;
} Hold;

// A user, or a request in flight. Its objects are, in order, those of `retrieved` items, `shared`
// ones of the item `prompt`, and `length` of its own, of which up to `new` last ones are to be made
// or stored. Its own ones stand in row `context` of World.contexts, or with CHAINS are named by
// World.chains from place `first` on.
typedef struct {
    int64_t step, request, session, turn, input, output, new_tokens, first, context, length, new;
    int64_t stage, decoded, decode_start, history, asked_ns, reached, missed_tokens, entry, prompt,
        shared;
    int64_t retrieved, retrieved_objects, retrieved_tokens;
    int64_t with_cache_ns,
        without_cache_ns;    // its FirstToken; while it loads, as if no other prompt came before it
    int64_t served_ns;       // when its last read is done
    int64_t first_step;      // the batch's clock when it joined
    int64_t computed_tokens; // of its prompt, so far
    int64_t refused;         // how many of the objects offered last a tier has not taken
    int64_t offer;           // the number of the offer before
    int64_t node;            // where it is served
    int64_t session_at,
        session_number; // SAE: the session of its last hit (0: none), by place and number
    // Where nodes are lost: how many of its own it made as it was first served, how often it was
    // begun again, and whether it was answered before.
    int64_t made, restarts, answered;
    int64_t
        ready_ns; // since when it could be computed: it came to its node, or what it loads is there
    int64_t next_queued; // 1 + who is behind it in that one's queue; 0: nobody
    int64_t held_bytes;  // of its node's GPU memory, while it runs; in it are `holds`, which are
                         // memory of C's own
    Hold *holds;
    int64_t holds_count;
} Actor;

// The slots of a conversation's own objects, in order, or what stands for those that need none;
// memory of C's own.
typedef struct {
    int64_t *entry;
    int64_t room;
} Context;

// A conversation of a file: how many objects, tokens so far, and requests that have not ended.
typedef struct {
    int64_t length, tokens, remaining;
} Conversation;

// What is shared by all: tokens, first of its slots (they are consecutive), how many, and how often
// it was decoded.
typedef struct {
    int64_t tokens, first, objects, uses;
} Item;

// What a chunk consists of: bytes of all ranks, kind, window in tokens; and what one rank reads in
// a decode step, for each token and of a state.
typedef struct {
    int64_t bytes, kind, window, token_bytes, state_bytes;
} Piece;

// What attention adds to a prompt's computing, in layers of one span: femtoseconds for each query
// and each key that it attends to, which are at most `window_tokens` (0: all before it), or those
// since the last multiple of that.
typedef struct {
    int64_t pair_fs, window_tokens, is_aligned;
} Attention;

typedef struct {
    int64_t with_cache_ns, without_cache_ns;
} FirstToken;

// What a request found as it was served, and tokens that it had to compute; whether it was begun
// again for it.
typedef struct {
    int64_t ts_ns, lookups, local_hits, shared_hits, computed_tokens, restarted;
} Found;

// A step of what happens to the fleet, as sim/fleet.py lays them out.
typedef struct {
    int64_t when, kind, place, tier;
} Happening;

// Where the loop is.
typedef struct {
    int64_t now;
    int64_t arrived, heap_size, next_request, next_session, next_object, made,
        logged; // in each buffer and stack
    int64_t answered, populated, rows, free, idle, uses, loose, coming;
    int64_t offers, offer; // how many there were; the number of this one
    int64_t known;         // what of the one being stored was found cached
    int64_t is_staged;     // the stage being written has operations
    int64_t is_refused;    // whether the last offer was
    int64_t node;          // whose tiers World.tiers are
    int64_t actor,
        named; // who acts, and how many objects the request names that stand in World.chain
    int64_t populating; // whose are filled before the start
    int64_t next_node;  // round-robin: whose turn it is to serve
    int64_t open;       // nodes that may be sent requests
    int64_t happened,
        happen_ns; // steps of World.happenings done, and when the next is due (UNBOUNDED: never)
    int64_t gone,
        gone_largest; // a bit for the tier out of reach, and the largest object that it takes else
    int64_t found;
} Control;

typedef struct {
    int64_t requests, input_tokens, output_tokens, lookups, lookup_bytes, decode_misses, unplaced,
        prompt_lookups;
    int64_t prompt_hits, document_lookups, document_hits, decoded_tokens, decoding_ns, prefills,
        waiting_ns, offers;
    int64_t refused_offers, refused_objects, stalled;
    int64_t largest_load; // of what has to be at once in a tier through which all of it goes, bytes
    int64_t missed_tokens; // of prompts, each time that one begins: what is computed
    int64_t last_io_ns;    // when the last row was made
} Total;

// Who acts when: at a time, or at a count of the batch's clock.
typedef struct {
    int64_t when, actor;
} Event;

// The requests that decode: how many, the bytes of KV cache that a step reads on one rank, how long
// it takes; the clock of steps, and the time when it stood there; when the first that waits for the
// clock is due, and who that is; and all `waiting` ones, by the count of the clock that they wait
// for, in memory of C's own.
typedef struct {
    int64_t size, bytes, step_ns, prompt_step_ns, steps, since_ns, due_ns, first, waiting;
    Event *heap;
} Batch;

// A request of a user, as in the requests table.
typedef struct {
    int64_t arrival_ns, request_id, session_id, turn, input_tokens, output_tokens, qos, kind;
} Asked;

// A request that waits for another, and how long after its start, or after the end of its answer,
// it may come.
typedef struct {
    int64_t request, delay_ns, is_of_start;
} Follower;

// A request that follows others: how many it still waits for, and when it may come for all that is
// known.
typedef struct {
    int64_t left, ready_ns;
} Waiting;

// A user: context and output tokens of its longest turn, its usual think time, and how many numbers
// it has drawn. What a user asks is drawn by `draws`, and which system prompt, documents and
// entries go with it by `extra_draws`, so that the one is the same with and without the other.
typedef struct {
    int64_t kind, qos, context, output, think_ns, draws, extra_draws;
} User;

// A turn of users in an open loop; a place for a conversation there: its user (NONE: none yet),
// turns that are over, and tokens so far.
typedef struct {
    int64_t session, turn, input, output, qos, kind;
} Turn;
typedef struct {
    int64_t user, done, history;
} Place;

// What a user asks who does not wait; `rank` is that of its class, and conversations are numbered
// for each user.
typedef struct {
    int64_t time_ns, user, rank, conversation, turn, input, output;
} Question;

// A node: requests that were sent to it and have not ended, how many of them are not computed yet,
// their tokens that are yet to be, and those of their prompts; until when it computes; what it has
// done so far; until when it sends; and how many requests it was sent, as routers compare that: one
// that joins begins with the least of the others' numbers.
typedef struct {
    int64_t is_up, outstanding, waiting, prefilling_tokens, active_tokens, prefill_busy_ns,
        requests, input_tokens;
    int64_t computed_tokens, computing_ns, lookups, local_hits, shared_hits, link_busy_ns,
        sent_bytes, turns;
    int64_t first_queued,
        last_queued; // 1 + the first and the last of those that are not looked up yet; 0: nobody is
    int64_t held_bytes, is_full; // of its GPU's memory, by all who run, what they share once;
                                 // whether the first waits
} Node;

// Of an object's slot: its copies in the node that acts and in its rack, and the first of all its
// copies; of a copy: its neighbours in the list of all copies of its object.
typedef struct {
    int32_t node_copy, rack_copy, first, newer, older;
} Copy;

// The copies at a place of objects that follow each other, as tiers.c finds them.
typedef struct {
    int32_t slot[LINE];
} Line;

// What the preset and the model say, as numbers; constant while the loop runs.
typedef struct {
    int64_t source;
    int64_t keeps_ghosts; // a policy remembers what it evicted: not even what no request of the
                          // file names again may be forgotten
    int64_t endless;       // a bit for each tier that never gives anything up
    int64_t whole;         // the tier that takes offers whole, if any does
    int64_t filtered;      // a bit for each tier that does not take all that it is offered
    int64_t queued;        // a bit for each tier that stores what it is offered later
    int64_t bucketed;      // a bit for each tier that stores many objects as one
    int64_t is_packed;     // objects that no tier may give up have no slot
    int64_t ranks, layers; // objects of a slot: one for each rank and group of layers
    int64_t is_prefix, is_write_back;
    int64_t promotion;      // TEMPORARY: to the fastest tier only
    int64_t is_exclusive;   // what is promoted leaves the tier it was in
    int64_t uses_backwards; // in some tier: as a request ends, its objects count as used once more,
                            // backwards
    int64_t keeps_age;      // what is demoted stays as recent as it was
    int64_t is_by_tier; // each tier is asked for the run that goes on where the one before it had a
                        // miss
    int64_t
        staging; // 1 + the tier whose buffers all that is stored and read from below takes, or 0
    int64_t skips_held;
    int64_t acts_alone;      // a tier does something by itself: forgets, makes room or stores what
                             // waits, at times
    int64_t loads_backwards; // or twice, in any tier
    int64_t min_load_tokens, offer_tokens, offers_hits;
    int64_t looks_past_miss; // of any tier
    int64_t stores_generated;
    int64_t chunk_tokens; // 0: one object a turn
    int64_t chunk_bytes;  // of all ranks and layers together, padding included
    int64_t partial_unit; // bytes that the size of a partial chunk is a multiple of; 0: none is an
                          // object
    int64_t decode_read_tokens, reads_at_once, prefill_only_from_tokens, prefill_ns_per_token,
        prefill_in_turn;
    int64_t decode_ns_per_token;
    int64_t step_tokens; // that a step of a prompt has, those who decode included; 0: these do not
                         // share steps
    int64_t is_bounded;  // requests wait for memory of the GPU, which is the fastest tier
    int64_t is_batched;  // a decode step depends on its batch, by step_tokens or the next three
    int64_t decode_active_ns, decode_compute_ns, decode_bytes_per_us;
    int64_t bytes_per_token; // of all ranks together
    int64_t max_context_tokens, seed, until_ns, max_requests, mode;
    int64_t prompt_ppm;   // conversations in a million that begin with a system prompt: one of
    int64_t prompts;      // so many first items
    int64_t retrieve_ppm; // requests in a million that retrieve chunks of a document
    int64_t top_chunks;   // the most that one retrieves
    int64_t is_zipf_chunk;
    int64_t first_entry, entries; // with DECODE_ONLY: each user's items, from `first_entry` on
    int64_t follows;              // requests of a file wait for others
    int64_t is_counted_alone;     // rows are counted in World.by_second and not kept
} Knobs;

// Trace rows, a table a column; request and stage NONE for background work.
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

// The requests of a file that wait for others, by their rows there; all is empty if none does.
typedef struct {
    TABLE(int64_t, first); // [requests + 1]: n is waited for by followers[first[n]:first[n + 1]]
    TABLE(Follower, followers);
    TABLE(Waiting, waiting); // [requests]
    TABLE(Event, coming);    // [requests]: a heap of those that wait for none any more, by arrival
    TABLE(Event, came);      // [requests]: those that have arrived, in order, and when
} Following;

// The nodes, and what each has. With one node, most of it is empty.
//
// An object has one slot, which the tiers that all nodes share list. What a node or a rack has of
// it is a copy: a slot of its own, listed by the tiers of that place. While a node acts,
// World.tiers are its tiers, and the slot of each object that it looks at says in which of them
// that object is live. So one node alone is a fleet whose tiers are all shared.
typedef struct {
    int64_t count, rack_nodes; // nodes, in all and in a rack
    int64_t scoped; // a bit for each tier of which every node, or rack, has one of its own; 0 with
                    // one node
    int64_t racked; // a bit for each tier of which every rack has one
    int64_t own;    // a bit for each tier that is a node's own, however many nodes there are
    int64_t entrances; // how many nodes, the first ones, requests are sent to; if not all, the
                       // others decode
    int64_t link_bytes_per_s; // at which a node sends to another; 0 takes no time
    Operation *router;
    int64_t prefill_ppm, prefix_ppm, load_ppm; // what it counts, in millionths
    int64_t load_threshold;
    TABLE(Node, nodes);
    TABLE(Batch, batches); // [nodes]
    TABLE(Tier, tiers);    // [nodes + racks, tiers]: those of the places that are not at hand
    TABLE(Queue, queues);  // [nodes + racks, tiers, QUEUES]: their lists
    TABLE(Copy, copies);   // [slots]
    Table line_at; // copies by the number of their object and their place: which of `lines` they
                   // stand in
    Line *lines;   // C's own
    int64_t lines_room,
        spare_line;      // 1 + one without copies, whose first slot is 1 + the next such; 0: none
    TABLE(int64_t, due); // [nodes + racks]: when a tier of a place that is not at hand next does
                         // something by itself; empty if none ever does
    TABLE(int64_t, runs); // scratch of a router: [nodes] how many first objects of a prompt each
                          // has, and [nodes] of how many bytes
    TABLE(int32_t, row_nodes); // [rows]: the node that does what a row says
} Fleet;

// The books of a trace, beside all that: why a row cannot be, and what is known of its tiers,
// objects and requests.
enum {
    ROW_CAN_BE,
    TIME_BACKWARDS,
    OVERFLOW,
    REQUEST_NOT_DENSE,
    READ_ABSENT,
    READ_PAST_END,
    WRITE_GAP,
    OVER_CAPACITY,
    DELETE_ABSENT,
    DELETE_SIZE,
    STAGE_MISSING,
    STAGE_ALONE,
    STAGE_FIRST,
    STAGE_BACK,
    STAGE_GAP
};
typedef struct {
    int64_t capacity_bytes, live_bytes, peak_bytes;
} TierBooks;
typedef struct {
    bool is_strict; // whether rows must be consistent; else what is live is counted
    int64_t last_ns;
    int64_t fault_row,
        before; // of the row that cannot be: its place in the batch, what was there before it
    TABLE(TierBooks, tiers);
    TABLE(int64_t, sizes); // live bytes of an object in a tier, or in an instance of it
    TABLE(int64_t,
          instances); // live bytes of each instance of a tier; of one node alone, of each tier
    TABLE(int64_t, extents); // the bytes that each object had in any tier, at its largest; NONE: no
                             // row names it
    TABLE(int32_t, stages); // that each request has reached; 0 of all that are named where rows are
                            // only counted
} Books;

struct World {
    Ask *ask;
    Knobs knobs;
    Control control;
    Total total;
    Fleet fleet;
    TABLE(Happening, happenings); // in order; empty if nothing happens
    TABLE(Found, found);          // [rows]: since the last flush; empty if nothing happens
    RowColumns rows;
    // [seconds, tiers, read and written, bytes and operations]: rows but those of populating;
    // empty: not counted.
    TABLE(int64_t, by_second);
    Following following;
    TABLE(Tier, tiers);
    TABLE(Queue, queues); // [tiers, QUEUES]
    TABLE(Slot, slots);
    TABLE(Link, links);          // [slots, tiers]
    TABLE(Note, notes);          // [slots, tiers], if any tier's policy is not LRU
    TABLE(Offer, offers);        // [tiers, of each its queue_limit]: rings
    TABLE(Member, members);      // [slots]; empty without knobs.bucketed, as the next two
    TABLE(int64_t, row_offsets); // [rows]: where in its object a row begins
    TABLE(int8_t,
          made_kind); // [rows]: 1 for those of made_size that are buckets, or the files beside them
    Table counts; // with knobs.filtered: which run has how often objects were offered to a tier, or
                  // used
    int64_t *runs, runs_room; // [counts.count, RUN]: those runs
    Table tops;               // LFU: of each tier and count of uses, the slot that came to it last
    void *memories;           // what policies keep beside lists and notes: their own
    TABLE(int64_t,
          ages); // [slots]: uses there had been when each was last used; empty without keeps_age
    TABLE(Pin, pins);      // [slots], if any tier takes offers whole or not at all
    TABLE(int32_t, free);  // a stack of unused slots; control.free of them
    TABLE(int32_t, loose); // [slots]: those that may need none any more; control.loose of them
    TABLE(User, users);    // empty with a file
    TABLE(Actor, actors);  // actor n is user n
    TABLE(int64_t, idle);  // [actors]: a stack of unused ones; control.idle of them
    TABLE(Event, heap);    // [actors + 1]: who acts when; control.heap_size of them
    TABLE(int64_t,
          arrival_ns); // [requests]; empty with users. The rest of the file's columns follow
    TABLE(int64_t, input_tokens);
    TABLE(int64_t, output_tokens);
    TABLE(int64_t, conversation); // with CONVERSATIONS: [requests]: the row of `conversations`
    TABLE(Conversation, conversations);
    // Of each user or conversation. With CHAINS a single one, of each object of the file; NONE
    // before it is asked for, and after.
    TABLE(Context, contexts);
    TABLE(int64_t,
          offsets); // with CHAINS: request n has the objects chains[offsets[n]:offsets[n + 1]]
    TABLE(int32_t, chains);
    TABLE(int32_t, object_uses); // with CHAINS: [objects]: how often requests will still name it
    TABLE(Piece, pieces);
    TABLE(Attention, attention);
    TABLE(Item,
          items); // system prompts, then the documents' chunks, then the users' entries to decode
    TABLE(int64_t, documents);       // [documents + 1]: the first item of each document's chunks
    TABLE(int64_t, document_weight); // [documents]: how often each is asked for, cumulated
    TABLE(int64_t,
          retrieved); // [actors, knobs.top_chunks]: the items that each actor's request retrieves
    TABLE(int64_t, made_size); // [rows]: sizes of the objects that were made since the last flush
    TABLE(Asked, log);         // [rows]: requests of users since the last flush
    TABLE(FirstToken, first_token); // [rows]: since the last flush; empty if not modelled
    TABLE(int64_t, chain);          // scratch: the objects of one request, as in contexts
    TABLE(int8_t, where);           // scratch: the tier in which each was found
};

#endif
