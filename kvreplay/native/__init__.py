"""The replay engine in C, and how Python sees its structures.

One shared library, loaded by ctypes.
"""
