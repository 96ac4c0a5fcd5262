"""Checkpoints of a training run, as traces: the other writer of the storage that a KV cache lies on."""
