"""Kernel probes that measure where an I/O spends its time, by tracepoints only.

The C program is `probes.bpf.c`, which includes `filter.bpf.h` (the filter of processes and disks),
`common.bpf.h` (counting), `block.bpf.h` (block requests) and `app.bpf.h` (system calls). `make bpf`
compiles it to `probes.bpf.o`, which the system's libbpf adapts to the running kernel by its BTF
(CO-RE): users need no compiler and no header files. The same source compiles for kernels without
BTF by BCC: `kernel.bpf.h` and `bcc.bpf.h` define its macros for libbpf and for BCC.

This folder imports `tiers`.
"""

from enum import StrEnum


class Backend(StrEnum):
    """The way in which the probes are adapted to the kernel."""

    AUTO = "auto"
    """core, or bcc if the kernel has no BTF."""
    CORE = "core"
    """Compiled when kvtrace was built, adapted by libbpf and the kernel's BTF."""
    BCC = "bcc"
    """Compiled at run time, by BCC and the kernel's headers."""
