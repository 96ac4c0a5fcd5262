// How long it takes to compute a prompt, and how long a decode step takes.
// Both follow a roofline: a step takes as long as its arithmetic, or as long as it reads the
// weights and the KV cache, whichever is longer (kvtrace/llm/serving.py has the figures).
//
//     prefill(0..n) = n * ns_per_token                                 all linear layers
//                   + pairs(n) * ns_per_pair                           attention: grows with n^2
//     prefill(a..b) = prefill(0..b) - prefill(0..a)
//     decode step   = max(weights read + cache read, compute)          for the whole batch
//     first token   = max(prefill(a..b), weights read + cache read)
#include "sim.h"

enum { FS_PER_NS = 1000000 };

// --- prefill

// 1 + 2 + ... + n.
static __int128 sum_up_to(__int128 n) {
    return n * (n + 1) / 2;
}

// The pairs of a query and a key of the first `tokens` tokens of a prompt. Each query attends to
// itself and to all tokens before it, or to those within its window.
static __int128 attention_pairs(const Attention *attention, int64_t tokens) {
    int64_t window = attention->window_tokens;
    if (window == 0 || tokens <= window) {
        return sum_up_to(tokens);
    }
    if (attention->is_aligned) {
        return tokens / window * sum_up_to(window) + sum_up_to(tokens % window);
    }
    return sum_up_to(window) + (__int128)(tokens - window) * window;
}

// How long the first `tokens` tokens of a prompt take to compute. Every part of a prompt takes the
// difference of two of these, so that the parts add up to the whole.
static int64_t prefix_compute_ns(const Attention *attention, int64_t count, int64_t ns_per_token,
                                 int64_t tokens) {
    __int128 attention_fs = 0;
    for (int64_t i = 0; i < count; i++) {
        attention_fs += attention_pairs(&attention[i], tokens) * attention[i].pair_fs;
    }
    __int128 ns = attention_fs / FS_PER_NS + (__int128)tokens * ns_per_token;
    return ns < UNBOUNDED ? (int64_t)ns : UNBOUNDED;
}

// Fills `ns` with how long prompts of each of `n` numbers of tokens take to compute.
EXPORT void compute_prefill_times(const Attention *attention, int64_t count, int64_t ns_per_token,
                                  const int64_t *tokens, int64_t n, int64_t *ns) {
    for (int64_t i = 0; i < n; i++) {
        ns[i] = prefix_compute_ns(attention, count, ns_per_token, tokens[i]);
    }
}

// How long the tokens of a prompt from `from` up to `to` take to compute.
int64_t compute_prefill_ns(World *world, int64_t from, int64_t to) {
    int64_t ns_per_token = world->knobs.prefill_ns_per_token;
    const Attention *attention = world->attention;
    int64_t count = world->attention_count;
    return prefix_compute_ns(attention, count, ns_per_token, to) -
           prefix_compute_ns(attention, count, ns_per_token, from);
}

// --- steps

// The tokens of a context whose keys and values a layer of this kind reads in a decode step.
static int64_t piece_read_tokens(const Piece *piece, int64_t tokens) {
    switch (piece->kind) {
    case GROWING:
        return tokens;
    case SLIDING:
    case CHUNKED:
        return min_of(tokens, piece->window);
    default:
        return 0;
    }
}

// Bytes of the KV cache of a context of `tokens` that one rank reads in a decode step. States are
// read and written.
int64_t compute_step_bytes(World *world, int64_t tokens) {
    int64_t size = 0;
    for (int64_t p = 0; p < world->pieces_count; p++) {
        const Piece *piece = &world->pieces[p];
        size += piece_read_tokens(piece, tokens) * piece->token_bytes + 2 * piece->state_bytes;
    }
    return size;
}

// How long a step reads that computes `tokens`: the weights that these use, and `bytes` of cache.
int64_t compute_step_read_ns(World *world, int64_t tokens, int64_t bytes) {
    const Knobs *knobs = &world->knobs;
    int64_t weights_ns = knobs->decode_ns_per_token; // all weights
    if (knobs->decode_active_ns) {
        weights_ns = min_of(weights_ns, tokens * knobs->decode_active_ns);
    }
    int64_t bytes_per_us = knobs->decode_bytes_per_us;
    int64_t cache_ns = bytes_per_us > 0 ? bytes * 1000 / bytes_per_us : 0;
    return weights_ns + cache_ns;
}

// How long it takes until the tokens of a prompt from `from` up to `to` have given the first token:
// at least as long as a step that reads the weights and the cache.
int64_t compute_first_token_ns(World *world, int64_t from, int64_t to) {
    int64_t compute_ns = compute_prefill_ns(world, from, to);
    if (compute_ns == 0 || !world->knobs.is_batched) {
        return compute_ns;
    }
    int64_t step_bytes = compute_step_bytes(world, to);
    return max_of(compute_ns, compute_step_read_ns(world, to - from, step_bytes));
}
