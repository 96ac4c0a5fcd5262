/* Block requests from the queue to the completion, keyed by the request: a requeue or merge keeps it.
 *
 * Raw tracepoints give the structures; fields are read at BTF offsets that Python passes as macros
 * (RQ_*, QUEUE_DISK, DISK_*, BIO_*, BDEV_DISK), because header files may be of another kernel.
 */
enum direction { READ_, WRITE_, DISCARD_, FLUSH_, OTHER_, DIRECTIONS };
enum count {
    QUEUED, ISSUED, ISSUED_BYTES, COMPLETED, COMPLETED_BYTES, ERRORS, REQUEUES, REQUESTS_MERGED,
    BIOS, BIO_BYTES, BIOS_MERGED, SPLITS, D2C_SUM, Q2D_SUM, LOST_EVENTS, LOST_REQUESTS,
    ENDS_NOT_SEEN, LOST_ZONES, COUNTS
};
#define OP_MASK 0xff
#define OP_READ 0
#define OP_WRITE 1
#define OP_FLUSH 2
#define OP_DISCARD 3
#define OP_SECURE_ERASE 5
#define OP_ZONE_APPEND 7
#define OP_WRITE_ZEROES 9
#define DEPTHS 1024

struct request_state {
    u64 queue_ns, issue_ns, sector;
    u32 bytes, flags, dev, pid;
    u32 direction, is_in_flight;
    char comm[16];
};

struct event {
    u64 queue_ns, issue_ns, complete_ns, sector;
    u32 bytes, flags, dev, pid;
    u32 status, unused;
    char comm[16];
};

struct size_key {
    u32 direction, bytes;
};

struct second_key {
    u32 second, direction;
};

struct zone_key {
    u64 zone;
    u32 dev, direction;
};

struct amount {
    u64 requests, bytes;
};

BPF_HASH(requests, u64, struct request_state, 65536);
BPF_HASH(in_flight, u32, u64, 1024);
BPF_HASH(sizes, struct size_key, u64, 16384);
BPF_HASH(devices, u32, u32, 1024);
BPF_HASH(seconds, struct second_key, struct amount, 16384);
BPF_HASH(zones, struct zone_key, struct amount, 65536);
BPF_ARRAY(d2c, u64, DIRECTIONS * SLOTS);
BPF_ARRAY(q2d, u64, DIRECTIONS * SLOTS);
BPF_ARRAY(depths, u64, DIRECTIONS * DEPTHS);
BPF_ARRAY(counts, u64, DIRECTIONS * COUNTS);
#ifdef EVENTS
BPF_RINGBUF_OUTPUT(events, EVENT_PAGES);
#endif

static __always_inline void count(int direction, int what, u64 amount)
{
    int at = direction * COUNTS + what;
    add(counts.lookup(&at), amount);
}

static __always_inline u32 direction_of(u32 flags, u32 bytes)
{
    switch (flags & OP_MASK) {
    case OP_READ: return READ_;
    case OP_WRITE: case OP_ZONE_APPEND: return bytes ? WRITE_ : FLUSH_;
    case OP_FLUSH: return FLUSH_;
    case OP_DISCARD: case OP_SECURE_ERASE: case OP_WRITE_ZEROES: return DISCARD_;
    }
    return OTHER_;
}

static __always_inline u32 device_of(u64 disk)
{
    return disk ? peek32(disk + DISK_MAJOR) << 20 | peek32(disk + DISK_MINOR) : 0;
}

static __always_inline int is_probed(u32 dev)
{
#ifdef DEVICE_FILTER
    return devices.lookup(&dev) != 0;
#else
    return 1;
#endif
}

static __always_inline void add_amount(struct amount *amount, u64 bytes)
{
    if (!amount)
        return;
    add(&amount->requests, 1);
    add(&amount->bytes, bytes);
}

