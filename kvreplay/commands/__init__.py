"""The command line: a file for a command or a close pair. Imports run, what is above it, and plan."""
