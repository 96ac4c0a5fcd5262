"""The replay engine in C, and how Python sees its structures: one shared library, loaded by ctypes."""
