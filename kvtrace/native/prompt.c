// The objects that a request's prompt consists of.
// They are made when a request first names them, and forgotten when no request will again.
//
//     prompt_make_objects  a request arrives: its new objects get numbers and slots
//     prompt_gather        before each step: the objects of its prompt, in order, into World.chain
//     prompt_unpack        before a write: an object in a tier that may evict it needs a slot
//     prompt_forget_...    a conversation or a request ends
#include "sim.h"

#include <stdlib.h>

INLINE int64_t home_at(int64_t context, int64_t place) {
    return context << 32 | place;
}

// --- making objects

// Gives the next object number to an object of `size` bytes. Python takes the sizes with the rows.
static int64_t prompt_number_object(World *world, int64_t size) {
    Control *control = &world->control;
    if (world->knobs.is_counted_alone) {
        return control->next_object++;
    }
    if (control->made == world->made_size_count) {
        schedule_ask_python(world, FLUSH, 1);
    }
    world->made_size[control->made++] = size;
    return control->next_object++;
}

// Makes an object of `size` bytes, which `home` of World.contexts names from now on.
static void prompt_make_object(World *world, int64_t size, int64_t home) {
    int64_t number = prompt_number_object(world, size);
    if (world->knobs.is_packed) {
        *entry_at(world, home) = entry_pack(number << PACKED_BITS);
    } else {
        *entry_at(world, home) = slot_take(world, number, size, home, 0);
    }
}

// Makes an object of `size` bytes that no request will name. Its slot is free again once it is in
// no tier that may evict it.
int64_t prompt_make_unnamed(World *world, int64_t size) {
    int64_t number = prompt_number_object(world, size);
    int64_t slot = slot_take(world, number, size, NONE, 0);
    world->slots[slot].held_by = 0;
    return slot;
}

// Makes the objects of a request with CHAINS that no request has named before. The last one may be
// a chunk that the prompt does not fill.
void prompt_make_chunks(World *world, int64_t actor_id) {
    const Actor *actor = &world->actors[actor_id];
    const Knobs *knobs = &world->knobs;
    for (int64_t i = 0; i < actor->own_objects; i++) {
        int64_t home = home_at(0, world->chains[actor->chain_first + i]);
        if (*entry_at(world, home) != NONE) {
            continue;
        }
        int64_t size = chunk_object_bytes(world, i);
        int64_t tokens = actor->input_tokens - i / knobs->chunk_objects * knobs->chunk_tokens;
        if (tokens < knobs->chunk_tokens && knobs->partial_unit) {
            int64_t unit = knobs->partial_unit;
            size = round_up_div(tokens * knobs->bytes_per_token, unit) * unit;
        }
        prompt_make_object(world, size, home);
    }
}

// How many objects of the actor's context exist.
static int64_t prompt_made_objects(World *world, const Actor *actor) {
    if (world->knobs.source == CONVERSATIONS) {
        return world->conversations[actor->session].objects;
    }
    return actor->own_objects + actor->named_answers;
}

// Makes room for `objects` entries in the actor's context.
static void prompt_reserve(World *world, const Actor *actor, int64_t objects) {
    Context *context = &world->contexts[actor->context];
    if (objects > context->capacity) {
        context->capacity = max_of(objects, context->capacity + context->capacity / 8);
        context->entries = memory_grow(context->entries, context->capacity, sizeof(int64_t));
    }
}

// Makes the new objects of the actor's request and appends them to its conversation.
void prompt_make_objects(World *world, int64_t actor_id) {
    Actor *actor = &world->actors[actor_id];
    const Knobs *knobs = &world->knobs;
    int64_t turn_bytes = actor->new_tokens * knobs->bytes_per_token;
    int64_t end = actor->own_objects + actor->new_objects;
    int64_t made = prompt_made_objects(world, actor);
    prompt_reserve(world, actor, end);
    for (; actor->own_objects < end; actor->own_objects++) {
        if (actor->own_objects >= made) {
            int64_t chunk_bytes = chunk_object_bytes(world, actor->own_objects);
            prompt_make_object(world, knobs->chunk_tokens ? chunk_bytes : turn_bytes,
                               home_at(actor->context, actor->own_objects));
        }
    }
    if (knobs->source == CONVERSATIONS && end > made) {
        world->conversations[actor->session].objects = end;
    }
}

// Names the object of a whole chunk that the actor's answer fills, at `place` of its context;
// returns its slot. An earlier run of the request, or another one of its conversation, may have
// made it.
int64_t prompt_name_answer(World *world, int64_t actor_id, int64_t place) {
    Actor *actor = &world->actors[actor_id];
    int64_t home = home_at(actor->context, place);
    if (place >= prompt_made_objects(world, actor)) {
        prompt_reserve(world, actor, place + 1);
        prompt_make_object(world, chunk_object_bytes(world, place), home);
        if (world->knobs.source == CONVERSATIONS) {
            world->conversations[actor->session].objects = place + 1;
        }
    }
    actor->named_answers = max_of(actor->named_answers, place + 1 - actor->own_objects);
    return slot_unpack(world, home);
}

