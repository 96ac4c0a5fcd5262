"""What happens to a fleet, said again in plain Python for the oracle.

Losses, who begins again, what is in reach.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

from evictions import POLICIES

from kvtrace.sim import fleet as product
from kvtrace.sim.presets.tier import Scope, ns_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oracle import Oracle, Row, Tier

    from kvtrace.sim.fleet import Incident


class Outages:
    def __init__(self, oracle: Oracle, incidents: Sequence[Incident]) -> None:  # noqa: C901, PLR0912 - a branch a kind
        self.oracle = oracle
        self.due: list[tuple[int, bool, int, Callable[[], None]]] = []
        """When, whether that is a loss, which it is, and what is done."""
        self.joins: list[tuple[int, int]] = []
        first: dict[int, tuple[int, bool]] = {}
        """Of each node its first step.

        When, and whether it is lost then; of two at a time, a join is first.
        """
        fleet = oracle.preset.fleet
        for incident in sorted(incidents, key=lambda of: (of.at_ns, "joined" not in of.kind)):
            at, name, place = incident.at_ns, incident.kind.partition(":")[0], incident.place
            rack = [node for node in range(fleet.nodes) if node // fleet.rack_nodes == place]
            nodes = rack if name.startswith("rack") else [place]
            if name == "rack-lost":
                tiers = [t for t in oracle.nodes[rack[0]].tiers if t.setting.scope is Scope.RACK]
                for tier in tiers:
                    self.add(at, True, lambda tier=tier, node=rack[0]: self.empty(tier, node))
            if name.endswith("lost"):
                for node in nodes:
                    first[node] = min((at, True), first.get(node, (at, True)))
                    self.add(at, True, lambda node=node: self.lose(node))
            elif name.endswith("joined"):
                for node in nodes:
                    first[node] = min((at, False), first.get(node, (at, False)))
                    self.join_at(at, node)
            elif name == "engine-restart":
                first[place] = min((at, True), first.get(place, (at, True)))
                self.add(at, True, lambda place=place: self.lose(place, keeps_drives=True))
                self.join_at(at + incident.lasts_ns, place)
            elif name == "drive-replaced":
                number = [t.name for t in oracle.preset.tiers].index(incident.tier)
                tier = oracle.nodes[place].tiers[number]
                self.add(at, True, lambda tier=tier, node=place: self.empty(tier, node))
            elif name == "store-unreachable":
                self.add(at, True, lambda: self.reach(oracle.nodes[0].tiers[-1], is_gone=True))
                self.add(
                    at + incident.lasts_ns,
                    False,
                    lambda: self.reach(oracle.nodes[0].tiers[-1], is_gone=False),
                )
            else:
                for node in range(fleet.nodes):
                    at = incident.at_ns + node // incident.nodes * incident.lasts_ns
                    first[node] = min((at, True), first.get(node, (at, True)))
                    self.add(at, True, lambda node=node: self.lose(node))
                    self.join_at(at + incident.lasts_ns, node)
        for node, (_, is_lost) in first.items():
            oracle.nodes[node].is_up = is_lost
        self.due.sort(key=lambda of: of[:3])

    def add(self, at: int, is_loss: bool, what: Callable[[], None]) -> None:
        self.due.append((at, is_loss, len(self.due), what))

    def join_at(self, at: int, node: int) -> None:
        self.joins.append((at, node))
        self.add(at, False, lambda: self.join(node))

    def next_join(self) -> int:
        """Return when the next node joins that may be sent requests."""
        entrances = self.oracle.preset.fleet.prefill_nodes or len(self.oracle.nodes)
        return min(at for at, node in self.joins if at > self.oracle.now and node < entrances)

    def join(self, number: int) -> None:
        nodes = self.oracle.nodes
        if not nodes[number].is_up:
            least = min((node.turns for node in nodes if node.is_up), default=0)
            nodes[number].turns = max(nodes[number].turns, least)
            nodes[number].is_up = True

    def empty(self, tier: Tier, node: int) -> None:
        oracle = self.oracle
        oracle.enter(node)
        if tier.queue is not None and tier.setting.bucket_objects:
            for bucket in list(tier.queue.buckets):
                tier.queue.emit_both("delete", "lose", bucket)
            tier.queue.buckets.clear()
            tier.queue.home.clear()
        else:
            for key in tier.objects:
                oracle.emit("delete", tier, "lose", key)
        tier.objects.clear()
        tier.expires.clear()
        tier.policy = POLICIES[tier.setting.policy](tier.limit)
        if tier.number == 0 and oracle.nodes[node].is_bounded:
            tier.policy.runs = oracle.nodes[node].runs
            oracle.nodes[node].used = {n: [] for n in oracle.nodes[node].used}

    def lose(self, number: int, *, keeps_drives: bool = False) -> None:
        """Lose a node.

        What is its own is empty, perhaps but for drives, and what it was doing begins again.
        """
        oracle, node = self.oracle, self.oracle.nodes[number]
        if not node.is_up:
            return
        for tier in node.tiers:
            if tier.setting.scope is Scope.NODE:
                if product.is_memory(tier.setting.name) or not keeps_drives:
                    self.empty(tier, number)
                tier.counts, tier.referred = {}, 0
                if tier.queue is not None:
                    tier.queue.still_there(len(tier.queue.waiting))
                    tier.queue.beat = None
                    tier.queue.busy = oracle.now
        node.is_up = False
        node.prompts, node.waiting, node.computing_until = {}, {}, 0
        node.batch.reads.clear()
        mine = [of for of in oracle.due if oracle.node_of(of[1]) == number]
        oracle.due = [of for of in oracle.due if oracle.node_of(of[1]) != number]
        heapq.heapify(oracle.due)
        asleep = [(0, *oracle.asleep.pop(n)) for n in node.queued if n in oracle.asleep]
        node.queued.clear()
        node.held.clear()
        node.answers.clear()
        node.used.clear()
        node.is_full = False
        for _, place, _ in mine + node.decoding + asleep:
            n = oracle.numbers[place]
            del oracle.sent[n]
            heapq.heappush(oracle.due, (oracle.now, place, oracle.again(place, n)))
        node.decoding.clear()

    def reach(self, store: Tier, *, is_gone: bool) -> None:
        store.is_gone = is_gone
        if store.queue is not None and not is_gone:
            now, every = self.oracle.now, ns_of(store.setting.heartbeat)
            store.queue.busy = max(store.queue.busy, now)
            while store.queue.beat is not None and store.queue.beat < now:
                store.queue.beat += every


def settled(rows: Sequence[Row], nodes: Sequence[int]) -> list[Any]:
    """Return rows with their nodes, those that are lost at one time in the order of their names."""
    found: list[Any] = []
    lost: list[Any] = []
    for row, node in [*zip(rows, nodes, strict=True), (None, None)]:
        if lost and (row is None or row[3] != "lose" or row[0] != lost[0][1][0]):
            found += sorted(lost)
            lost = []
        if row is not None:
            (lost if row[3] == "lose" else found).append((node, row))
    return found
