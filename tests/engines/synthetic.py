"""A Mooncake trace of our own making, for where the published one is not.

Conversations that grow, blocks of 512.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

BLOCK_TOKENS = 512
CONVERSATIONS = 12


def write(path: Path, requests: int) -> Path:
    """Write so many requests to `path`.

    Each goes on with one of a few conversations, which share their first block.
    """
    draw, fresh = random.Random(1), iter(range(1, 10**9))  # noqa: S311 - what is drawn need not be secret
    histories = [[0] for _ in range(CONVERSATIONS)]
    lines = []
    for number in range(requests):
        history = draw.choice(histories)
        history += [next(fresh) for _ in range(draw.randint(1, 12))]
        tokens = (len(history) - 1) * BLOCK_TOKENS + draw.randint(1, BLOCK_TOKENS)
        row = {
            "timestamp": 1000 * number,
            "input_length": tokens,
            "output_length": 100,
            "hash_ids": list(history),
        }
        lines.append(json.dumps(row) + "\n")
        if len(history) > 120:
            histories[histories.index(history)] = [0]
    path.write_text("".join(lines))
    return path