// --- the objects of a request

// Copies the entries of the request's objects to `chain`: retrieved ones, shared ones, its own.
// Returns how many they are.
int64_t prompt_collect(World *world, int64_t actor_id) {
    const Actor *actor = &world->actors[actor_id];
    int64_t *chain = world->chain;
    int64_t n = 0;
    int64_t first_item = actor_id * world->knobs.top_chunks;
    for (int64_t i = first_item; i < first_item + actor->retrieved_items; i++) {
        const Item *item = &world->items[world->retrieved[i]];
        for (int64_t j = 0; j < item->objects; j++) {
            chain[n++] = item->first_slot + j;
        }
    }
    if (actor->shared_objects) {
        int64_t first_slot = world->items[actor->prompt_item].first_slot;
        for (int64_t j = 0; j < actor->shared_objects; j++) {
            chain[n++] = first_slot + j;
        }
    }
    const int64_t *own = world->contexts[actor->context].entries;
    const int32_t *places = NULL;
    if (world->knobs.source == CHAINS) {
        places = &world->chains[actor->chain_first];
    }
    for (int64_t i = 0; i < actor->own_objects; i++) {
        int64_t entry = own[places ? places[i] : i];
        if (entry >= 0) {
            __builtin_prefetch(&world->slots[entry]); // which is looked at next
        }
        chain[n++] = entry;
    }
    return n;
}

// Does the same, and brings the slots up to date for the node at hand.
int64_t prompt_gather(World *world, int64_t actor_id) {
    int64_t n = prompt_collect(world, actor_id);
    world->control.chain_length = n;
    slot_refresh_chain(world, n);
    return n;
}

// The entry of the i-th object of the request's system prompt and of its own objects.
int64_t prompt_entry(World *world, const Actor *actor, int64_t i) {
    if (i < actor->shared_objects) {
        return world->items[actor->prompt_item].first_slot + i;
    }
    int64_t place = i - actor->shared_objects;
    if (world->knobs.source == CHAINS) {
        place = world->chains[actor->chain_first + place];
    }
    return world->contexts[actor->context].entries[place];
}

// Where World.contexts names `chain[i]`, which is one of the actor's own objects.
static int64_t prompt_home_of(World *world, int64_t actor_id, int64_t i) {
    const Actor *actor = &world->actors[actor_id];
    if (world->knobs.source == CHAINS) {
        return home_at(0, world->chains[actor->chain_first + i]);
    }
    int64_t first_own = actor->retrieved_objects + actor->shared_objects;
    return home_at(actor->context, i - first_own);
}

// Gives slots to those of `chain[first:n]` that have none; they are the request's last objects.
void prompt_unpack(World *world, int64_t actor_id, int64_t first, int64_t n) {
    for (int64_t i = first; i < n; i++) {
        if (world->chain[i] < 0) {
            world->chain[i] = slot_unpack(world, prompt_home_of(world, actor_id, i));
        }
    }
}

// --- forgetting objects

// Drops the entry at `home`: no request can name the object any more.
static void prompt_forget_home(World *world, int64_t home) {
    int64_t slot = *entry_at(world, home);
    *entry_at(world, home) = NONE;
    if (slot < 0) {
        return;
    }
    world->slots[slot].held_by &= ~HELD_BY_REQUESTS;
    world->slots[slot].home = NONE;
    slot_release(world, slot);
}

// Forgets the first `length` objects of a conversation, which ends.
void prompt_forget_context(World *world, int64_t context, int64_t length) {
    for (int64_t i = 0; i < length; i++) {
        prompt_forget_home(world, home_at(context, i));
    }
    free(world->contexts[context].entries);
    world->contexts[context] = (Context){NULL, 0};
}

// Ends a request of a file: forgets the objects that no later request names. A policy with ghosts
// needs all of them.
void prompt_forget_request(World *world, int64_t actor_id) {
    const Actor *actor = &world->actors[actor_id];
    if (world->knobs.keeps_ghosts) {
        return;
    }
    if (world->knobs.source == CONVERSATIONS) {
        Conversation *conversation = &world->conversations[actor->session];
        conversation->remaining--;
        if (conversation->remaining == 0) {
            prompt_forget_context(world, actor->context, conversation->objects);
            conversation->objects = 0;
        }
        return;
    }
    int64_t end = actor->chain_first + actor->own_objects;
    for (int64_t i = actor->chain_first; i < end; i++) {
        int64_t object = world->chains[i];
        world->object_uses[object]--;
        if (world->object_uses[object] == 0) {
            prompt_forget_home(world, home_at(0, object));
        }
    }
}
