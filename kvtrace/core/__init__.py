"""What all three programs share: the schemas, trace files, units, errors and command-line plumbing."""
