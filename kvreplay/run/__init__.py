"""One run: a replay, a real engine, recovery, a look at the machine.

The library's functions are here. Imports plan, tiers, engine, probes and result.
"""
