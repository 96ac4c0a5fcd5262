"""A fleet said again in plain Python for the oracle.

What a node knows of its requests, and the routers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvtrace.sim.presets.preset import Entry
from kvtrace.sim.presets.tier import Scope
from kvtrace.sim.routers import Router

if TYPE_CHECKING:
    from answers import Answer
    from oracle import Batch, Oracle, Plan, Tier

MASK = 2**64 - 1


class Node:
    def __init__(self, number: int, tiers: list[Tier], batch: Batch) -> None:
        self.number, self.tiers, self.batch = number, tiers, batch
        self.decoding: list[tuple[int, int, Any]] = []
        self.uses: list[int] = []
        self.computing_until = self.computing = self.served = self.local_hits = self.shared_hits = 0
        self.is_up, self.turns = True, 0
        """`turns`: requests sent here, as routers compare them."""
        self.prompts: dict[int, int] = {}
        """Of each request that has not ended: the tokens of its prompt."""
        self.waiting: dict[int, int] = {}
        """Of each that is not computed yet: the tokens that are to be."""
        self.queued: list[int] = []
        """Those that are not looked up yet."""
        self.is_bounded = self.is_full = False
        """Whether requests share the memory of its GPU, and whether one waits for some."""
        self.answers: dict[int, Answer] = {}
        """Of each request that decodes: what its answer takes of the GPU's memory."""
        self.held: dict[int, int] = {}
        """Of that: what each that runs needs."""
        self.used: dict[int, list[int]] = {}
        """And which objects there each runs with."""

    def runs(self, key: int) -> bool:
        return any(key in keys for keys in self.used.values())

    def held_bytes(self, sizes: dict[int, int]) -> int:
        """Return what all that run need: what several have in common once."""
        uses = [key for keys in self.used.values() for key in keys]
        return sum(self.held.values()) - sum(
            sizes[key] * (uses.count(key) - 1) for key in set(uses)
        )

    def take_memory(
        self, n: int, needed: int, keys: list[int], sizes: dict[int, int], limit: int | None
    ) -> bool:
        """Give `n` what it needs, which includes `keys` that are there.

        Return whether there is that beside others.
        """
        is_alone = not self.held_bytes(sizes)
        self.held[n], self.used[n] = needed, keys
        if is_alone or limit is None or self.held_bytes(sizes) <= limit:
            return True
        del self.held[n], self.used[n]
        return False

    def give_up(self, key: int) -> None:
        """Let nobody run with `key`, which the fastest tier deletes."""
        for n, keys in self.used.items():
            self.used[n] = [other for other in keys if other != key]

    def find(self, tiers: list[Tier], n: int, missed: int) -> None:
        self.local_hits += sum(tier.setting.scope is Scope.NODE for tier in tiers)
        self.shared_hits += sum(tier.setting.scope is not Scope.NODE for tier in tiers)
        self.waiting[n] = missed

    def compute(self, n: int) -> None:
        self.waiting.pop(n, None)

    def end(self, n: int) -> None:
        self.prompts.pop(n, None)
        self.waiting.pop(n, None)


def draw(seed: int, user: int, number: int, low: int, high: int) -> int:
    """Splitmix64, mixed twice, of what is drawn by whom."""
    x = (
        seed * 0x9E3779B97F4A7C15
        + user * 0xD1B54A32D192ED03
        + number * 0x8CB92BA72F3D8DD7
        + 0x2545F4914F6CDD1D
    )
    for _ in range(2):
        x = (x & MASK) ^ ((x & MASK) >> 30)
        x = x * 0xBF58476D1CE4E5B9 & MASK
        x ^= x >> 27
        x = x * 0x94D049BB133111EB & MASK
        x ^= x >> 31
    return low + x % (high - low + 1)


def found_tokens(oracle: Oracle, node: Node, plan: Plan) -> int:
    """Return how many of the prompt's first tokens are in any tier that the node shares with
    nobody.
    """
    own = [tier for tier in node.tiers if tier.setting.scope is Scope.NODE]
    run = []
    for key in plan.chain:
        if not any(key in tier.objects for tier in own):
            break
        run.append(key)
    tokens = len(run) // oracle.per_chunk * oracle.preset.chunk_tokens
    if oracle.preset.entry is Entry.TURN:
        tokens = sum(oracle.sizes[key] for key in run) // oracle.bytes_per_token
    return min(tokens, plan.tokens)


def route(oracle: Oracle, plan: Plan, n: int) -> int:
    """Return the node that serves request `n`, and note that it does."""
    fleet = oracle.preset.fleet
    entrances = oracle.nodes[: fleet.prefill_nodes or len(oracle.nodes)]
    nodes = [node for node in entrances if node.is_up]
    if len(oracle.nodes) == 1:
        node = nodes[0]
    elif fleet.router is Router.RANDOM:
        node = nodes[draw(oracle.seed, -(2**40), n, 0, len(nodes) - 1)]
    elif fleet.router is Router.ROUND_ROBIN:
        turn = getattr(oracle, "turn", 0)
        node = min(nodes, key=lambda node: (node.number - turn) % len(entrances))
        oracle.turn = node.number + 1
    elif fleet.router is Router.LEAST_OUTSTANDING:
        node = min(nodes, key=lambda node: (len(node.prompts), node.turns, node.number))
    elif fleet.router is Router.SESSION:
        node = max(
            nodes,
            key=lambda node: draw(oracle.seed, -(2**41) - node.number, plan.session, 0, 2**62),
        )
    elif fleet.router is Router.PREFIX:
        prefill = round(fleet.prefill_weight * 10**6)

        def cost(node: Node) -> tuple[int, int, int]:
            new = plan.tokens - found_tokens(oracle, node, plan)
            work = prefill * (sum(node.waiting.values()) + new) + 10**6 * sum(node.prompts.values())
            return work, node.turns, node.number

        node = min(nodes, key=cost)
    elif fleet.router is not Router.PREFIX_SCORE:
        raise NotImplementedError(f"say here in plain Python what {fleet.router} does")
    else:
        prefix, load = round(fleet.prefix_weight * 10**6), round(fleet.load_weight * 10**6)

        def score(node: Node) -> tuple[int, int, int]:
            free = max(0, fleet.load_threshold - len(node.waiting))
            points = prefix * found_tokens(oracle, node, plan) // max(1, plan.tokens)
            return -(points + load * free // (2 * fleet.load_threshold)), node.turns, node.number

        node = min(nodes, key=score)
    node.served += 1
    node.turns += 1
    node.prompts[n], node.waiting[n] = plan.tokens, plan.tokens - found_tokens(oracle, node, plan)
    return node.number
