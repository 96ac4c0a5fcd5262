"""What kvreplay does: a run, trials, a sweep, recovery, a look at the machine."""