static __always_inline void move_in_flight(u32 dev, u64 by)
{
    u64 none = 0;
    u64 *now = in_flight.lookup_or_try_init(&dev, &none);
    add(now, by);
}

/* `complete_ns` is 0 for a request whose completion was not seen. */
static __always_inline void keep_event(struct request_state *state, u64 complete_ns, u32 status)
{
#ifdef EVENTS
    struct event event = {
        .queue_ns = state->queue_ns, .issue_ns = state->issue_ns, .complete_ns = complete_ns,
        .sector = state->sector, .bytes = state->bytes, .flags = state->flags, .dev = state->dev,
        .pid = state->pid, .status = status,
    };
    __builtin_memcpy(event.comm, state->comm, sizeof(event.comm));
    if (events.ringbuf_output(&event, sizeof(event), 0))
        count(state->direction, LOST_EVENTS, 1);
#endif
}

static __always_inline void on_queue(u64 rq)
{
    u32 dev = device_of(peek64(peek64(rq + RQ_QUEUE) + QUEUE_DISK));
    struct request_state *before = requests.lookup(&rq);
    /* The kernel uses a request again only after its end: this one's was not seen, and must not leak.
     * Seen on kernels that run no probe while a process they protect is the current one: completions that
     * interrupt that process fire the tracepoint without us (ftrace shows them). */
    if (before && before->is_in_flight) {
        count(before->direction, ENDS_NOT_SEEN, 1);
        move_in_flight(before->dev, -1);
        keep_event(before, 0, 0);
    }
    if (!is_on() || !is_probed(dev) || !is_mine()) {
        /* Its memory may have been another's request before. */
        requests.delete(&rq);
        return;
    }
    struct request_state state = {};
    state.queue_ns = bpf_ktime_get_ns();
    state.flags = peek32(rq + RQ_FLAGS);
    state.bytes = peek32(rq + RQ_BYTES);
    state.sector = peek64(rq + RQ_SECTOR);
    state.dev = dev;
    state.pid = bpf_get_current_pid_tgid() >> 32;
    state.direction = direction_of(state.flags, state.bytes);
    bpf_get_current_comm(&state.comm, sizeof(state.comm));
    count(state.direction, QUEUED, 1);
    if (requests.update(&rq, &state))
        count(state.direction, LOST_REQUESTS, 1);
}

#ifdef HAS_IO_START
RAW_TRACEPOINT_PROBE(block_io_start) { on_queue(ctx->args[0]); return 0; }
#else
RAW_TRACEPOINT_PROBE(block_rq_insert) { on_queue(ctx->args[0]); return 0; }
#endif

static __always_inline void on_first_issue(u64 rq, struct request_state *state, u64 now)
{
    u32 direction = state->direction;
    /* Merges have made it longer since it was queued, and moved its start. */
    state->bytes = peek32(rq + RQ_BYTES);
    state->sector = peek64(rq + RQ_SECTOR);
    u64 *depth = in_flight.lookup(&state->dev);
    struct size_key key = {.direction = direction, .bytes = state->bytes};
    count(direction, ISSUED, 1);
    count(direction, ISSUED_BYTES, state->bytes);
    count(direction, Q2D_SUM, now - state->queue_ns);
    int slot = direction * SLOTS + slot_of(now - state->queue_ns);
    add(q2d.lookup(&slot), 1);
    if (depth) {
        int level = direction * DEPTHS + (*depth < DEPTHS ? *depth : DEPTHS - 1);
        add(depths.lookup(&level), 1);
    }
    sizes.atomic_increment(key);
    struct zone_key zone = {.zone = state->sector >> ZONE_SHIFT, .dev = state->dev, .direction = direction};
    struct amount none = {};
    struct amount *at = zones.lookup_or_try_init(&zone, &none);
    add_amount(at, state->bytes);
    if (!at)
        count(direction, LOST_ZONES, 1);
}

