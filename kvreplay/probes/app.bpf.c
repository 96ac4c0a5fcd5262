/* What the application sees of its files: system calls, asynchronous I/O and io_uring, submission to completion.
 *
 * Arguments come by the tracepoints' own formats; files are read at BTF offsets (TASK_FILES, FILES_FDT, FDT_*,
 * FILE_INODE, INODE_*, SUPER_*). Calls on pipes, sockets, terminals and the kernel's own file systems do not count.
 */
#ifdef HAS_SYSCALLS
/* Types that the tracepoints' formats name without their headers. */
#define rwf_t int
#define aio_context_t u64
enum kind { APP_READ, APP_WRITE, FSYNC, FDATASYNC, WRITE_TO_FSYNC, FADVISE_TO_READ, KINDS, FADVISE };
enum call {
    READ_CALL, PREAD64, READV, PREADV, PREADV2, WRITE_CALL, PWRITE64, WRITEV, PWRITEV, PWRITEV2,
    FSYNC_CALL, FDATASYNC_CALL, AIO, URING, CALLS
};
enum call_count { APP_COUNT, APP_BYTES, APP_ERRORS, APP_WITHOUT_IO, APP_WITHOUT_IO_BYTES, CALL_COUNTS };
#define MOST_AT_ONCE 128
/* Or the compiler makes one bound of two, which the kernel's verifier cannot follow. */
#define KEEP_BOUND(number) asm volatile("" : "+r"(number))
#define FILE_TYPE 0xf000
#define REGULAR 0x8000
#define BLOCK_DEVICE 0x6000
/* proc, sysfs, debugfs, tracefs, cgroup, cgroup2: include/uapi/linux/magic.h */
#define IS_KERNELS_OWN(m) ((m) == 0x9fa0 || (m) == 0x62656572 || (m) == 0x64626720 || (m) == 0x74726163 \
                           || (m) == 0x27e0eb || (m) == 0x63677270)

struct aio_key {
    u64 iocb, tgid;
};

BPF_HASH(file_devices, u32, u32, 4096);
BPF_TABLE("lru_hash", struct aio_key, struct call_state, aio, 65536);
BPF_TABLE("lru_hash", u64, struct call_state, uring, 65536);
BPF_TABLE("lru_hash", u64, u64, written, 16384);
BPF_TABLE("lru_hash", u64, u64, advised, 16384);
BPF_HASH(waiting, u64, u64, 16384);
BPF_ARRAY(app_times, u64, KINDS * SLOTS);
BPF_ARRAY(app_sums, u64, KINDS);
BPF_ARRAY(app_counts, u64, KINDS * CALLS * CALL_COUNTS);
BPF_ARRAY(app_not_followed, u64, 1);

/* The inode if calls on the file count, else 0. */
static __always_inline u64 inode_of(u64 file)
{
    u64 inode = file ? peek64(file + FILE_INODE) : 0;
    u32 type = peek32(inode + INODE_MODE) & FILE_TYPE, dev;
    if (!inode)
        return 0;
    if (type == BLOCK_DEVICE) {
        dev = peek32(inode + INODE_RDEV);
    } else if (type == REGULAR) {
        u64 super = peek64(inode + INODE_SB);
        u64 magic = peek64(super + SUPER_MAGIC);
        if (IS_KERNELS_OWN(magic))
            return 0;
        dev = peek32(super + SUPER_DEV);
    } else {
        return 0;
    }
#ifdef DEVICE_FILTER
    if (!file_devices.lookup(&dev))
        return 0;
#endif
    return inode;
}

static __always_inline u64 inode_of_descriptor(u32 fd)
{
    u64 table = peek64(peek64((u64)bpf_get_current_task() + TASK_FILES) + FILES_FDT);
    if (fd >= peek32(table + FDT_MAX))
        return 0;
    return inode_of(peek64(peek64(table + FDT_FD) + 8ULL * fd));
}

static __always_inline void time_of(int kind, u64 ns)
{
    int slot = kind * SLOTS + slot_of(ns);
    add(app_times.lookup(&slot), 1);
    add(app_sums.lookup(&kind), ns);
}

