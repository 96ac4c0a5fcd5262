"""The space of a replay, written before anything is measured."""
