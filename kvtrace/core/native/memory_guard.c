// A thread that ends the program with one line before the kernel kills it without a word.
//
// Every 1 to 200 ms, for each limit: free = limit - used + cached files + swap space. If less than
// the reserve is free, and this process holds a quarter of the limit or more, it prints one line
// and exits with 7.
//
// It is not written in Python, because a call of a library may keep Python's lock while it fills
// gigabytes.
#include "core.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_LIMITS = 16,
    KEYS = 3, // _KEYS in memory_guard.py.
    PATH_SIZE = 512,
    FILE_SIZE = 8192, // A memory.stat has 2 KiB.
    OUT_OF_MEMORY_EXIT = 7,
    OWN_SHARE = 4, // A program with less than a quarter of a limit is not what fills it.
    RESERVE_SHARE = 50,
    MIN_WAIT_NS = 1000000,
    MAX_WAIT_NS = 200000000,
    FILL_BYTES_PER_NS = 20, // The kernel clears pages first, so a program takes them hardly faster.
    DECIMAL = 10,
    KIB = 1024,
};

#define LEAST_RESERVE_BYTES (INT64_C(48) << 20)

// A limit on the memory of several processes: of the machine, or of a control group.
typedef struct {
    int64_t bytes;
    char used[PATH_SIZE]; // What is used of it; empty for the machine.
    char stat[PATH_SIZE]; // What is left of the machine, or what of a group's use is cached files.
    char keys[KEYS][PATH_SIZE];  // Unused ones are empty.
    char kernel_used[PATH_SIZE]; // What the kernel's own objects use; empty if `stat` tells.
    int64_t swap_bytes;          // Of swap space, which the kernel uses before it kills a process.
    char swap_used[PATH_SIZE];   // What is used of it; empty if it has no limit of its own.
} Limit;

typedef struct {
    Limit limits[MAX_LIMITS];
    int count;
    char reason[PATH_SIZE];
} Guard;

static Guard guard;

// Reads a small file into `text`; an empty text if that fails.
static void read_text(const char *path, char text[FILE_SIZE]) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, text, FILE_SIZE - 1);
    text[max_of(length, 0)] = 0;
    if (file >= 0) {
        close(file);
    }
}

// The number after `key` at the start of a line; 0 if there is none.
static int64_t number_after(const char *text, const char *key) {
    size_t length = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, length) == 0) {
            return strtoll(line + length, NULL, DECIMAL);
        }
    }
    return 0;
}

// How much swap space processes under `limit` can still use.
static int64_t swap_left(const Limit *limit) {
    char text[FILE_SIZE];
    read_text("/proc/meminfo", text);
    int64_t free_bytes = number_after(text, "SwapFree:") * KIB;
    if (!limit->swap_used[0]) {
        return min_of(free_bytes, limit->swap_bytes);
    }
    read_text(limit->swap_used, text);
    return max_of(0, min_of(free_bytes, limit->swap_bytes - strtoll(text, NULL, DECIMAL)));
}

// What `limit` leaves, in bytes. Cached files are no use of memory: the kernel drops them first.
static int64_t bytes_left(const Limit *limit) {
    char text[FILE_SIZE];
    read_text(limit->stat, text);
    if (!text[0]) {
        return INT64_MAX;
    }
    if (!limit->used[0]) {
        return number_after(text, limit->keys[0]) * KIB;
    }
    int64_t dropped = 0;
    for (int i = 0; i < KEYS; i++) {
        dropped += limit->keys[i][0] ? number_after(text, limit->keys[i]) : 0;
    }
    if (limit->kernel_used[0]) {
        // Most of it are names and inodes of files, which the kernel drops, too.
        read_text(limit->kernel_used, text);
        dropped += strtoll(text, NULL, DECIMAL) / 4 * 3;
    }
    read_text(limit->used, text);
    return limit->bytes - strtoll(text, NULL, DECIMAL) + dropped;
}

static int64_t resident_bytes(void) {
    char text[FILE_SIZE];
    read_text("/proc/self/statm", text);
    char *second = strchr(text, ' ');
    return second ? strtoll(second, NULL, DECIMAL) * sysconf(_SC_PAGESIZE) : 0;
}

static int64_t reserve_bytes(const Limit *limit) {
    return max_of(LEAST_RESERVE_BYTES, limit->bytes / RESERVE_SHARE);
}

static void end_program(void) {
    ssize_t written = write(STDERR_FILENO, guard.reason, strlen(guard.reason));
    (void)written;
    _exit(OUT_OF_MEMORY_EXIT);
}

static void *watch(void *unused) {
    (void)unused;
    for (;;) {
        int64_t least_spare = INT64_MAX;
        for (int i = 0; i < guard.count; i++) {
            const Limit *limit = &guard.limits[i];
            int64_t spare = bytes_left(limit) - reserve_bytes(limit);
            if (spare < 0) {
                spare += swap_left(limit);
            }
            if (spare < 0 && resident_bytes() >= limit->bytes / OWN_SHARE) {
                end_program();
            }
            least_spare = min_of(least_spare, spare);
        }
        int64_t wait_ns = min_of(max_of(least_spare / FILL_BYTES_PER_NS, MIN_WAIT_NS), MAX_WAIT_NS);
        nanosleep(&(struct timespec){.tv_nsec = wait_ns}, NULL);
    }
    return NULL;
}

// Adds a limit, before the thread is started. Returns whether there is room for it.
EXPORT bool memory_guard_add(int64_t bytes, const char *used, const char *stat,
                             const char *const *keys, const char *kernel_used, int64_t swap_bytes,
                             const char *swap_used) {
    if (guard.count == MAX_LIMITS) {
        return false;
    }
    Limit *limit = &guard.limits[guard.count++];
    limit->bytes = bytes;
    snprintf(limit->used, PATH_SIZE, "%s", used);
    snprintf(limit->stat, PATH_SIZE, "%s", stat);
    for (int i = 0; i < KEYS; i++) {
        snprintf(limit->keys[i], PATH_SIZE, "%s", keys[i]);
    }
    snprintf(limit->kernel_used, PATH_SIZE, "%s", kernel_used);
    limit->swap_bytes = swap_bytes;
    snprintf(limit->swap_used, PATH_SIZE, "%s", swap_used);
    return true;
}

// Starts the thread, which prints `reason`. Returns 0, or an error number.
EXPORT int memory_guard_start(const char *reason) {
    snprintf(guard.reason, PATH_SIZE, "%s", reason);
    pthread_t thread;
    int error = pthread_create(&thread, NULL, watch, NULL);
    if (!error) {
        pthread_detach(thread);
    }
    return error;
}
