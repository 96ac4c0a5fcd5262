"""Where operations go: one kind of tier a file. Imports plan."""
