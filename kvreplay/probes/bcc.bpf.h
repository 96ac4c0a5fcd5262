/* What the programs are written in, as BCC compiles them on the user's machine: for kernels without BTF.
 *
 * The kernel's own headers say where its members are, and all of its memory is read by copies: a raw tracepoint's
 * pointers are numbers to the verifier. Tables are made before, so that they are descriptors here: FD_requests.
 */
#include <linux/blkdev.h>
#include <linux/blk-mq.h>
#include <linux/fdtable.h>
#include <linux/fs.h>
#include <linux/io_uring_types.h>
#include <linux/sched.h>

#define SEC(name)
/* BCC loads function by function, so that none can call another. */
#undef __noinline
#define __noinline static __always_inline
/* Of one call's I/Os: the verifier follows each through all of on_done, and has a limit that 128 exceed. */
#define MOST_AT_ONCE 32

#define FIELD(pointer, member) ({ \
    typeof((pointer)->member) field_; \
    bpf_probe_read_kernel(&field_, sizeof(field_), &(pointer)->member); \
    field_; \
})
#define FIELD_OF(pointer, first, second) FIELD(FIELD(pointer, first), second)
#define ONE_OF(_1, _2, name, ...) name
#define BPF_CORE_READ(pointer, ...) ONE_OF(__VA_ARGS__, FIELD_OF, FIELD)(pointer, __VA_ARGS__)
#define bpf_core_read bpf_probe_read_kernel

#define HASH(name, type_, key_, value_, entries)
#define RING(name, bytes)
#define TABLE(name) ((void *)bpf_pseudo_fd(1, FD_##name))
#define bpf_map_lookup_elem(map, key) bpf_map_lookup_elem_((u64)(map), (void *)(key))
#define bpf_map_update_elem(map, key, value, flags) \
    bpf_map_update_elem_((u64)(map), (void *)(key), (void *)(value), flags)
#define bpf_map_delete_elem(map, key) bpf_map_delete_elem_((u64)(map), (void *)(key))

/* Kernels before 5.12 have no atomic operation that returns what was there. */
#define NEXT_OF(cell) ({ u64 was_ = *(cell); *(cell) = was_ + 1; was_; })
#define IS_MOVED(cell, from) (*(cell) == (from) ? (*(cell) = (from) + 1, 1) : 0)

/* The only entry of its table is always there, which the verifier wants to see. */
#define SHARED (*shared_at())
#define GLOBALS \
    static const struct config config = CONFIG; \
    static __always_inline struct shared *shared_at(void) \
    { \
        u32 first = 0; \
        struct shared *found = bpf_map_lookup_elem(TABLE(shared), &first); \
        asm volatile("if %0 != 0 goto +2\n r0 = 0\n exit" : : "r"(found)); \
        return found; \
    }
