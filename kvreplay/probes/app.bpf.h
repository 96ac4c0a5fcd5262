/* What the application sees of its files: system calls, asynchronous I/O and io_uring, submission to completion.
 *
 * Calls count on regular files and block devices, with a device filter only on those that lie on these devices; not on
 * pipes, sockets, terminals and the kernel's own file systems. What queued no I/O (page cache, holes) is timed apart.
 */
/* Of one call's I/Os; the rest are counted as not followed. */
#ifndef MOST_AT_ONCE
#define MOST_AT_ONCE 4096
#endif
#define FILE_TYPE 0xf000
#define REGULAR 0x8000
#define BLOCK_DEVICE 0x6000
/* proc, sysfs, debugfs, tracefs, cgroup, cgroup2: include/uapi/linux/magic.h */
#define IS_KERNELS_OWN(m) ((m) == 0x9fa0 || (m) == 0x62656572 || (m) == 0x64626720 || (m) == 0x74726163 \
                           || (m) == 0x27e0eb || (m) == 0x63677270)

struct aio_key {
    u64 iocb, tgid;
};

/* The tracepoints' own forms, of every kernel. */
struct sys_enter {
    u64 common;
    s64 number;
    u64 args[6];
};

struct sys_exit {
    u64 common;
    s64 number, result;
};

HASH(file_devices, BPF_MAP_TYPE_HASH, u32, u32, 4096);
HASH(aio, BPF_MAP_TYPE_LRU_HASH, struct aio_key, struct call_state, 65536);
HASH(uring, BPF_MAP_TYPE_LRU_HASH, u64, struct call_state, 65536);
HASH(written, BPF_MAP_TYPE_LRU_HASH, u64, u64, 16384);
HASH(advised, BPF_MAP_TYPE_LRU_HASH, u64, u64, 16384);
HASH(waiting, BPF_MAP_TYPE_HASH, u64, u64, 16384);

/* Put the file into `call`; return 0 if calls on it do not count. */
static __always_inline int is_on_file(struct call_state *call, struct file *file)
{
    struct inode *inode = file ? BPF_CORE_READ(file, f_inode) : 0;
    u32 type = BPF_CORE_READ(inode, i_mode) & FILE_TYPE, dev;
    if (!inode)
        return 0;
    if (type == BLOCK_DEVICE) {
        dev = BPF_CORE_READ(inode, i_rdev);
    } else if (type == REGULAR) {
        u64 magic = BPF_CORE_READ(inode, i_sb, s_magic);
        if (IS_KERNELS_OWN(magic))
            return 0;
        dev = BPF_CORE_READ(inode, i_sb, s_dev);
    } else {
        return 0;
    }
    if (config.is_device_wanted && !bpf_map_lookup_elem(TABLE(file_devices), &dev))
        return 0;
    call->inode = (u64)inode;
    call->is_direct = !!(BPF_CORE_READ(file, f_flags) & config.o_direct);
    return 1;
}

static __always_inline int is_on_descriptor(struct call_state *call, u32 fd)
{
    struct task_struct *task = (void *)bpf_get_current_task();
    struct fdtable *table = BPF_CORE_READ(task, files, fdt);
    struct file *file = 0, **files = BPF_CORE_READ(table, fd);
    if (fd >= BPF_CORE_READ(table, max_fds))
        return 0;
    bpf_probe_read_kernel(&file, sizeof(file), files + fd);
    return is_on_file(call, file);
}

static __always_inline void time_of(u64 kind, u64 ns)
{
    KEEP_BOUND(kind);
    if (kind < KINDS)
        add(&SHARED.app_sums[kind], ns);
    time_at(SHARED.app_times, kind, KINDS, ns);
}

static __always_inline void count_call(struct call_state *call, int what, u64 amount)
{
    u64 kind = call->kind, which = call->call;
    KEEP_BOUND(kind);
    KEEP_BOUND(which);
    if (kind < KINDS && which < CALLS)
        add(&here()->app[kind][which][what], amount);
}

