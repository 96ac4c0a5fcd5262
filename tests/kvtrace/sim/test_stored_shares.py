"""Tiers that store objects compressed or quantised: bytes by hand, and the same as twice the room."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from simulated import gen
from whole import read_table

from kvtrace.core.errors import ConfigError
from kvtrace.core.schema import OBJECTS, TRACE

MIB = 1 << 20
CHUNK = 6 * MIB
"""256 tokens of tiny-1b: 24,576 B a token."""


def prompts(path: Path, *chains: list[int]) -> Path:
    """Write a request a second of these blocks of 256 tokens."""
    lines = [
        {"timestamp": 1000 * n, "input_length": 256 * len(ids), "output_length": 1, "hash_ids": ids}
        for n, ids in enumerate(chains)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def moved(trace: Path) -> Counter[tuple[str, int, int]]:
    """Count the rows of a trace by operation, tier and length."""
    names = ("op", "tier", "length_bytes")
    columns = [read_table(trace, TRACE).column(name).to_pylist() for name in names]
    return Counter(zip(*columns, strict=True))
