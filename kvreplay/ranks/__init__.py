"""One replay on any number of hosts.

Each rank of an MPI job replays its part of the trace, started together. Imports run, result and
plan.
"""
