"""How many bytes a token takes: the arithmetic of a model's KV cache."""
