"""The routers by name.

To add one: a line in `Router`, a file of its name (`_` for `-`) in `kvtrace/native/routers/`.

Its rule in plain Python goes into `tests/support/fleets.py`, with which every router is compared
row by row.

The file has one operation, which begins with the router's name:

    EXPORT int64_t prefix_choose(World *world, int64_t actor_id, int64_t n);    // the node

The `n` objects of the request are in World.chain as far as they are known; `fleet.c` has what
routers share: the nodes that they may choose, and how much of the prompt each of them has.
"""

from __future__ import annotations

from enum import StrEnum


class Router(StrEnum):
    """Which node serves a request."""

    RANDOM = "random"
    """Any, with the same chance."""
    ROUND_ROBIN = "round-robin"
    """One after the other."""
    LEAST_OUTSTANDING = "least-outstanding"
    """The one with the fewest requests that have not ended.

    Of several, the one that has served the fewest.
    """
    SESSION = "session"
    """Always the same for one conversation, whatever the load.

    The one whose hash with the conversation is largest, so that a node lost or joined moves only
    its own share. A request of no conversation is one by itself.
    """
    PREFIX = "prefix"
    """The one with the least work, as Dynamo's KV router counts it.

    Tokens yet to be computed there, those of this prompt that it does not have included, times
    `fleet.prefill_weight`, and those of the prompts that it serves.
    """
    PREFIX_SCORE = "prefix-score"
    """The one with the highest score, as llm-d's scheduler adds it up.

    The share of the prompt that it has, times `fleet.prefix_weight`, and how few requests wait
    there, times `fleet.load_weight`.
    """

    def address(self) -> int:
        """Return where its operation is."""
        from kvtrace.core.native.library import address_of

        return address_of(f"{self.replace('-', '_')}_choose")
