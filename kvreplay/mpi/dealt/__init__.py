"""The trace dealt to ranks: which row goes to whom, and each part as a trace file."""
