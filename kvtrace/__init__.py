"""kvtrace: the KV-cache workload model, the tier simulation, and the trace contract."""

__version__ = "0.1.0"
