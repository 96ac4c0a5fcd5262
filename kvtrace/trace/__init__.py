"""The trace: checked, counted, exchanged."""
