"""The trace as rows for the engine.

Read once to know what it needs, then again as the run goes on.
"""
