"""The targets of operations: one kind of tier a file, and which folders and devices may be used.

It imports `plan`.
"""
