/* Whose I/O counts: a process by id or by name, its threads and its descendants; or a cgroup.
 *
 * Asked where a request is queued, in the context of who queued it; issue and completion run anywhere.
 * Macros from Python: TASK_* are BTF offsets; OWN_PID, whose I/O never counts; and none or one of WANTED_PID,
 * WANTED_COMM_LOW/_HIGH with _MASK_, WANTED_CGROUP with _LEVEL.
 */
#define ANCESTORS 8

static __always_inline u64 peek64(u64 address)
{
    u64 value = 0;
    bpf_probe_read_kernel(&value, sizeof(value), (void *)address);
    return value;
}

static __always_inline u32 peek32(u64 address)
{
    u32 value = 0;
    bpf_probe_read_kernel(&value, sizeof(value), (void *)address);
    return value;
}

/* A name's bytes after its end are not always zero, so that they are masked away. */
static __always_inline int is_named(u64 task)
{
#ifdef WANTED_COMM_LOW
    return (peek64(task + TASK_COMM) & WANTED_COMM_MASK_LOW) == WANTED_COMM_LOW
        && (peek64(task + TASK_COMM + 8) & WANTED_COMM_MASK_HIGH) == WANTED_COMM_HIGH;
#else
    return 0;
#endif
}

static __always_inline int is_mine(void)
{
    if (bpf_get_current_pid_tgid() >> 32 == OWN_PID)
        return 0;
#if defined(WANTED_CGROUP)
    return bpf_get_current_ancestor_cgroup_id(WANTED_CGROUP_LEVEL) == WANTED_CGROUP;
#elif defined(WANTED_PID) || defined(WANTED_COMM_LOW)
    u64 task = (u64)bpf_get_current_task();
    /* A thread may have its own name. */
    if (is_named(task))
        return 1;
#pragma unroll
    for (int up = 0; up < ANCESTORS; up++) {
        task = peek64(task + TASK_GROUP_LEADER);
#ifdef WANTED_PID
        if (peek32(task + TASK_PID) == WANTED_PID)
            return 1;
#endif
        if (is_named(task))
            return 1;
        task = peek64(task + TASK_REAL_PARENT);
        if (!task)
            return 0;
    }
    return 0;
#else
    return 1;
#endif
}
