"""What the simulation knows, as Python lays it out and reads it.

The records and constants of world.h.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvtrace.core.native import library
from kvtrace.core.native.structs import Structure, header

WORLD = header(Path(library.__file__).parent / "core.h", Path(__file__).parent / "world.h")
UNBOUNDED = 2**62
NONE = -1

FLUSH, MORE_SLOTS, MORE_ACTORS, LONGER_CHAIN, MORE_SECONDS = range(5)
"""What the simulation asks for."""
USERS, CONVERSATIONS, CHAINS = range(3)
"""Knobs.source."""
QUEUES = 4
LOST, JOINED, EMPTIED, GONE, BACK = range(5)
"""Happening.kind: to a node, to a node's or a rack's tier, or to the store."""

TIER, QUEUE, SLOT, LINK, NOTE = map(WORLD.dtype, ("Tier", "Queue", "Slot", "Link", "Note"))
OFFER, MEMBER, PIN = map(WORLD.dtype, ("Offer", "Member", "Pin"))
ACTOR, CONVERSATION, CONTEXT, ITEM = map(WORLD.dtype, ("Actor", "Conversation", "Context", "Item"))
PIECE, ATTENTION = map(WORLD.dtype, ("Piece", "Attention"))
FIRST_TOKEN, FOUND, HAPPENING = map(WORLD.dtype, ("FirstToken", "Found", "Happening"))
EVENT, BATCH, ASKED = map(WORLD.dtype, ("Event", "Batch", "Asked"))
FOLLOWER, WAITING, USER, NODE, COPY = map(
    WORLD.dtype, ("Follower", "Waiting", "User", "Node", "Copy")
)


class World(Structure):
    """All state of a simulation."""

    def __init__(self, **tables: Any) -> None:
        """Make one of zeros, with these tables."""
        super().__init__(WORLD, "World", **tables)
