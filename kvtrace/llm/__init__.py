"""The arithmetic of a model's KV cache: bytes a token, stored and read."""
