"""Drivers of real engines, in an engine's own interpreter.

They import it, the standard library, and each other.
"""
