"""Where requests come from.

Files of real requests, each format with a `read` and `is_own`, and synthetic users.
"""
