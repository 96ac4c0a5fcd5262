"""One replay from start to end, its recovery, a look at the machine, and runs of real engines.

It imports `plan`, `tiers`, `engine`, `probes` and `result`.
"""
