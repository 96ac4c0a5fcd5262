// ARC: objects used once (T1) and objects used more often (T2) share the tier; misses of objects
// that were evicted from either (ghosts, B1 and B2) shift the border between the two.
//
//     on hit:      move s to the head of T2
//     on a miss:   if s is in B1: target += size * max(1, B2 / B1);  s goes to T2
//                  if s is in B2: target -= size * max(1, B1 / B2);  s goes to T2
//                  else s goes to T1
//     victim:      the tail of T1 if T1 is larger than the target, else that of T2; it becomes a
//                  ghost in B1 or B2
//
// Megiddo and Modha, ARC: a self-tuning, low overhead replacement cache, FAST 2003. There, objects
// are pages; here the target and all lists count bytes.
#include "../sim.h"

// The lists. An object that was a ghost and is about to be inserted is in none: WAS_B1 or WAS_B2.
enum { T1, T2, B1, B2, WAS_B1, WAS_B2 };

// The quotient, at least 1.
static double arc_ratio(int64_t dividend, int64_t divisor) {
    double quotient = (double)dividend / (double)divisor;
    return quotient > 1.0 ? quotient : 1.0;
}

// If `slot`, which is about to be inserted, is a ghost: moves the target, and notes that it was
// one.
static void arc_recall_ghost(World *world, int64_t level, int64_t slot) {
    Note *note = policy_note_of(world, level, slot);
    Tier *tier = &world->tiers[level];
    int32_t list = note->list;
    if (list != B1 && list != B2) {
        return;
    }
    int64_t b1_bytes = list_of(world, level, B1)->bytes;
    int64_t b2_bytes = list_of(world, level, B2)->bytes;
    double size = (double)world->slots[slot].size;
    double limit = (double)tier->limit_bytes;
    if (list == B1) {
        double target = tier->arc_target_bytes + size * arc_ratio(b2_bytes, b1_bytes);
        tier->arc_target_bytes = limit < target ? limit : target;
    } else {
        double target = tier->arc_target_bytes - size * arc_ratio(b1_bytes, b2_bytes);
        tier->arc_target_bytes = target < 0.0 ? 0.0 : target;
    }
    list_leave(world, level, slot);
    note->list = list == B1 ? WAS_B1 : WAS_B2;
}

EXPORT void arc_on_hit(World *world, int64_t level, int64_t slot) {
    list_leave(world, level, slot);
    list_enter(world, level, slot, T2);
}

EXPORT void arc_on_insert(World *world, int64_t level, int64_t slot, UNUSED int64_t now) {
    arc_recall_ghost(world, level, slot);
    Note *note = policy_note_of(world, level, slot);
    bool was_ghost = note->list != NONE;
    note->count = 0;
    list_enter(world, level, slot, was_ghost ? T2 : T1);
}

// Chooses the victim, and makes room among the ghosts. Note.count of the victim says that it must
// not become a ghost: T1 alone fills the tier (the paper's case IV A).
EXPORT int64_t arc_choose_victim(World *world, int64_t level, int64_t incoming) {
    arc_recall_ghost(world, level, incoming);
    const Tier *tier = &world->tiers[level];
    const RecencyList *t1 = list_of(world, level, T1);
    const RecencyList *t2 = list_of(world, level, T2);
    const RecencyList *b1 = list_of(world, level, B1);
    const RecencyList *b2 = list_of(world, level, B2);
    int32_t origin = policy_note_of(world, level, incoming)->list;
    int64_t size = world->slots[incoming].size;
    int64_t limit_bytes = tier->limit_bytes;
    int64_t t1_bytes = t1->bytes;
    int64_t t2_bytes = t2->bytes;
    if (origin != WAS_B1 && origin != WAS_B2) {
        int64_t once_bytes = t1_bytes + b1->bytes;
        int64_t often_bytes = t2_bytes + b2->bytes;
        if (once_bytes + size > limit_bytes) {
            if (b1->bytes > 0) {
                list_leave(world, level, b1->tail);
            } else if (t1_bytes > 0) {
                policy_note_of(world, level, t1->tail)->count = 1;
                return t1->tail;
            }
        } else if (once_bytes + often_bytes - limit_bytes >= limit_bytes && b2->bytes > 0) {
            list_leave(world, level, b2->tail);
        }
    }
    double bytes = (double)t1_bytes;
    double target = tier->arc_target_bytes;
    bool is_t1_large = bytes > target || (bytes == target && origin == WAS_B2);
    bool is_of_t1 = t2_bytes == 0 || (t1_bytes > 0 && is_t1_large);
    return is_of_t1 ? t1->tail : t2->tail;
}

EXPORT void arc_on_remove(World *world, int64_t level, int64_t slot, int64_t is_evicted) {
    const Note *note = policy_note_of(world, level, slot);
    int32_t list = note->list;
    list_leave(world, level, slot);
    if (is_evicted && !note->count) {
        list_enter(world, level, slot, list == T1 ? B1 : B2);
    }
}

EXPORT void arc_forget(World *world, int64_t level, int64_t slot) {
    int32_t list = policy_note_of(world, level, slot)->list;
    if (list == B1 || list == B2) {
        list_leave(world, level, slot);
    }
}
