"""A stand-in for LMCache.

The interface that our driver uses, over the simplest cache on disk that it can have.
"""

__version__ = "0.0-standin"