static __always_inline void count_call(struct call_state *call, int what, u64 amount)
{
    int at = (call->kind * CALLS + call->call) * CALL_COUNTS + what;
    add(app_counts.lookup(&at), amount);
}

static __always_inline void on_gaps(struct call_state *call, u64 now)
{
    u64 inode = call->inode, *before;
    if (call->kind == APP_READ) {
        before = advised.lookup(&inode);
        if (before && call->start_ns >= *before) {
            time_of(FADVISE_TO_READ, call->start_ns - *before);
            advised.delete(&inode);
        }
    } else if (call->kind == APP_WRITE) {
        written.update(&inode, &now);
    } else {
        before = written.lookup(&inode);
        if (before && call->start_ns >= *before) {
            time_of(WRITE_TO_FSYNC, call->start_ns - *before);
            written.delete(&inode);
        }
    }
}

static __always_inline void on_done(struct call_state *call, s64 result)
{
    u64 now = bpf_ktime_get_ns(), inode = call->inode;
    if (call->kind == FADVISE) {
        if (!result)
            advised.update(&inode, &now);
        return;
    }
    if (result < 0) {
        count_call(call, APP_ERRORS, 1);
        return;
    }
    count_call(call, APP_COUNT, 1);
    count_call(call, APP_BYTES, result);
    if (!call->bios) {
        count_call(call, APP_WITHOUT_IO, 1);
        count_call(call, APP_WITHOUT_IO_BYTES, result);
    }
    time_of(call->kind, now - call->start_ns);
    on_gaps(call, now);
}

static __always_inline void on_enter(u32 fd, int kind, int call)
{
    u64 thread = bpf_get_current_pid_tgid();
    if (!is_on() || !is_mine())
        return;
    struct call_state state = {.kind = kind, .call = call};
    state.inode = inode_of_descriptor(fd);
    if (!state.inode)
        return;
    state.start_ns = bpf_ktime_get_ns();
    calls.update(&thread, &state);
}

static __always_inline void on_exit(s64 result)
{
    u64 thread = bpf_get_current_pid_tgid();
    struct call_state *state = calls.lookup(&thread);
    if (!state)
        return;
    on_done(state, result);
    calls.delete(&thread);
}

