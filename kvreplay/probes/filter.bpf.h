/* Whose I/O counts: a process by id or by name, its threads and its descendants; or a cgroup.
 *
 * Asked where a request is queued, in the context of who queued it; issue and completion run anywhere.
 */
#define ANCESTORS 8

/* A name's bytes after its end are not always zero, so that they are masked away. */
static __always_inline int is_named(struct task_struct *task)
{
    u64 name[2] = {};
    if (!config.is_comm_wanted)
        return 0;
    bpf_core_read(name, sizeof(name), &task->comm);
    return (name[0] & config.comm_mask_low) == config.comm_low && (name[1] & config.comm_mask_high) == config.comm_high;
}

/* Not static, as others that many programs call: the verifier then follows it once, and not with each caller. */
__noinline int is_mine(void)
{
    if (bpf_get_current_pid_tgid() >> 32 == config.own_pid)
        return 0;
    if (config.wanted_cgroup)
        return bpf_get_current_ancestor_cgroup_id(config.cgroup_level) == config.wanted_cgroup;
    if (!config.wanted_pid && !config.is_comm_wanted)
        return 1;
    struct task_struct *task = (void *)bpf_get_current_task();
    /* A thread may have its own name. */
    if (is_named(task))
        return 1;
#pragma unroll
    for (int up = 0; up < ANCESTORS; up++) {
        task = BPF_CORE_READ(task, group_leader);
        if (config.wanted_pid && BPF_CORE_READ(task, pid) == config.wanted_pid)
            return 1;
        if (is_named(task))
            return 1;
        task = BPF_CORE_READ(task, real_parent);
        if (!task)
            return 0;
    }
    return 0;
}
