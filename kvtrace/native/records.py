"""What the simulation knows, as Python lays it out and reads it.

The records and constants of world.h and validate.h.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvtrace.core.native import library
from kvtrace.core.native.structs import Structure, header

_FOLDER = Path(__file__).parent
WORLD = header(
    Path(library.__file__).parent / "core.h", _FOLDER / "world.h", _FOLDER / "validate.h"
)
UNBOUNDED = 2**62
NONE, NOT_IDLE = -1, -2

FLUSH, MORE_SLOTS, MORE_COPIES, MORE_ACTORS, LONGER_CHAIN, MORE_SECONDS = range(6)
"""What the simulation asks for."""
USERS, CONVERSATIONS, CHAINS = range(3)
"""Knobs.source."""
LISTS = 4
"""Lists in which a tier may keep its slots."""
LOST, JOINED, EMPTIED, GONE, BACK = range(5)
"""FleetEvent.kind: of a node, of a node's or a rack's tier, or of the store."""

TIER, RECENCY_LIST, SLOT, LINK, NOTE = map(
    WORLD.dtype, ("Tier", "RecencyList", "Slot", "Link", "Note")
)
QUEUED_STORE, MEMBER, PIN, GPU_HOLD = map(WORLD.dtype, ("QueuedStore", "Member", "Pin", "GpuHold"))
ACTOR, CONVERSATION, CONTEXT, ITEM = map(WORLD.dtype, ("Actor", "Conversation", "Context", "Item"))
PIECE, GROUP, ATTENTION = map(WORLD.dtype, ("Piece", "Group", "Attention"))
LOOKUP_OUTCOME, FLEET_EVENT = map(WORLD.dtype, ("LookupOutcome", "FleetEvent"))
EVENT, BATCH, LOGGED_REQUEST = map(WORLD.dtype, ("Event", "Batch", "LoggedRequest"))
FIRST_TOKEN, ENDED_REQUEST = map(WORLD.dtype, ("FirstToken", "EndedRequest"))
FOLLOWER, PREDECESSORS, USER, NODE, COPIES = map(
    WORLD.dtype, ("Follower", "Predecessors", "User", "Node", "Copies")
)
SLOT_POOL, GPU_USE = map(WORLD.dtype, ("SlotPool", "GpuUse"))


class World(Structure):
    """All state of a simulation."""

    def __init__(self, **tables: Any) -> None:
        """Make one of zeros, with these tables."""
        super().__init__(WORLD, "World", **tables)
