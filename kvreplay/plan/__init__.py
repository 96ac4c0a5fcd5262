"""A trace as arrays that the engine goes through."""
