"""Write the trace `turns.jsonl` of tests/golden/engines/lmcache.

Conversations that go on, so that much is reused.

    python tests/engines/make_turns.py OUT

Each of 160 requests goes on with one of the last 12 conversations, or begins one over one of three
system prompts, and adds one to ten blocks of 512 tokens, in the form of a Mooncake trace; the block
it ends in is rarely full.
"""

import json
import random
import sys
from pathlib import Path

REQUESTS, LAST, MOST_BLOCKS, BLOCK, LONGEST = 160, 12, 10, 512, 220


def turns(draw):
    """Yield the rows of the trace."""
    conversations, new, now = [], 100, 0
    for _ in range(REQUESTS):
        now += draw.randint(10, 3000)
        if conversations and draw.random() < 0.7:
            blocks = draw.choice(conversations[-LAST:])
        else:
            system = draw.choice([0, 1, 2])
            blocks = [system, 10 + system]
            conversations.append(blocks)
        more = draw.randint(1, MOST_BLOCKS)
        blocks.extend(range(new, new + more))
        new += more
        missing = draw.randint(0, BLOCK - 1)
        length = len(blocks) * BLOCK - missing
        yield {
            "timestamp": now,
            "input_length": length,
            "output_length": draw.randint(1, 50),
            "hash_ids": list(blocks),
        }
        if missing:
            blocks.pop()  # it will be another, with what comes next in it
        if len(blocks) > LONGEST:
            conversations.remove(blocks)


Path(sys.argv[1]).write_text("".join(json.dumps(row) + "\n" for row in turns(random.Random(3))))  # noqa: S311 - a fixed draw
