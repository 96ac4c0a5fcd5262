"""The data: what writes carry and reads must find, and the memory it passes through."""
