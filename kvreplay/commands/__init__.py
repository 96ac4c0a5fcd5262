"""The command line: a file a command or a close pair."""
