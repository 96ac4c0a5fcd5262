// Generates the data of writes, and verifies that of reads. Each 512-byte sector is a sector of an
// arena that dgen-py filled, xor a key.
//
// Call path: operation_generate_data -> data_generate -> generate_sectors; operation_verify_data ->
// data_verify.
//
// The key follows from the seed, the object, the version and the sector number, so that no sector
// occurs twice, and any part of an object can be generated on its own in one pass over its bytes.
// The arena is small enough to stay in the processor's caches.
#include "replay.h"

#include <string.h>

enum { POOL_BLOCKS = 256, POOL_OBJECT = -1, WORDS = BLOCK_BYTES / 8 };
enum { TAG, OBJECT, OFFSET, VERSION, SUM };
#define STEP 0x9E3779B97F4A7C15ULL

// Bytes `from` to `end` of a sector; word i has the key and i steps.
static inline void generate_part(const uint8_t *source, uint8_t *to, int64_t from, int64_t end,
                                 uint64_t key) {
    int64_t at = from;
    while (at < end) {
        uint64_t word;
        uint64_t turned = key + (uint64_t)(at / 8) * STEP;
        if (at % 8 || end - at < 8) {
            *to++ = source[at] ^ (uint8_t)(turned >> 8 * (at % 8));
            at++;
            continue;
        }
        memcpy(&word, source + at, 8);
        word ^= turned;
        memcpy(to, &word, 8);
        to += 8;
        at += 8;
    }
}

static inline __attribute__((always_inline)) void
generate_sector(const uint64_t *restrict source, uint64_t *restrict to, uint64_t key) {
    for (int i = 0; i < SECTOR_BYTES / 8; i++) {
        to[i] = source[i] ^ (key + (uint64_t)i * STEP);
    }
}

static inline __attribute__((always_inline)) void
generate_sectors_inline(const Data *data, uint8_t *to, int64_t bytes, int64_t offset,
                        int64_t object, int64_t version) {
    uint64_t name = mixed(data->seed ^ mixed((uint64_t)object * STEP + (uint64_t)version));
    int64_t arena_sectors = data->arena_sectors;
    int64_t arena_sector = 0;
    int64_t turn = 0; // Every arena length, the sectors start at another one of the arena.
    for (int64_t at = offset, end = offset + bytes; at < end;) {
        int64_t sector = at / SECTOR_BYTES;
        int64_t from = at % SECTOR_BYTES;
        int64_t to_byte =
            end - sector * SECTOR_BYTES < SECTOR_BYTES ? end - sector * SECTOR_BYTES : SECTOR_BYTES;
        int64_t head = to_byte < data->head_bytes ? to_byte : data->head_bytes;
        if (at == offset || sector == turn) {
            turn = (sector / arena_sectors + 1) * arena_sectors;
            arena_sector =
                (int64_t)((mixed(name ^ (uint64_t)turn) >> 20) + (uint64_t)sector) % arena_sectors;
        } else if (++arena_sector == arena_sectors) {
            arena_sector = 0;
        }
        const uint8_t *source = data->arena + arena_sector * SECTOR_BYTES;
        uint64_t key = mixed(name + (uint64_t)sector * STEP);
        if (from == 0 && head == SECTOR_BYTES && (uintptr_t)to % 8 == 0) {
            generate_sector((const uint64_t *)(const void *)source, (uint64_t *)(void *)to, key);
        } else {
            if (from < head) {
                generate_part(source, to, from, head, key);
            }
            if (head < to_byte) {
                memset(to + (head > from ? head - from : 0), 0,
                       (size_t)(to_byte - (head > from ? head : from)));
            }
        }
        to += to_byte - from;
        at += to_byte - from;
    }
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static void generate_sectors_avx2(const Data *data, uint8_t *to,
                                                                  int64_t bytes, int64_t offset,
                                                                  int64_t object, int64_t version) {
    generate_sectors_inline(data, to, bytes, offset, object, version);
}
#endif

static void generate_sectors(const Data *data, uint8_t *to, int64_t bytes, int64_t offset,
                             int64_t object, int64_t version) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2")) { // 1.5 times as fast as what every processor has
        generate_sectors_avx2(data, to, bytes, offset, object, version);
        return;
    }
