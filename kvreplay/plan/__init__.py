"""The trace compiled to arrays, which the engine replays."""
