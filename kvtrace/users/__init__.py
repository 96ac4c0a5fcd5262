"""Synthetic users, who ask at times and for lengths drawn from a seed."""
