/* Block requests from the queue to the completion, keyed by the request: a requeue or merge keeps it. */
#define OP_MASK 0xff
#define OP_READ 0
#define OP_WRITE 1
#define OP_FLUSH 2
#define OP_DISCARD 3
#define OP_SECURE_ERASE 5
#define OP_ZONE_APPEND 7
#define OP_WRITE_ZEROES 9
/* The kernel says that a request is at the device a moment after it says that it is issued. */
#define SURE_AFTER_NS 1000000
#define SWEEPS 2
#define RING_BYTES 16777216

struct request_state {
    /* 0 for what has not happened: not issued; not given back since the last issue. */
    u64 queue_ns, issue_ns, requeue_ns, sector;
    u32 bytes, flags, dev, pid;
    /* In the count of its disk; not in it, because the kernel has ended it without telling us. */
    u32 direction, is_in_flight, is_gone, unused;
    u64 comm[2];
};

struct event {
    u64 queue_ns, issue_ns, complete_ns, sector;
    u32 bytes, flags, dev, pid;
    u32 status, unused;
    u64 comm[2];
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

HASH(requests, BPF_MAP_TYPE_HASH, u64, struct request_state, 65536);
HASH(in_flight, BPF_MAP_TYPE_HASH, u32, u64, 1024);
HASH(sizes, BPF_MAP_TYPE_HASH, struct size_key, u64, 16384);
HASH(devices, BPF_MAP_TYPE_HASH, u32, u32, 1024);
HASH(seconds, BPF_MAP_TYPE_HASH, struct second_key, struct amount, 16384);
HASH(zones, BPF_MAP_TYPE_HASH, struct zone_key, struct amount, 65536);
RING(events, RING_BYTES);

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

static __always_inline u32 device_of(struct gendisk *disk)
{
    return disk ? FIELD(disk, major) << 20 | FIELD(disk, first_minor) : 0;
}

static __always_inline int is_probed(u32 dev)
{
    return !config.is_device_wanted || bpf_map_lookup_elem(TABLE(devices), &dev);
}

static __always_inline void *lookup_or_add(void *map, const void *key, const void *none)
{
    void *found = bpf_map_lookup_elem(map, key);
    if (found)
        return found;
    bpf_map_update_elem(map, key, none, BPF_NOEXIST);
    return bpf_map_lookup_elem(map, key);
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
    u64 none = 0, *now = lookup_or_add(TABLE(in_flight), &dev, &none);
    if (now)
        add(now, by);
}

static __always_inline void leave_flight(struct request_state *state)
{
    if (state->is_in_flight)
        move_in_flight(state->dev, -1);
    state->is_in_flight = 0;
}

/* `complete_ns` is 0 for a request whose completion was not seen. Nobody is woken up: Python comes by. */
static __always_inline void keep_event(struct request_state *state, u64 complete_ns, u32 status)
{
    if (!config.has_events)
        return;
    struct event *event = bpf_ringbuf_reserve(TABLE(events), sizeof(*event), 0);
    if (!event) {
        count(state->direction, LOST_EVENTS, 1);
        return;
    }
    event->queue_ns = state->queue_ns;
    event->issue_ns = state->issue_ns;
    event->complete_ns = complete_ns;
    event->sector = state->sector;
    event->bytes = state->bytes;
    event->flags = state->flags;
    event->dev = state->dev;
    event->pid = state->pid;
    event->status = status;
    event->unused = 0;
    __builtin_memcpy(event->comm, state->comm, sizeof(event->comm));
    bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

static __always_inline void sweep_later(u64 rq, u64 queue_ns)
{
    u64 at = NEXT_OF(&SHARED.swept_head) & (SWEPT - 1);
    SHARED.swept[at].rq = rq;
    SHARED.swept[at].queue_ns = queue_ns;
}

/* Take requests out of the count that have ended without our being told, oldest first: some kernels run no probe while
 * a process that they protect is the current one, and none runs within itself. The kernel's own state of the request
 * tells. What is wrong here (two processors in one cell) is put right by the next use of the request.
 */
static __always_inline void sweep(u64 now)
{
#pragma unroll
    for (int i = 0; i < SWEEPS; i++) {
        u64 tail = SHARED.swept_tail;
        if (tail >= SHARED.swept_head)
            return;
        if (!IS_MOVED(&SHARED.swept_tail, tail))
            return;
        struct swept at = SHARED.swept[tail & (SWEPT - 1)];
        struct request_state *state = bpf_map_lookup_elem(TABLE(requests), &at.rq);
        if (!state || state->queue_ns != at.queue_ns || state->is_gone)
            continue;
        struct request *rq = (void *)at.rq;
        s64 since_issue_ns = now - state->issue_ns;     /* < 0: another processor issued it after our `now` */
        if (state->is_in_flight && since_issue_ns > SURE_AFTER_NS && BPF_CORE_READ(rq, state) == MQ_RQ_IDLE) {
            leave_flight(state);
            state->is_gone = 1;
        } else {
            sweep_later(at.rq, at.queue_ns);
        }
    }
}

/* The kernel uses a request again only after its end: this use's was not seen, and must not leak. */
static __always_inline void end_unseen(struct request_state *before)
{
    count(before->direction, ENDS_NOT_SEEN, 1);
    leave_flight(before);
    keep_event(before, 0, 0);
}

static __always_inline void on_queue(struct request *rq)
{
    u64 key = (u64)rq;
    u32 dev = device_of(FIELD(FIELD(rq, q), disk));
    struct request_state *before = bpf_map_lookup_elem(TABLE(requests), &key);
    if (before && before->issue_ns)
        end_unseen(before);
    if (!is_on() || !is_probed(dev) || !is_mine()) {
        /* Its memory may have been another's request before. */
        if (before)
            bpf_map_delete_elem(TABLE(requests), &key);
        return;
    }
    struct request_state state = {};
    state.queue_ns = bpf_ktime_get_ns();
    state.flags = FIELD(rq, cmd_flags);
    state.bytes = FIELD(rq, __data_len);
    state.sector = FIELD(rq, __sector);
    state.dev = dev;
    state.pid = bpf_get_current_pid_tgid() >> 32;
    state.direction = direction_of(state.flags, state.bytes);
    bpf_get_current_comm(&state.comm, sizeof(state.comm));
    count(state.direction, QUEUED, 1);
    if (bpf_map_update_elem(TABLE(requests), &key, &state, BPF_ANY))
        count(state.direction, LOST_REQUESTS, 1);
}

SEC("tp_btf/block_io_start")
int block_io_start(u64 *ctx) { on_queue((void *)ctx[0]); return 0; }

/* Of kernels without block_io_start. */
SEC("tp_btf/block_rq_insert")
int block_rq_insert(u64 *ctx) { on_queue((void *)ctx[0]); return 0; }

static __always_inline void on_first_issue(struct request *rq, struct request_state *state)
{
    u64 direction = state->direction;
    /* Merges have made it longer since it was queued, and moved its start. */
    state->bytes = FIELD(rq, __data_len);
    state->sector = FIELD(rq, __sector);
    u64 none = 0, *depth = bpf_map_lookup_elem(TABLE(in_flight), &state->dev);
    struct size_key key = {.direction = direction, .bytes = state->bytes};
    count(direction, ISSUED, 1);
    count(direction, ISSUED_BYTES, state->bytes);
    if (depth && direction < DIRECTIONS) {
        u64 level = *depth < DEPTHS ? *depth : DEPTHS - 1;
        add(&SHARED.depths[direction][level & (DEPTHS - 1)], 1);
    }
    u64 *size = lookup_or_add(TABLE(sizes), &key, &none);
    if (size)
        add(size, 1);
    struct zone_key zone = {
        .zone = state->sector >> config.zone_shift, .dev = state->dev, .direction = direction
    };
    struct amount nothing = {};
    struct amount *at = lookup_or_add(TABLE(zones), &zone, &nothing);
    add_amount(at, state->bytes);
    if (!at)
        count(direction, LOST_ZONES, 1);
}

static __always_inline void on_issue(struct request *rq, struct request_state *state)
{
    u64 key = (u64)rq, now = bpf_ktime_get_ns(), is_first = !state->issue_ns;
    if (!is_first && !state->requeue_ns) {
        /* Another use of it, whose queueing was not seen: so are those of others while the probes are taken off. */
        end_unseen(state);
        bpf_map_delete_elem(TABLE(requests), &key);
        return;
    }
    if (state->requeue_ns) {
        u64 waited = now - state->requeue_ns;
        count(state->direction, REQUEUED_SUM, waited);
        time_at(SHARED.requeued, state->direction, DIRECTIONS, waited);
        state->requeue_ns = 0;
    }
    sweep(now);
    state->issue_ns = now;
    if (!state->is_in_flight)
        move_in_flight(state->dev, 1);
    state->is_in_flight = 1;
    if (is_first) {
        on_first_issue(rq, state);
        sweep_later(key, state->queue_ns);
    }
}

SEC("tp_btf/block_rq_issue")
int block_rq_issue(u64 *ctx)
{
    struct request *rq = (void *)ctx[0];
    u64 key = (u64)rq;
    struct request_state *state = bpf_map_lookup_elem(TABLE(requests), &key);
    if (state)
        on_issue(rq, state);
    return 0;
}

/* Of kernels without block_io_start: without a scheduler nothing is inserted, and who queued it issues it. */
SEC("tp_btf/block_rq_issue")
int block_rq_issue_first(u64 *ctx)
{
    struct request *rq = (void *)ctx[0];
    u64 key = (u64)rq;
    struct request_state *state = bpf_map_lookup_elem(TABLE(requests), &key);
    if (!state) {
        on_queue(rq);
        state = bpf_map_lookup_elem(TABLE(requests), &key);
        if (!state)
            return 0;
        state->queue_ns = FIELD(rq, start_time_ns);
    }
    on_issue(rq, state);
    return 0;
}

SEC("tp_btf/block_rq_requeue")
int block_rq_requeue(u64 *ctx)
{
    u64 key = ctx[0];
    struct request_state *state = bpf_map_lookup_elem(TABLE(requests), &key);
    if (!state)
        return 0;
    count(state->direction, REQUEUES, 1);
    state->requeue_ns = bpf_ktime_get_ns();
    leave_flight(state);
    return 0;
}

/* The request given here ends in another one and never completes. */
SEC("tp_btf/block_rq_merge")
int block_rq_merge(u64 *ctx)
{
    u64 key = ctx[0];
    struct request_state *state = bpf_map_lookup_elem(TABLE(requests), &key);
    if (!state)
        return 0;
    count(state->direction, REQUESTS_MERGED, 1);
    bpf_map_delete_elem(TABLE(requests), &key);
    return 0;
}

SEC("tp_btf/block_rq_complete")
int block_rq_complete(u64 *ctx)
{
    struct request *rq = (void *)ctx[0];
    u64 key = (u64)rq, now = bpf_ktime_get_ns();
    u32 status = ctx[1] & 0xff, done = ctx[2];
    struct request_state *state = bpf_map_lookup_elem(TABLE(requests), &key);
    if (!state)
        return 0;
    u64 direction = state->direction;
    if (!status) {
        struct second_key second = {.second = (now - SHARED.origin_ns) / 1000000000, .direction = direction};
        struct amount none = {};
        count(direction, COMPLETED_BYTES, done);
        add_amount(lookup_or_add(TABLE(seconds), &second, &none), done);
    }
    /* A part of it: the rest completes later. */
    if (done < FIELD(rq, __data_len))
        return 0;
    count(direction, COMPLETED, 1);
    if (status)
        count(direction, ERRORS, 1);
    leave_flight(state);
    if (state->issue_ns) {
        u64 queued = state->issue_ns - state->queue_ns, at_device = now - state->issue_ns;
        count(direction, Q2D_SUM, queued);
        count(direction, D2C_SUM, at_device);
        time_at(SHARED.q2d, direction, DIRECTIONS, queued);
        time_at(SHARED.d2c, direction, DIRECTIONS, at_device);
    }
    keep_event(state, now, status);
    bpf_map_delete_elem(TABLE(requests), &key);
    return 0;
}

static __always_inline void on_bio(struct bio *bio, int what)
{
    if (!is_on() || !is_probed(device_of(FIELD(FIELD(bio, bi_bdev), bd_disk))) || !is_mine())
        return;
    u32 bytes = FIELD(bio, bi_iter.bi_size), direction = direction_of(FIELD(bio, bi_opf), bytes);
    count(direction, what, 1);
    if (what != BIOS)
        return;
    count(direction, BIO_BYTES, bytes);
    /* The system call that this thread is in went to the disk. */
    u64 thread = bpf_get_current_pid_tgid();
    struct call_state *call = bpf_map_lookup_elem(TABLE(calls), &thread);
    if (call)
        call->bios++;
}

SEC("tp_btf/block_bio_queue")
int block_bio_queue(u64 *ctx) { on_bio((void *)ctx[0], BIOS); return 0; }

SEC("tp_btf/block_bio_backmerge")
int block_bio_backmerge(u64 *ctx) { on_bio((void *)ctx[0], BIOS_MERGED); return 0; }

SEC("tp_btf/block_bio_frontmerge")
int block_bio_frontmerge(u64 *ctx) { on_bio((void *)ctx[0], BIOS_MERGED); return 0; }

SEC("tp_btf/block_split")
int block_split(u64 *ctx) { on_bio((void *)ctx[0], SPLITS); return 0; }
