"""The C of the three programs as Python calls it, and the C that all of them use."""
