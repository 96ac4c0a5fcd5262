"""What is to be replayed: options, targets, and the trace as rows for the engine.

A trace is read once to know what it needs, then again as the run goes on. Imports no other folder
of kvreplay.
"""
