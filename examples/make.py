"""Make conversation.jsonl.

Requests as Mooncake's traces hold them, drawn by us, so that every command can be tried.

600 conversations over an hour, most of 1 to 8 turns; every prompt begins with one of three system
prompts and holds its whole history. A turn comes when its user has read the answer before. Blocks
of 512 tokens; lengths are lognormal.

    python examples/make.py > examples/conversation.jsonl
"""

from __future__ import annotations

import json
import random
import sys

BLOCK = 512
SESSIONS = 600
SPAN_S = 3600
SYSTEM_PROMPTS = (3 * BLOCK, 2 * BLOCK, 6 * BLOCK)


def main() -> None:
    """Write the rows to standard output, in order of time."""
    draw = random.Random(20260601)
    names: dict[tuple[int, ...], int] = {}
    rows = []
    for session in range(SESSIONS):
        at_s = draw.uniform(0, SPAN_S)
        prompt = draw.choices(range(len(SYSTEM_PROMPTS)), (6, 3, 1))[0]
        tokens = SYSTEM_PROMPTS[prompt]
        # The chain of a block: the system prompt's are shared, all else is the conversation's own.
        turns = min(8, int(draw.expovariate(0.35)) + 1)
        for _turn in range(turns):
            tokens += min(20_000, int(draw.lognormvariate(6.6, 1.1)))
            output = max(16, min(2_000, int(draw.lognormvariate(5.3, 0.8))))
            chain: list[tuple[int, ...]] = [
                (
                    (prompt, block)
                    if (block + 1) * BLOCK <= SYSTEM_PROMPTS[prompt]
                    else (prompt, block, session)
                )
                for block in range(tokens // BLOCK)
            ]
            if tokens % BLOCK:
                chain.append(
                    (prompt, tokens // BLOCK, session, tokens)
                )  # not full: the next turn's is another
            rows.append((round(at_s * 1000), tokens, output, chain))
            tokens += output
            at_s += output * 0.02 + draw.lognormvariate(4.5, 1.3)
    for at_ms, tokens, output, chain in sorted(rows, key=lambda row: row[0]):
        ids = [names.setdefault(key, len(names)) for key in chain]
        row = {"timestamp": at_ms, "input_length": tokens, "output_length": output, "hash_ids": ids}
        sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
