"""How operations are performed: the setting of a run, and the C engine, started and watched.

It imports `plan` and `tiers`.
"""
