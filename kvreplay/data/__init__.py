"""The data: what writes carry, and what reads must find."""
