"""The verbs: run, trials, sweep, discover."""
