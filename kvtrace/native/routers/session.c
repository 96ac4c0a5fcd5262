// Session affinity: a conversation stays on its node, by rendezvous hashing: the one whose draw by
// the number of the conversation is largest.
//
// As with a ring of consistent hashing, which vLLM's production stack routes sessions by, a node
// that is lost moves only its own conversations, and one that joins takes an equal share of each
// other's.
#include "../sim.h"

#define DRAWER (-((int64_t)1 << 41)) // no user draws by this number, nor by those below: one a node

static int64_t lot_below(World *w, int64_t actor, int64_t node) { // 0: the largest lot costs least
    return -draw(w->knobs.seed, DRAWER - node, w->actors[actor].session, 0, UNBOUNDED);
}

EXPORT int64_t session_choose(World *w, int64_t actor, UNUSED int64_t n, UNUSED int64_t with) {
    return cheapest(w, actor, 0, w->fleet.entrances, lot_below);
}
