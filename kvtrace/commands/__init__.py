"""The commands of kvtrace: each file parses, calls the library and prints."""
