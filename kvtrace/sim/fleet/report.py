"""What a fleet did as a whole: hits in a node's own tiers and in shared ones, copies, how evenly work was spread."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvtrace.native.records import World
from kvtrace.sim.fleet.setting import FleetSetting, Scope
from kvtrace.sim.fleet.start import all_tiers

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
