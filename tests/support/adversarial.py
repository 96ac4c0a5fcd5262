"""Write a Mooncake trace that is hard on a cache.

More than it holds in turn, branches, sessions that grow, repeats.

    python tests/support/adversarial.py OUT [sessions|together]

For a DRAM of 64 blocks of 512 tokens: three rounds of six prompts of 16 blocks each, branches of
one root, sessions that take turns and grow, then any of these again, cut short or gone on with.
`sessions`, for a DRAM of 48 blocks: 2,000 short prompts, of sessions that grow and end, their
roots, earlier ones, and ones that nobody asks for again. `together`: 400 prompts, eight each second
at once, which are equal or begin alike.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

BLOCK = 512
DRAM_BLOCKS = 64
"""Of a trace's blocks; prompts are of at most a quarter of it, but for the sessions' last."""


def prompts(draw: random.Random) -> Iterator[list[int]]:
    """Yield the blocks of each prompt."""
    fresh = count(1)

    def new(blocks: int) -> list[int]:
        return [next(fresh) for _ in range(blocks)]

    thrash = [new(16) for _ in range(6)]
    yield from thrash * 3
    root = new(8)
    branches = [root + new(8) for _ in range(9)]
    yield from (draw.choice(branches) for _ in range(16))
    sessions = [new(4) for _ in range(4)]
    for turn in range(16):
        session = sessions[turn % 4]
        session += new(3)
        yield list(session)
    known = [*thrash, *branches, *map(list, sessions)]
    for _ in range(20):
        again = draw.choice(known)
        yield again[: draw.randint(2, len(again))] + new(draw.choice([0, 0, 1, 5]))


def sessions(draw: random.Random) -> Iterator[list[int]]:
    """Yield the blocks of each of 2,000 short prompts."""
    fresh = count(1)

    def new(blocks: int) -> list[int]:
        return [next(fresh) for _ in range(blocks)]

    roots, open_ones = [new(2) for _ in range(3)], [new(1) for _ in range(12)]
    ended: list[list[int]] = []
    for _ in range(2000):
        kind, at = draw.random(), draw.randrange(len(open_ones))
        if kind < 0.45:  # a session's next turn; after its eighth block another one begins
            if len(open_ones[at]) > 7:
                ended.append(open_ones[at])
                open_ones[at] = draw.choice(roots)
            open_ones[at] = open_ones[at] + new(1)
            yield open_ones[at]
        elif kind < 0.6:
            yield draw.choice(roots) + new(1)
        elif kind < 0.75 and ended:
            again = draw.choice(ended[-30:])
            yield again[: draw.randint(1, len(again))] + new(draw.choice([0, 0, 1]))
        else:
            yield new(draw.choice([1, 1, 2, 3]))


def together(draw: random.Random) -> Iterator[list[int]]:
    """Yield the blocks of fifty groups of eight prompts."""
    fresh = count(1)

    def new(blocks: int) -> list[int]:
        return [next(fresh) for _ in range(blocks)]

    heads = [new(draw.randint(1, 6)) for _ in range(6)]
    for _ in range(50):
        prompt = draw.choice(heads) + new(draw.randint(0, 16))
        is_equal, copies = draw.random() < 0.5, draw.choice([2, 4, 8])
        for n in range(8):
            yield (
                prompt + new(0 if is_equal else draw.randint(0, 6))
                if n < copies
                else draw.choice(heads) + new(3)
            )
        heads[draw.randrange(6)] = prompt[:8]


def write(path: Path, made_by: Callable[[random.Random], Iterator[list[int]]] = prompts) -> int:
    """Write the trace to `path`; return how many requests it has."""
    at_once = 8 if made_by is together else 1
    draw = random.Random(11)  # noqa: S311 - a fixed draw
    lines = []
    for number, blocks in enumerate(made_by(draw)):
        tokens = len(blocks) * BLOCK - draw.choice([0, 0, 1, 200])
        row = {
            "timestamp": 1000 * (number // at_once),
            "input_length": tokens,
            "output_length": 1,
            "hash_ids": blocks,
        }
        lines.append(json.dumps(row) + "\n")
    path.write_text("".join(lines), encoding="utf-8")
    return len(lines)


if __name__ == "__main__":
    write(
        Path(sys.argv[1]), {"sessions": sessions, "together": together}.get(sys.argv[-1], prompts)
    )