RAW_TRACEPOINT_PROBE(block_rq_issue)
{
    u64 rq = ctx->args[0], now = bpf_ktime_get_ns();
    struct request_state *state = requests.lookup(&rq);
#ifndef HAS_IO_START
    /* Without a scheduler nothing is inserted, and who queued it issues it. */
    if (!state) {
        on_queue(rq);
        state = requests.lookup(&rq);
        if (state)
            state->queue_ns = peek64(rq + RQ_START);
    }
#endif
    if (!state)
        return 0;
    if (!state->is_in_flight)
        move_in_flight(state->dev, 1);
    state->is_in_flight = 1;
    if (!state->issue_ns)
        on_first_issue(rq, state, now);
    state->issue_ns = now;
    return 0;
}

RAW_TRACEPOINT_PROBE(block_rq_requeue)
{
    u64 rq = ctx->args[0];
    struct request_state *state = requests.lookup(&rq);
    if (!state)
        return 0;
    count(state->direction, REQUEUES, 1);
    if (state->is_in_flight)
        move_in_flight(state->dev, -1);
    state->is_in_flight = 0;
    return 0;
}

/* The request given here ends in another one and never completes. */
RAW_TRACEPOINT_PROBE(block_rq_merge)
{
    u64 rq = ctx->args[0];
    struct request_state *state = requests.lookup(&rq);
    if (!state)
        return 0;
    count(state->direction, REQUESTS_MERGED, 1);
    requests.delete(&rq);
    return 0;
}

RAW_TRACEPOINT_PROBE(block_rq_complete)
{
    u64 rq = ctx->args[0], now = bpf_ktime_get_ns();
    u32 status = ctx->args[1] & 0xff, done = ctx->args[2];
    struct request_state *state = requests.lookup(&rq);
    if (!state)
        return 0;
    u32 direction = state->direction;
    struct second_key second = {.second = (now - origin_ns()) / 1000000000, .direction = direction};
    struct amount none = {};
    if (!status) {
        count(direction, COMPLETED_BYTES, done);
        add_amount(seconds.lookup_or_try_init(&second, &none), done);
    }
    /* A part of it: the rest completes later. */
    if (done < peek32(rq + RQ_BYTES))
        return 0;
    count(direction, COMPLETED, 1);
    if (status)
        count(direction, ERRORS, 1);
    if (state->is_in_flight)
        move_in_flight(state->dev, -1);
    if (state->issue_ns) {
        count(direction, D2C_SUM, now - state->issue_ns);
        int slot = direction * SLOTS + slot_of(now - state->issue_ns);
        add(d2c.lookup(&slot), 1);
    }
    keep_event(state, now, status);
    requests.delete(&rq);
    return 0;
}

static __always_inline void on_bio(u64 bio, int what)
{
    if (!is_on() || !is_probed(device_of(peek64(peek64(bio + BIO_BDEV) + BDEV_DISK))) || !is_mine())
        return;
    u32 bytes = peek32(bio + BIO_BYTES_AT), direction = direction_of(peek32(bio + BIO_FLAGS), bytes);
    count(direction, what, 1);
    if (what != BIOS)
        return;
    count(direction, BIO_BYTES, bytes);
    /* The system call that this thread is in went to the disk. */
    u64 thread = bpf_get_current_pid_tgid();
    struct call_state *call = calls.lookup(&thread);
    if (call)
        call->bios++;
}

RAW_TRACEPOINT_PROBE(block_bio_queue) { on_bio(ctx->args[0], BIOS); return 0; }
RAW_TRACEPOINT_PROBE(block_bio_backmerge) { on_bio(ctx->args[0], BIOS_MERGED); return 0; }
RAW_TRACEPOINT_PROBE(block_bio_frontmerge) { on_bio(ctx->args[0], BIOS_MERGED); return 0; }
RAW_TRACEPOINT_PROBE(block_split) { on_bio(ctx->args[0], SPLITS); return 0; }
