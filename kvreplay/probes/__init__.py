"""Where the time of an I/O goes: kernel probes, by tracepoints only.

The C programs are `probes.bpf.c` and what it includes: `filter.bpf.h` (whose I/O), `common.bpf.h` (counting),
`block.bpf.h` (requests), `app.bpf.h` (calls). `make bpf` compiles them into `probes.bpf.o`, which the system's libbpf
fits to the running kernel by its BTF (CO-RE): users need no compiler and no header files.
"""
