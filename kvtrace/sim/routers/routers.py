"""The routers by name. To add one: a line in `Router`, and a file of its name beside this one, `_` for `-`.

The file has one operation, compiled when a fleet first needs it:

    @operation
    def choose(world, actor, n, _): ...  # return the node that serves the request of `actor`

The `n` objects of the request are in world.chain as far as they are known; `candidates.py` has what routers share: the
nodes that they may choose, and how much of the prompt each of them has.
"""

from __future__ import annotations

import importlib
from enum import StrEnum


class Router(StrEnum):
    """Which node serves a request."""

    RANDOM = "random"
    """Any, with the same chance."""
    ROUND_ROBIN = "round-robin"
    """One after the other."""
    LEAST_OUTSTANDING = "least-outstanding"
    """The one with the fewest requests that have not ended; of several, the one that has served the fewest."""
    SESSION = "session"
    """Always the same for one conversation, whatever the load: the one whose hash with the conversation is largest, so
    that a node lost or joined moves only its own share. A request of no conversation is one by itself."""
    PREFIX = "prefix"
    """The one with the least work, as Dynamo's KV router counts it: tokens yet to be computed there, those of this
    prompt that it does not have included, times `fleet.prefill_weight`, and those of the prompts that it serves."""
    PREFIX_SCORE = "prefix-score"
    """The one with the highest score, as llm-d's scheduler adds it up: the share of the prompt that it has, times
    `fleet.prefix_weight`, and how few requests wait there, times `fleet.load_weight`."""

    def address(self) -> int:
        """Return where its compiled operation is."""
        file = importlib.import_module(f"{__package__}.{self.value.replace('-', '_')}")
        return int(file.choose.address)
