// A row of numbers that change, and the sums of its first ones, both logarithmic (a Fenwick tree).
// Indices are from 1 to `size`; a tree of zeros is a row of zeros.
#ifndef KVDISTILL_FENWICK_H
#define KVDISTILL_FENWICK_H

#include <stdint.h>

static inline void fenwick_add(int64_t *tree, int64_t size, int64_t index, int64_t value) {
    for (; index <= size; index += index & -index) {
        tree[index] += value;
    }
}

static inline int64_t fenwick_sum(const int64_t *tree,
                                  int64_t index) { // of the numbers up to `index`
    int64_t sum = 0;
    for (; index > 0; index -= index & -index) {
        sum += tree[index];
    }
    return sum;
}

// The lowest index up to which the numbers, none of which is negative, sum to at least `target`;
// size + 1 if none does.
static inline int64_t fenwick_find(const int64_t *tree, int64_t size, int64_t target) {
    int64_t index = 0, step = 1;
    while (step * 2 <= size) {
        step *= 2;
    }
    for (; step; step /= 2) {
        if (index + step <= size && tree[index + step] < target) {
            index += step, target -= tree[index];
        }
    }
    return index + 1;
}

#endif
