"""What a preset says of a fleet: how many nodes, and which of them serves a request."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from kvtrace.core.units import parse_bytes
from kvtrace.sim.routers import Router

MAX_NODES = 16_000
MAX_WEIGHT = 1000.0
MAX_THRESHOLD = 10**6


class Scope(StrEnum):
    """Who shares a tier."""

    NODE = "node"
    """Nobody: each node of a fleet has one of its own."""
    RACK = "rack"
    """The nodes of a rack (`fleet.rack_nodes`)."""
    FLEET = "fleet"
    """All nodes."""


class FleetSetting(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Nodes that serve side by side; with one node, nothing else here has a meaning."""

    nodes: int = 1
    """How many nodes there are; each has its own GPU, and its own of each tier of scope `node`."""
    router: Router = Router.ROUND_ROBIN
    """Which node serves a request."""
    rack_nodes: int = 8
    """How many nodes, in order, make a rack and share each tier of scope `rack`."""
    prefill_nodes: int = 0
    """How many nodes, the first ones, only compute prompts: the others only generate, each request on the one with the
    fewest. What that lacks of the prompt goes there over a tier `link`, and into its fastest tier. 0: all do both."""
    link_bandwidth: str | int | None = None
    """With prefill_nodes: bytes a second that a node sends, such as `50GB`; without it that takes no time."""
    prefill_weight: float = 1.0
    """With router prefix: what a token to compute counts beside one of a prompt that is served (Dynamo's
    prefill_load_scale)."""
    prefix_weight: float = 2.0
    """With router prefix-score: what the share of the prompt that a node has counts (llm-d's prefix-cache-scorer)."""
    load_weight: float = 1.0
    """With router prefix-score: what the load counts (llm-d's load-aware-scorer)."""
    load_threshold: int = 128
    """With router prefix-score: waiting requests from which on the load counts as full."""

    def instances(self, scope: Scope) -> int:
        """Return how many there are of a tier of that scope."""
        return {Scope.NODE: self.nodes, Scope.RACK: -(-self.nodes // self.rack_nodes), Scope.FLEET: 1}[scope]

    @property
    def is_disaggregated(self) -> bool:
        """Whether some nodes compute prompts and others generate."""
        return 0 < self.prefill_nodes < self.nodes

    @property
    def link_bytes_per_s(self) -> int:
        """`link_bandwidth` in bytes; 0 without."""
        return (parse_bytes(self.link_bandwidth) if isinstance(self.link_bandwidth, str) else self.link_bandwidth) or 0

    def instance_nodes(self, scope: Scope) -> int | msgspec.UnsetType:
        """Return how many nodes, in order, share a tier of `scope`; unset for all, and with one node."""
        if self.nodes == 1 or scope is Scope.FLEET:
            return msgspec.UNSET
        return 1 if scope is Scope.NODE else self.rack_nodes


FLEET_RANGES: Final[dict[str, tuple[float, float]]] = {
    "FleetSetting.nodes": (1, MAX_NODES),
    "FleetSetting.prefill_nodes": (0, MAX_NODES),
    "FleetSetting.rack_nodes": (1, MAX_NODES),
    "FleetSetting.prefill_weight": (0, MAX_WEIGHT),
    "FleetSetting.prefix_weight": (0, MAX_WEIGHT),
    "FleetSetting.load_weight": (0, MAX_WEIGHT),
    "FleetSetting.load_threshold": (1, MAX_THRESHOLD),
}
"""The smallest and largest value of each field that has one, by class and name."""
