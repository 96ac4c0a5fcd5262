"""A run watched while it goes on: what is counted, drawn, and served."""
