"""Several replays that answer a question: trials, sweeps, scorecards, the MLPerf benchmark.

It imports `plan`, `tiers`, `result` and `run`.
"""
