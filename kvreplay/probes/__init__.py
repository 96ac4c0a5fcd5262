"""Where the time of an I/O goes: kernel probes, by tracepoints only.

The C programs are `probes.bpf.c` and what it includes: `filter.bpf.h` (whose I/O), `common.bpf.h`
(counting), `block.bpf.h` (requests), `app.bpf.h` (calls). `make bpf` compiles them into
`probes.bpf.o`, which the system's libbpf fits to the running kernel by its BTF (CO-RE): users need
no compiler and no header files. `kernel.bpf.h` is what they are written in there; `bcc.bpf.h` is
the same for BCC, which compiles them where a kernel has no BTF.

This folder imports `tiers`.
"""

from enum import StrEnum


class Backend(StrEnum):
    """How the probes are fitted to the kernel."""

    AUTO = "auto"
    """core, or bcc where the kernel has no BTF."""
    CORE = "core"
    """As they were compiled when kvtrace was made, by libbpf and the kernel's BTF."""
    BCC = "bcc"
    """Compiled now, by BCC and the kernel's headers."""