static __always_inline void on_gaps(struct call_state *call, u64 now)
{
    u64 inode = call->inode, *before;
    if (call->kind == APP_READ) {
        before = bpf_map_lookup_elem(TABLE(advised), &inode);
        if (before && call->start_ns >= *before) {
            time_of(FADVISE_TO_READ, call->start_ns - *before);
            bpf_map_delete_elem(TABLE(advised), &inode);
        }
    } else if (call->kind == APP_WRITE) {
        bpf_map_update_elem(TABLE(written), &inode, &now, BPF_ANY);
    } else {
        before = bpf_map_lookup_elem(TABLE(written), &inode);
        if (before && call->start_ns >= *before) {
            time_of(WRITE_TO_FSYNC, call->start_ns - *before);
            bpf_map_delete_elem(TABLE(written), &inode);
        }
    }
}

static __always_inline void on_done(struct call_state *call, s64 result)
{
    u64 now = bpf_ktime_get_ns(), inode = call->inode, kind = call->kind;
    if (kind == FADVISE) {
        if (!result)
            bpf_map_update_elem(TABLE(advised), &inode, &now, BPF_ANY);
        return;
    }
    if (result < 0) {
        count_call(call, APP_ERRORS, 1);
        return;
    }
    count_call(call, APP_COUNT, 1);
    count_call(call, APP_BYTES, result);
    count_call(call, APP_DIRECT, call->is_direct);
    if (!call->bios) {
        count_call(call, APP_WITHOUT_IO, 1);
        count_call(call, APP_WITHOUT_IO_BYTES, result);
        if (kind == APP_READ)
            kind = READ_WITHOUT_IO;
        else if (kind == APP_WRITE)
            kind = WRITE_WITHOUT_IO;
    }
    time_of(kind, now - call->start_ns);
    on_gaps(call, now);
}

__noinline int on_enter(u32 fd, u32 kind, u32 call)
{
    u64 thread = bpf_get_current_pid_tgid();
    struct call_state state = {.kind = kind, .call = call};
    if (!is_on() || !is_mine() || !is_on_descriptor(&state, fd))
        return 0;
    state.start_ns = bpf_ktime_get_ns();
    bpf_map_update_elem(TABLE(calls), &thread, &state, BPF_ANY);
    return 0;
}

__noinline int on_exit(s64 result)
{
    u64 thread = bpf_get_current_pid_tgid();
    struct call_state *state = bpf_map_lookup_elem(TABLE(calls), &thread);
    if (!state)
        return 0;
    on_done(state, result);
    bpf_map_delete_elem(TABLE(calls), &thread);
    return 0;
}

