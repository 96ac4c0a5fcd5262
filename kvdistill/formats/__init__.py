"""Foreign formats, read into our tables and, for iologs and op logs, written.

A family of formats a file.
"""
