"""The results of a run: tables, figures, run.json, the verdict and its causes.

It imports `plan`, `tiers` and `engine`.
"""
