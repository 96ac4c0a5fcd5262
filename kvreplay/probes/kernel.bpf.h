/* The members that we read of the kernel's structures. libbpf puts in their true places when it loads the object
 * (CO-RE), so that one object fits every kernel with BTF.
 */
#define RELOCATED __attribute__((preserve_access_index))
/* Of a pointer that a tracepoint gives. */
#define FIELD(pointer, member) ((pointer)->member)
#define TABLE(name) (&name)
#define NEXT_OF(cell) __sync_fetch_and_add(cell, 1)
#define IS_MOVED(cell, from) __sync_bool_compare_and_swap(cell, from, (from) + 1)
#define SHARED shared
#define GLOBALS \
    const volatile struct config config; \
    struct shared shared;
#define HASH(name, type_, key_, value_, entries) \
    struct { \
        __uint(type, type_); \
        __uint(max_entries, entries); \
        __type(key, key_); \
        __type(value, value_); \
    } name SEC(".maps")
#define RING(name, bytes) \
    struct { \
        __uint(type, BPF_MAP_TYPE_RINGBUF); \
        __uint(max_entries, bytes); \
    } name SEC(".maps")

typedef __u64 u64;
typedef __s64 s64;
typedef __u32 u32;
typedef __u16 u16;
typedef __u8 u8;

struct gendisk {
    int major, first_minor;
} RELOCATED;

struct request_queue {
    struct gendisk *disk;
} RELOCATED;

enum mq_rq_state { MQ_RQ_IDLE, MQ_RQ_IN_FLIGHT, MQ_RQ_COMPLETE };

struct request {
    struct request_queue *q;
    u32 cmd_flags, __data_len;
    enum mq_rq_state state;
    u64 __sector, start_time_ns;
} RELOCATED;

struct bvec_iter {
    u32 bi_size;
} RELOCATED;

struct block_device {
    struct gendisk *bd_disk;
} RELOCATED;

struct bio {
    struct block_device *bi_bdev;
    u32 bi_opf;
    struct bvec_iter bi_iter;
} RELOCATED;

struct super_block {
    u32 s_dev;
    unsigned long s_magic;
} RELOCATED;

struct inode {
    u16 i_mode;
    u32 i_rdev;
    struct super_block *i_sb;
} RELOCATED;

struct file {
    u32 f_flags;
    struct inode *f_inode;
} RELOCATED;

struct fdtable {
    u32 max_fds;
    struct file **fd;
} RELOCATED;

struct files_struct {
    struct fdtable *fdt;
} RELOCATED;

struct task_struct {
    struct task_struct *group_leader, *real_parent;
    int pid;
    char comm[16];
    struct files_struct *files;
} RELOCATED;

struct io_kiocb {
    struct file *file;
    u8 opcode;
} RELOCATED;
