"""One replay on any number of hosts: each rank of an MPI job replays its part of the trace.

It imports `plan`, `result` and `run`.
"""
