"""A stand-in for LMCache: the interface that our driver uses, over the simplest cache on disk that it can have."""

__version__ = "0.0-standin"