#define FOLLOW(name, kind, call) \
    SEC("tp/syscalls/sys_enter_" #name) \
    int enter_##name(struct sys_enter *args) { return on_enter(args->args[0], kind, call); } \
    SEC("tp/syscalls/sys_exit_" #name) \
    int exit_##name(struct sys_exit *args) { return on_exit(args->result); }

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
__noinline int on_iocb(u64 iocb, u64 now)
{
    struct aio_key key = {.iocb = iocb, .tgid = bpf_get_current_pid_tgid() >> 32};
    struct { u16 opcode, priority; u32 fd; } part = {};
    bpf_probe_read_user(&part, sizeof(part), (void *)(iocb + 16));
    struct call_state state = {.start_ns = now, .call = IO_SUBMIT, .bios = 1};
    state.kind = kind_of_aio(part.opcode);
    if (state.kind != KINDS && is_on_descriptor(&state, part.fd))
        bpf_map_update_elem(TABLE(aio), &key, &state, BPF_ANY);
    return 0;
}

SEC("tp/syscalls/sys_enter_io_submit")
int enter_io_submit(struct sys_enter *args)
{
    u64 list = args->args[2], now = bpf_ktime_get_ns();
    s64 number = args->args[1];
    if (!is_on() || !is_mine())
        return 0;
    if (number > MOST_AT_ONCE)
        add(&SHARED.app_not_followed, number - MOST_AT_ONCE);
#pragma clang loop unroll(disable)
    for (int i = 0; i < MOST_AT_ONCE; i++) {
        KEEP_BOUND(number);
        if (i >= number)
            break;
        u64 iocb = 0;
        bpf_probe_read_user(&iocb, sizeof(iocb), (void *)(list + 8 * i));
        on_iocb(iocb, now);
    }
    return 0;
}

__noinline int on_wait(u64 events)
{
    u64 thread = bpf_get_current_pid_tgid();
    if (is_on() && is_mine())
        bpf_map_update_elem(TABLE(waiting), &thread, &events, BPF_ANY);
    return 0;
}

__noinline int on_event(u64 event)
{
    struct aio_key key = {.tgid = bpf_get_current_pid_tgid() >> 32};
    struct { u64 iocb; s64 result; } part = {};
    bpf_probe_read_user(&part, sizeof(part), (void *)(event + 8));
    key.iocb = part.iocb;
    struct call_state *state = bpf_map_lookup_elem(TABLE(aio), &key);
    if (!state)
        return 0;
    on_done(state, part.result);
    bpf_map_delete_elem(TABLE(aio), &key);
    return 0;
}

__noinline int on_events(s64 number)
{
    u64 thread = bpf_get_current_pid_tgid();
    u64 *events = bpf_map_lookup_elem(TABLE(waiting), &thread);
    if (!events)
        return 0;
    u64 first = *events;
    if (number > MOST_AT_ONCE)
        add(&SHARED.app_not_followed, number - MOST_AT_ONCE);
#pragma clang loop unroll(disable)
    for (int i = 0; i < MOST_AT_ONCE; i++) {
        KEEP_BOUND(number);
        if (i >= number)
            break;
        on_event(first + 32 * i);
    }
    bpf_map_delete_elem(TABLE(waiting), &thread);
    return 0;
}

SEC("tp/syscalls/sys_enter_io_getevents")
int enter_io_getevents(struct sys_enter *args) { return on_wait(args->args[3]); }

SEC("tp/syscalls/sys_exit_io_getevents")
int exit_io_getevents(struct sys_exit *args) { return on_events(args->result); }

SEC("tp/syscalls/sys_enter_io_pgetevents")
int enter_io_pgetevents(struct sys_enter *args) { return on_wait(args->args[3]); }

SEC("tp/syscalls/sys_exit_io_pgetevents")
int exit_io_pgetevents(struct sys_exit *args) { return on_events(args->result); }

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

static __always_inline int on_submit(void *args)
{
    struct io_kiocb *req = 0;
    struct call_state state = {.call = IO_URING, .bios = 1};
    bpf_probe_read_kernel(&req, sizeof(req), args + config.uring_submitted_at);
    u64 key = (u64)req;
    state.kind = kind_of_uring(BPF_CORE_READ(req, opcode));
    if (state.kind == KINDS || !is_on() || !is_mine())
        return 0;
    state.start_ns = bpf_ktime_get_ns();
    bpf_map_update_elem(TABLE(uring), &key, &state, BPF_ANY);
    return 0;
}

SEC("tp/io_uring/io_uring_submit_req")
int uring_submit_req(void *args) { return on_submit(args); }

/* Its name before Linux 6.4. */
SEC("tp/io_uring/io_uring_submit_sqe")
int uring_submit_sqe(void *args) { return on_submit(args); }

SEC("tp/io_uring/io_uring_complete")
int uring_complete(void *args)
{
    u64 key = 0;
    int result = 0;
    bpf_probe_read_kernel(&key, sizeof(key), args + config.uring_req_at);
    struct call_state *state = bpf_map_lookup_elem(TABLE(uring), &key);
    if (!state)
        return 0;
    bpf_probe_read_kernel(&result, sizeof(result), args + config.uring_result_at);
    /* The file is set by now. */
    struct io_kiocb *req = (void *)key;
    if (is_on_file(state, BPF_CORE_READ(req, file)))
        on_done(state, result);
    bpf_map_delete_elem(TABLE(uring), &key);
    return 0;
}
