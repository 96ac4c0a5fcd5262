"""Where the time of an I/O goes: kernel probes on BCC, by tracepoints only.

The C programs lie beside their Python: `filter.bpf.c` (whose I/O), `common.bpf.c` (counting), `block.bpf.c`
(requests), `app.bpf.c` (calls). Field offsets come from the running kernel's BTF, never from header files.
"""
