"""The nodes of a fleet, as records: what each is doing, whose tiers are at hand, and who has a copy of what.

An object has one slot, which the tiers that all nodes share list. What a node or a rack has of it is a copy: a slot of
its own, listed by the tiers of that place. While a node acts, World.tiers are its tiers, and the slot of each object
that it looks at says in which of them that object is live. So one node alone is a fleet whose tiers are all shared.
"""

from __future__ import annotations

import numpy as np

from kvtrace.core.structures import Structure, number, table
from kvtrace.sim.events import BATCH, int64s

NODE = int64s(
    "is_up outstanding waiting prefilling_tokens active_tokens prefill_busy_ns requests input_tokens computed_tokens "
    "computing_ns lookups local_hits shared_hits link_busy_ns sent_bytes turns"
)
"""A node: requests that were sent to it and have not ended, how many of them are not computed yet, their tokens that
are yet to be, and those of their prompts; until when it computes; what it has done so far; until when it sends; and how
many requests it was sent, as routers compare that: one that joins begins with as many as the least of the others."""

COPY = np.dtype([(name, "i4") for name in ("node_copy", "rack_copy", "first", "newer", "older")])
"""Of an object's slot: its copies in the node that acts and in its rack, and the first of all its copies; of a copy:
its neighbours in the list of all copies of its object. NONE where there is none."""


class Fleet(Structure):
    """The nodes, and what each has. With one node, most of it is empty."""

    count = number()
    rack_nodes = number()
    """How many nodes make a rack."""
    scoped = number()
    """A bit for each tier of which every node, or rack, has one of its own; 0 with one node."""
    racked = number()
    """A bit for each tier of which every rack has one."""
    own = number()
    """A bit for each tier that is a node's own, however many nodes there are."""
    entrances = number()
    """How many nodes, the first ones, requests are sent to; where these are not all, the others decode."""
    link_bytes_per_us = number()
    """At which a node sends to another; 0 takes no time."""
    router = number()
    """The address of its operation; and what it counts, in millionths."""
    prefill_ppm = number()
    prefix_ppm = number()
    load_ppm = number()
    load_threshold = number()
    nodes = table(NODE)
    batches = table(BATCH)
    """[nodes]"""
    winners = table("i4")
    """A tournament of the batches: of two, the one in which somebody is due first; [1] is the first of all."""
    tiers = table("i8")
    """[nodes + racks, tiers]: records of the tiers of the places that are not at hand, as words."""
    queues = table("i8")
    """The same of their lists."""
    tiers_here = table("i8")
    """World.tiers, as words."""
    queues_here = table("i8")
    copies = table(COPY)
    """[slots]"""
    places = table("i4")
    """Copies by the number of their object and their place, as `sim/tiers/copies.py` finds them."""
    due = table("i8")
    """[nodes + racks]: when a tier of that place next does something by itself, of those that are not at hand; empty if
    none ever does."""
    counted = table("i8")
    """Keys of World.frequencies where places count for themselves (`sim/tiers/admission.py`): a hash table; 0: free."""
    runs = table("i8")
    """Scratch of a router: [nodes] how many first objects of a prompt each has, and [nodes] of how many bytes."""
    row_nodes = table("i4")
    """[rows]: the node that does what a row says."""