#define FOLLOW(name, kind, call) \
    TRACEPOINT_PROBE(syscalls, sys_enter_##name) { on_enter(args->fd, kind, call); return 0; } \
    TRACEPOINT_PROBE(syscalls, sys_exit_##name) { on_exit(args->ret); return 0; }

FOLLOW(read, APP_READ, READ_CALL)
FOLLOW(pread64, APP_READ, PREAD64)
FOLLOW(readv, APP_READ, READV)
FOLLOW(preadv, APP_READ, PREADV)
FOLLOW(preadv2, APP_READ, PREADV2)
FOLLOW(write, APP_WRITE, WRITE_CALL)
FOLLOW(pwrite64, APP_WRITE, PWRITE64)
FOLLOW(writev, APP_WRITE, WRITEV)
FOLLOW(pwritev, APP_WRITE, PWRITEV)
FOLLOW(pwritev2, APP_WRITE, PWRITEV2)
FOLLOW(fsync, FSYNC, FSYNC_CALL)
FOLLOW(fdatasync, FDATASYNC, FDATASYNC_CALL)
FOLLOW(fadvise64, FADVISE, 0)

#ifdef HAS_AIO
static __always_inline int kind_of_aio(u32 opcode)
{
    switch (opcode) {
    case 0: case 7: return APP_READ;
    case 1: case 8: return APP_WRITE;
    case 2: return FSYNC;
    case 3: return FDATASYNC;
    }
    return KINDS;
}

/* struct iocb and struct io_event are the kernel's interface and never change: include/uapi/linux/aio_abi.h */
TRACEPOINT_PROBE(syscalls, sys_enter_io_submit)
{
    u64 list = (u64)args->iocbpp, now = bpf_ktime_get_ns();
    s64 number = args->nr;
    int none = 0;
    if (!is_on() || !is_mine())
        return 0;
    struct aio_key key = {.tgid = bpf_get_current_pid_tgid() >> 32};
    if (number > MOST_AT_ONCE)
        add(app_not_followed.lookup(&none), number - MOST_AT_ONCE);
#pragma clang loop unroll(disable)
    for (int i = 0; i < MOST_AT_ONCE; i++) {
        KEEP_BOUND(number);
        if (i >= number)
            break;
        struct { u16 opcode; s16 priority; u32 fd; } part = {};
        bpf_probe_read_user(&key.iocb, sizeof(key.iocb), (void *)(list + 8 * i));
        bpf_probe_read_user(&part, sizeof(part), (void *)(key.iocb + 16));
        struct call_state state = {.start_ns = now, .call = AIO, .bios = 1};
        state.kind = kind_of_aio(part.opcode);
        state.inode = inode_of_descriptor(part.fd);
        if (state.kind != KINDS && state.inode)
            aio.update(&key, &state);
    }
    return 0;
}

static __always_inline void on_wait(u64 events)
{
    u64 thread = bpf_get_current_pid_tgid();
    if (is_mine())
        waiting.update(&thread, &events);
}

static __always_inline void on_events(s64 number)
{
    u64 thread = bpf_get_current_pid_tgid();
    u64 *events = waiting.lookup(&thread);
    if (!events)
        return;
    struct aio_key key = {.tgid = thread >> 32};
#pragma clang loop unroll(disable)
    for (int i = 0; i < MOST_AT_ONCE; i++) {
        KEEP_BOUND(number);
        if (i >= number)
            break;
        struct { u64 iocb; s64 result; } part = {};
        bpf_probe_read_user(&part, sizeof(part), (void *)(*events + 32 * i + 8));
        key.iocb = part.iocb;
        struct call_state *state = aio.lookup(&key);
        if (state) {
            on_done(state, part.result);
            aio.delete(&key);
        }
    }
    waiting.delete(&thread);
}

TRACEPOINT_PROBE(syscalls, sys_enter_io_getevents) { on_wait((u64)args->events); return 0; }
TRACEPOINT_PROBE(syscalls, sys_exit_io_getevents) { on_events(args->ret); return 0; }
TRACEPOINT_PROBE(syscalls, sys_enter_io_pgetevents) { on_wait((u64)args->events); return 0; }
TRACEPOINT_PROBE(syscalls, sys_exit_io_pgetevents) { on_events(args->ret); return 0; }
#endif

#if defined(HAS_URING) || defined(HAS_URING_SQE)
/* enum io_uring_op of include/uapi/linux/io_uring.h: the plain, vectored and fixed-buffer operations. */
static __always_inline int kind_of_uring(u32 opcode)
{
    switch (opcode) {
    case 1: case 4: case 22: case 60: return APP_READ;
    case 2: case 5: case 23: case 61: return APP_WRITE;
    case 3: return FSYNC;
    }
    return KINDS;
}

static __always_inline void on_submit(u64 req, u32 opcode)
{
    struct call_state state = {.call = URING, .bios = 1};
    state.kind = kind_of_uring(opcode);
    if (state.kind == KINDS || !is_on() || !is_mine())
        return;
    state.start_ns = bpf_ktime_get_ns();
    uring.update(&req, &state);
}

#ifdef HAS_URING
TRACEPOINT_PROBE(io_uring, io_uring_submit_req) { on_submit((u64)args->req, args->opcode); return 0; }
#else
TRACEPOINT_PROBE(io_uring, io_uring_submit_sqe) { on_submit((u64)args->req, args->opcode); return 0; }
#endif

TRACEPOINT_PROBE(io_uring, io_uring_complete)
{
    u64 req = (u64)args->req;
    struct call_state *state = uring.lookup(&req);
    if (!state)
        return 0;
    /* The file is the first member of struct io_kiocb in every version, and set by now. */
    state->inode = inode_of(peek64(req));
    if (state->inode)
        on_done(state, args->res);
    uring.delete(&req);
    return 0;
}
#endif
#endif