#endif
    generate_sectors_inline(data, to, bytes, offset, object, version);
}

// Returns the block of the pool that replaces a block, or NONE if the block is unique.
static int64_t find_pool_block(Data *data, int64_t block, int64_t object, int64_t version,
                               bool is_whole) {
    uint64_t hash = mixed(mixed(~data->seed ^ mixed((uint64_t)object * STEP + (uint64_t)version)) +
                          (uint64_t)block * STEP);
    bool is_copy = hash < data->copies_below;
    int64_t found = (int64_t)(mixed(hash) % POOL_BLOCKS);
    if (is_whole) {
        atomic_fetch_add_explicit(&data->made_blocks, 1, memory_order_relaxed);
        if (!is_copy) {
            atomic_fetch_add_explicit(&data->single_blocks, 1, memory_order_relaxed);
        } else {
            atomic_fetch_or_explicit(&data->pool_used[found / 64], 1ULL << found % 64,
                                     memory_order_relaxed);
        }
    }
    return is_copy ? found : NONE;
}

// Returns the checksum of all words but SUM itself; every word has an odd weight of its own.
static uint64_t checksum(const uint64_t *block) {
    uint64_t sum = 0;
    uint64_t weight = STEP;
    for (int i = 0; i < WORDS; i++, weight += 2 * STEP) {
        sum += i == SUM ? 0 : (block[i] ^ block[i] >> 32) * (weight | 1);
    }
    return sum;
}

static void stamp_blocks(const Data *data, uint8_t *to, int64_t bytes, int64_t offset,
                         int64_t object, int64_t version) {
    for (int64_t at = 0; at + BLOCK_BYTES <= bytes; at += BLOCK_BYTES) {
        uint64_t *block = (uint64_t *)(to + at);
        block[TAG] = data->tag;
        block[OBJECT] = (uint64_t)object;
        block[OFFSET] = (uint64_t)(offset + at);
        block[VERSION] = (uint64_t)version;
        block[SUM] = checksum(block);
    }
}

EXPORT void data_generate(Data *data, void *to, int64_t bytes, int64_t offset, int64_t object,
                          int64_t version) {
    uint8_t *part = to;
    if (!data->copies_below || object == POOL_OBJECT) {
        generate_sectors(data, to, bytes, offset, object, version);
    } else {
        for (int64_t at = offset, end = offset + bytes; at < end;) {
            int64_t block = at / BLOCK_BYTES;
            int64_t from = at % BLOCK_BYTES;
            int64_t length = BLOCK_BYTES - from < end - at ? BLOCK_BYTES - from : end - at;
            int64_t copy = find_pool_block(data, block, object, version, length == BLOCK_BYTES);
            if (copy == NONE) {
                generate_sectors(data, part, length, at, object, version);
            } else {
                generate_sectors(data, part, length, copy * BLOCK_BYTES + from, POOL_OBJECT, 0);
            }
            part += length;
            at += length;
        }
    }
    if (data->is_stamped) {
        stamp_blocks(data, to, bytes, offset, object, version);
    }
}

// Verifies one block that was read at `offset` of an object. Returns the fault, with details in
// `bad`.
int data_verify(const Data *data, const void *read_block, int64_t offset, int64_t object,
                int64_t version, BadBlock *bad) {
    const uint64_t *block = read_block;
    bool is_whole = block[SUM] == checksum(block);
    bool is_here = block[OBJECT] == (uint64_t)object && block[OFFSET] == (uint64_t)offset;
    if (is_whole && block[TAG] == data->tag && is_here && block[VERSION] == (uint64_t)version) {
        return GOOD_BLOCK;
    }
    *bad = (BadBlock){.offset_bytes = offset,
                      .expected = (int32_t)version,
                      .found_object = (int64_t)block[OBJECT],
                      .found_offset_bytes = (int64_t)block[OFFSET],
                      .found_version = (int32_t)block[VERSION],
                      .object = (int32_t)object};
    bad->fault = !is_whole                 ? DAMAGED
                 : block[TAG] != data->tag ? FOREIGN
                 : is_here                 ? STALE
                                           : MISPLACED;
    return bad->fault;
}
