// A binary heap of numbers with the lowest on top. Queues of ready rows and sets of completion
// times use it.
#include "core.h"

void heap_push(Heap *heap, int64_t number) {
    if (heap->count == heap->room) {
        heap->room = 2 * heap->room + 256;
        heap->number = memory_grow(heap->number, heap->room, sizeof(int64_t));
    }
    int64_t at = heap->count++;
    for (; at && heap->number[(at - 1) / 2] > number; at = (at - 1) / 2) {
        heap->number[at] = heap->number[(at - 1) / 2];
    }
    heap->number[at] = number;
}

int64_t heap_pop(Heap *heap) {
    const int64_t lowest = heap->number[0], last = heap->number[--heap->count];
    int64_t at = 0, child;
    while ((child = 2 * at + 1) < heap->count) {
        if (child + 1 < heap->count && heap->number[child + 1] < heap->number[child]) {
            child++;
        }
        if (heap->number[child] >= last) {
            break;
        }
        heap->number[at] = heap->number[child];
        at = child;
    }
    heap->number[at] = last;
    return lowest;
}
