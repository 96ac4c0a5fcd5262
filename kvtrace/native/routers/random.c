// Random: any node, with the same chance, drawn by the number of the request.
#include "../sim.h"

#define DRAWER (-((int64_t)1 << 40)) // no user draws by this number

EXPORT int64_t random_choose(World *w, int64_t actor, UNUSED int64_t n, UNUSED int64_t with) {
    int64_t left = draw(w->knobs.seed, DRAWER, w->actors[actor].request, 0, w->control.open - 1),
            node = 0;
    while (!is_open(w, node) || left > 0) {
        left -= is_open(w, node++);
    }
    return node;
}
