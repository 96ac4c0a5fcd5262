/* The probes' programs. `make bpf` compiles them into probes.bpf.o, which users load without a compiler.
 *
 * This file and those that it includes are under the Apache License 2.0 or the GPL 2.0, as you like: the kernel's
 * functions for reading its memory are for programs under the GPL alone.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#include "kernel.bpf.h"
#include "common.bpf.h"
#include "filter.bpf.h"
#include "block.bpf.h"
#include "app.bpf.h"

char LICENSE[] SEC("license") = "GPL";
/* Of the files above, so that a test can tell an old object. */
char SOURCES[] SEC("kvreplay.sources") = SOURCES_SHA256;
