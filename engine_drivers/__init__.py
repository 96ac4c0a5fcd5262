"""Drivers of real engines, in an engine's own interpreter: they import it, the standard library, and each other."""
