"""The setting of a run, and the C engine that performs its operations.

It imports `plan` and `tiers`.
"""
