"""Several runs of one kind: trials, sweeps, scorecards, MLPerf's options. Imports run and below."""
