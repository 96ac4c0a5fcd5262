"""The simulation in C, and the records that Python lays out for it."""
