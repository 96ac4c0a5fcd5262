"""A fleet: its nodes, the tiers of each and tables of copies before the start; what it counted at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvtrace.core.native.library import I8, StructAt, function
from kvtrace.native.records import (
    BATCH,
    COPY,
    COPY_COLUMNS,
    EMPTIED,
    FOUND,
    HAPPENING,
    LOST,
    NODE,
    NONE,
    SEEN,
    UNBOUNDED,
    World,
)
from kvtrace.sim.incidents import Move, absent
from kvtrace.sim.presets.tier import FleetSetting, Scope

MILLION = 1_000_000
_count_again = function("count_again", I8, int, SEEN, I8, int, SEEN)
_enter_all = function("enter_all", StructAt)
ROOM = 1 << 10
"""Of counts of objects, to start with."""


def set_fleet(world: World, setting: FleetSetting, scopes: Sequence[Scope], rows: int) -> None:
    """Set up the nodes of `setting`, each with its own tiers as `scopes` says; `rows` is the size of the buffers."""
    fleet, knobs, count = world.fleet, world.knobs, setting.nodes
    fleet.count, fleet.entrances = count, setting.prefill_nodes if setting.is_disaggregated else count
    fleet.link_bytes_per_us = setting.link_bytes_per_s // 10**6
    fleet.rack_nodes = setting.rack_nodes
    fleet.nodes, fleet.batches = np.zeros(count, NODE), np.zeros(count, BATCH)
    fleet.nodes["is_up"] = 1
    fleet.own = sum(1 << t for t, scope in enumerate(scopes) if scope is Scope.NODE)
    world.control["open"], world.control["happen_ns"] = fleet.entrances, UNBOUNDED
    world.control["due_ns"] = UNBOUNDED
    fleet.batches["first"], fleet.batches["due_ns"] = NONE, UNBOUNDED
    if count == 1:
        return
    fleet.scoped = sum(1 << t for t, scope in enumerate(scopes) if scope is not Scope.FLEET)
    fleet.racked = sum(1 << t for t, scope in enumerate(scopes) if scope is Scope.RACK)
    fleet.router = setting.router.address()
    weights = (setting.prefill_weight, setting.prefix_weight, setting.load_weight)
    fleet.prefill_ppm, fleet.prefix_ppm, fleet.load_ppm = (round(MILLION * weight) for weight in weights)
    fleet.load_threshold = setting.load_threshold
    # A tournament of batches in which nobody waits: the first node wins.
    leaves = 1 << (count - 1).bit_length()
    fleet.winners = np.full(2 * leaves, NONE, np.int32)
    fleet.winners[leaves : leaves + count] = np.arange(count)
    for i in range(leaves - 1, 0, -1):
        fleet.winners[i] = fleet.winners[2 * i]
    fleet.runs = np.zeros(2 * count, np.int64)
    fleet.row_nodes = np.empty(rows, np.int32)
    if fleet.scoped:
        fleet.copies = np.empty(len(world.slots), COPY)
        forget_copies(fleet.copies)
        if knobs.expires or knobs.polls or knobs.queued:
            fleet.due = np.full(count + setting.instances(Scope.RACK), UNBOUNDED)
        if knobs.filtered & fleet.scoped:
            fleet.counted, world.frequencies = np.zeros(ROOM, np.int64), np.zeros(ROOM, SEEN)


def schedule_incidents(world: World, steps: Sequence[Move], rows: int) -> None:
    """Schedule `steps`; nodes that join before they are lost are absent at the start."""
    if not steps:
        return
    fleet, control = world.fleet, world.control
    world.happenings = np.array([(s.at_ns, s.kind, s.place, s.tier) for s in steps], HAPPENING)
    world.found = np.empty(rows, FOUND)
    control["happen_ns"] = steps[0].at_ns
    fleet.nodes["is_up"][absent(steps)] = 0
    control["open"] = fleet.nodes["is_up"][: fleet.entrances].sum()
    control["populating"] = np.argmax(fleet.nodes["is_up"])
    if not fleet.nodes["is_up"].any():
        # Nobody is there to have anything yet.
        control["populated"] = len(world.items)
    # What may be lost is listed, though its tier gives nothing up by itself.
    lost = sum({1 << s.tier for s in steps if s.kind == EMPTIED})
    if any(s.kind == LOST for s in steps):
        lost |= fleet.own
    world.knobs.endless &= ~lost


def copy_tiers_to_places(world: World) -> None:
    """Copy the first node's tiers and queues, still empty, to every node and rack."""
    fleet = world.fleet
    if fleet.count > 1:
        racks = -(-fleet.count // fleet.rack_nodes)
        fleet.tiers = np.tile(world.tiers, fleet.count + racks)
        # Each place has a queue of its own.
        last = fleet.tiers[len(world.tiers) - 1 :: len(world.tiers)]
        last["queue_first"] = np.concatenate([np.arange(fleet.count), np.arange(racks)]) * last["queue_limit"]
        fleet.queues = np.tile(world.queues, fleet.count + racks)


def forget_copies(copies: Any) -> None:
    """Mark slots as having no copies at nodes or racks."""
    copies.view([("all", "i4", (5,))])["all"] = NONE


def grow_counts(world: World, count: int) -> None:
    """Grow the table of counts by place to at least `count` entries."""
    counted, frequencies = world.fleet.counted, world.frequencies
    size = 1 << (count - 1).bit_length()
    world.fleet.counted, world.frequencies = np.zeros(size, np.int64), np.zeros(size, SEEN)
    _count_again(world.fleet.counted, size, world.frequencies, counted, len(counted), frequencies)


def grow_places(world: World) -> None:
    """Double the hash table that finds copies by place."""
    world.fleet.places = np.full(max(COPY_COLUMNS, 2 * len(world.fleet.places)), NONE, np.int32)
    _enter_all(world)


def all_tiers(world: World) -> tuple[Any, Any]:
    """Return the tiers of all places, records.TIER, by place and tier, nodes first; and for each if it is one."""
    fleet, tiers = world.fleet, world.tiers
    if fleet.count <= 1 or not len(fleet.tiers):
        return tiers.reshape(1, -1), np.ones((1, len(tiers)), bool)
    found = fleet.tiers.reshape(-1, len(tiers)).copy()
    node = int(world.control["node"])
    is_one = np.zeros(found.shape, bool)
    for t in range(len(tiers)):
        place = fleet.count + node // fleet.rack_nodes if fleet.racked & 1 << t else node
        if fleet.scoped & 1 << t:
            is_one[slice(fleet.count, None) if fleet.racked & 1 << t else slice(fleet.count), t] = True
            found[place, t] = tiers[t]
        else:
            is_one[0, t] = True
            found[0, t] = tiers[t]
    return found, is_one


COUNTED = (
    *("used", "hits", "hit_bytes", "written_bytes", "deleted_bytes", "read_bytes", "populated_bytes", "looked_up"),
    *("refused", "refused_bytes", "dropped", "dropped_bytes", "lost", "lost_bytes", "waiting", "collected_bytes"),
)
"""Fields of records.TIER that add up."""
BY_NODE = ("requests", "input_tokens", "computed_tokens", "computing_ns", "lookups", "local_hits", "shared_hits")


def summed(world: World) -> Any:
    """Return records.TIER of each tier, with what is counted of all its instances together."""
    if world.fleet.count <= 1:
        return world.tiers
    found, is_one = all_tiers(world)
    total = world.tiers.copy()
    for name in COUNTED:
        total[name] = np.where(is_one, found[name], 0).sum(axis=0)
    return total


def stats(setting: FleetSetting, world: World) -> dict[str, Any]:
    """Return the counters of the fleet as the metadata carries them; nothing of one node alone."""
    if world.fleet.count <= 1:
        return {}
    nodes = world.fleet.nodes
    total = {name: int(nodes[name].sum()) for name in BY_NODE}
    lookups = total["lookups"]
    return {
        "fleet": {
            "nodes": setting.nodes,
            "router": str(setting.router),
            "local_hits": total["local_hits"],
            "shared_hits": total["shared_hits"],
            "local_hit_ratio": total["local_hits"] / lookups if lookups else None,
            "shared_hit_ratio": total["shared_hits"] / lookups if lookups else None,
            "hit_ratio": (total["local_hits"] + total["shared_hits"]) / lookups if lookups else None,
            "computed_tokens": total["computed_tokens"],
            "duplicate_bytes": _duplicates(world),
            **({"link_bytes": int(nodes["sent_bytes"].sum())} if setting.is_disaggregated else {}),
            "imbalance": {name: _imbalance(nodes[name]) for name in ("requests", "computing_ns")},
            "by_node": {name: nodes[name].tolist() for name in BY_NODE},
        }
    }


def share(setting: FleetSetting, scope: Scope) -> dict[str, Any]:
    """Return who shares a tier of `scope`, and how many of it there are; nothing of one node alone."""
    return {} if setting.nodes == 1 else {"scope": str(scope), "instances": setting.instances(scope)}


def _imbalance(values: Any) -> float | None:
    """Return the largest of `values` over their mean; 1 is even, null if all are 0."""
    mean = float(values.mean())
    return float(values.max()) / mean if mean else None


def _duplicates(world: World) -> int:
    """Return the bytes that nodes hold beside the first copy of each object, of what may still be asked for or read."""
    slots = world.slots
    copies = slots[(slots["place"] > 0) & (slots["place"] <= world.fleet.count) & (slots["live"] != 0)]
    homes, counts = np.unique(copies["home"], return_counts=True)
    return int((slots["size"][homes] * (counts - 1)).sum())
