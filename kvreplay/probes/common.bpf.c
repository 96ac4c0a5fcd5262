/* What both sides keep and count with: block.bpf.c (requests) and app.bpf.c (the application's calls). */
#define SUB_BITS 6
#define SLOTS ((41 - SUB_BITS) << SUB_BITS)

struct call_state {
    u64 start_ns, inode;
    u32 kind, call, bios, unused;
};

BPF_ARRAY(origin, u64, 1);
BPF_HASH(calls, u64, struct call_state, 65536);

/* When Python said that the measurement starts; nothing counts before. */
static __always_inline u64 origin_ns(void)
{
    int none = 0;
    u64 *at = origin.lookup(&none);
    return at ? *at : 0;
}

static __always_inline int is_on(void)
{
    return origin_ns() != 0;
}

/* `++` on a shared counter loses updates across processors. */
static __always_inline void add(u64 *cell, u64 amount)
{
    if (cell)
        __sync_fetch_and_add(cell, amount);
}

static __always_inline int highest_bit(u64 v)
{
    int bit = 0;
    if (v >> 32) { bit += 32; v >>= 32; }
    if (v >> 16) { bit += 16; v >>= 16; }
    if (v >> 8) { bit += 8; v >>= 8; }
    if (v >> 4) { bit += 4; v >>= 4; }
    if (v >> 2) { bit += 2; v >>= 2; }
    return bit + (v >> 1 ? 1 : 0);
}

/* 64 slots a power of two: exact below 128, at most 1/64 wide above. histogram.py reads it back. */
static __always_inline int slot_of(u64 v)
{
    if (v < 1 << SUB_BITS)
        return v;
    if (v >> 40)
        return SLOTS - 1;
    int shift = highest_bit(v) - SUB_BITS;
    return (shift << SUB_BITS) + (v >> shift);
}

