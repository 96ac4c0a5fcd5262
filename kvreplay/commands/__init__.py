"""The command line: a file a command or a close pair.

It imports `plan`, `probes`, `run`, `experiments` and `ranks`.
"""
