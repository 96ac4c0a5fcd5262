"""What a hierarchy does, said again in plain Python.

Slow, obvious, and made without looking at the kernel.

A request is a generator that yields how long it waits; what a tier gives up, evictions.py says;
what a request asks for is a plan, made from a file's requests here and from a log of users' turns
in plans.py.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from answers import Answer, Answers
from evictions import POLICIES, Lfu, Lru
from fleets import Node, route
from outages import Outages
from queues import Queue

from kvtrace.llm.shape import Piece, PieceKind
from kvtrace.requests.users import ServingMode
from kvtrace.sim.policies import Policy
from kvtrace.sim.presets.preset import Entry, LayerGroups, Match, Placement, Preset, Promotion
from kvtrace.sim.presets.tier import Admission, Recency, Scope, ns_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from plans import Users

    from kvtrace.requests.requests import Requests, Waits
    from kvtrace.sim.fleet import Incident

EXPIRE, POLL, STORE = range(3)
FOREVER = float("inf")
Row = tuple[int, str, int, str, int, int, int | None, int | None, int]


@dataclass
class Plan:
    """One request.

    Its documents' objects, then its chain, of which the first `prompt` ones are a system prompt's.
    """

    arrival: int
    tokens: int
    new_tokens: int
    output: int
    chain: list[int]
    known: int
    """How many of the chain there were before, if each is looked for by itself."""
    prompt: int = 0
    documents: list[int] = field(default_factory=list)
    waits: list[tuple[int, int, bool]] = field(default_factory=list)
    """Plans that it comes after, by how long, and whether that is since they came, not since they
    were answered.
    """
    not_before: int = 0
    session: int = 0
    retrieved: int = 0
    """Tokens of its documents."""
    answers: list[int] = field(default_factory=list)
    """What its answer adds to the objects of its conversation."""
    end: int = 0
    """How many of the chain's first objects are used, once it is looked up."""
    generated: tuple[int, int] = (0, 0)
    """Which of the chain the turn before generated."""


class Tier:
    def __init__(self, number: int, preset: Preset) -> None:
        setting = preset.tiers[number]
        capacity = setting.capacity_bytes
        self.number = number
        self.limit = self.largest = self.low = capacity
        if capacity is not None:
            self.trigger = self.low = int(capacity * setting.high_watermark)
            self.limit = capacity if ns_of(setting.evict_every) else self.low
            self.largest = int(capacity * setting.max_object_fraction)
            if setting.low_watermark is not None:
                self.low = int(capacity * setting.low_watermark)
        self.recency = setting.recency or preset.recency
        self.is_whole = setting.whole_offers and setting.policy is Policy.LRU
        self.reads_at_once, self.writes_at_once = setting.request_reads, setting.request_writes
        self.looks_past_miss, self.looked_up = setting.looks_past_miss, 0
        self.objects: dict[int, int] = {}
        self.policy = POLICIES[setting.policy](self.limit)
        self.setting = setting
        self.ttl_ns = ns_of(setting.ttl) if setting.policy is Policy.TTL else None
        self.expires: dict[int, int] = {}
        self.counts: dict[int, int] = {}
        self.referred = self.decayed = self.looked = 0
        """`looked`: until when it has made room, if it does so at times."""
        self.refused: list[int] = []
        self.queue: Queue | None = None
        self.is_gone = False
        """Out of reach."""
        self.offers = 0
        self.offered: dict[int, int] = {}
        """Of offers that are whole.

        How many there were, and by which one each object came in, while it is there.
        """

    def takes(self, size: int) -> bool:
        return (self.queue is not None or not self.is_gone) and (
            self.largest is None or size <= self.largest
        )

    def holds(self, size: int, bound: int | None) -> bool:
        """Return whether it stays within `bound` with `size` more.

        What it takes may be alone in it.
        """
        is_bucketed = self.queue is not None and self.setting.bucket_objects
        used = (
            self.queue.used()
            if self.queue is not None and is_bucketed
            else sum(self.objects.values())
        )
        return not used or bound is None or used + size <= bound

    def fits(self, size: int) -> bool:
        return self.holds(size, self.limit)

    def has_buffers(self, size: int) -> bool:
        """Return whether it has `size` bytes left, without making room."""
        return self.limit is None or sum(self.objects.values()) + size <= self.limit

    def refer(self, key: int, size: int) -> None:
        """Count a use or an offer, and halve all counts once a window of bytes is full."""
        if self.setting.admission is not Admission.TINYLFU or self.limit is None:
            return
        self.counts[key] = self.counts.get(key, 0) + 1
        self.referred += size
        if self.referred >= self.setting.admission_window * self.limit:
            self.referred //= 2
            self.counts = {other: count // 2 for other, count in self.counts.items()}

    def hit(self, key: int, size: int) -> None:
        is_whole = (
            self.queue is not None and key in self.queue.home and self.setting.bucket_gc is None
        )
        if not self.counts_at_end:
            self.policy.hit(self.queue.home[key][0] if is_whole else key)
        self.refer(key, size)

    @property
    def counts_at_end(self) -> bool:
        """Whether a use counts only as its request ends."""
        return self.recency is Recency.AT_END and type(self.policy) is Lru

    def admits(self, key: int, size: int, now: int) -> bool:
        """Return whether it takes `key`, which is offered to it."""
        setting = self.setting
        if setting.admission is Admission.ALWAYS:
            return True
        if setting.admission is Admission.TINYLFU:
            self.refer(key, size)
            passes = self.fits(size) or self.counts.get(key, 0) > self.counts.get(
                self.policy.victim(key, size), 0
            )
        elif setting.admission is Admission.NTH_OFFER:
            self.counts[key] = self.counts.get(key, 0) + 1
            passes = self.counts[key] >= setting.admission_count
        else:
            while (
                ns_of(setting.admission_decay)
                and self.decayed + ns_of(setting.admission_decay) <= now
            ):
                self.decayed += ns_of(setting.admission_decay)
                self.counts = {
                    other: count - 1 for other, count in self.counts.items() if count > 1
                }
            self.counts[key] = 2 * self.counts.get(key, 0) or 1
            passes = self.counts[key] >= setting.admission_count
        if not passes:
            self.refused.append(size)
        return passes


class Stages:
    """Numbers the stages of a request from `at` on.

    A new one once a tier has as many operations as it runs at once.
    """

    def __init__(self, at: int) -> None:
        self.at, self.is_any = at, False
        self.running: dict[Tier, int] = {}

    def of(self, tier: Tier, at_once: int) -> int:
        if at_once:
            if self.running.get(tier) == at_once:
                self.end()
            self.running[tier] = self.running.get(tier, 0) + 1
        self.is_any = True
        return self.at

    def end(self) -> int:
        """Return the stage that follows."""
        self.at, self.running, self.is_any = self.at + self.is_any, {}, False
        return self.at


class Batch:
    """Requests that decode together.

    `steps` counts 1024ths of a step since the start, and loses what is less.
    """

    def __init__(self, preset: Preset) -> None:
        self.preset, self.reads = preset, {}
        self.now = self.steps = self.of_prompt = 0
        self.step = 1

    reads: dict[int, int]
    """Of each request by its number: the bytes of cache that a step reads on one rank."""

    def change(self, now: int, computing_until: int) -> None:
        """Set how long a step takes once somebody joined or left, or a prompt begins or ends."""
        n = len(self.reads)
        self.step = max(
            1, self.reading_ns(n, sum(self.reads.values())), n * self.preset.decode_compute_ns
        )
        if computing_until > now:
            self.step = max(self.step, self.of_prompt)

    def begin_prompt(self, tokens: int, took: int) -> int:
        """Return how long its steps read the cache of those who decode.

        `took` is what its own tokens take.
        """
        p = self.preset
        room = min(tokens, max(1, p.step_tokens - len(self.reads)))
        reading = self.reading_ns(0, sum(self.reads.values())) - self.reading_ns(0, 0)
        self.of_prompt = took * room // tokens + reading
        return reading * tokens // room

    def reading_ns(self, tokens: int, size: int) -> int:
        """Return how long a step reads the weights that `tokens` use, and `size` bytes of cache."""
        p = self.preset
        weights = p.decode_ns_per_token
        if p.decode_active_ns:
            weights = min(weights, tokens * p.decode_active_ns)
        return weights + (
            size * 1000 // (p.decode_bytes_per_s // 10**6) if p.decode_bytes_per_s else 0
        )

    def advance(self, now: int) -> None:
        if self.reads:
            self.steps += (now - self.now) * 1024 // self.step
        self.now = now

    def time_of(self, steps: int) -> int:
        """Return when it will have come to `steps`, if nobody joins or leaves."""
        return self.now + -(-max(0, steps - self.steps) * self.step // 1024)


def nodes_of(preset: Preset) -> list[Node]:
    """Return the nodes of the fleet: what they share is one and the same tier."""
    fleet = preset.fleet
    shared = {t.name: Tier(i, preset) for i, t in enumerate(preset.tiers) if t.scope is Scope.FLEET}
    racks: dict[tuple[int, str], Tier] = {}
    nodes = []
    for number in range(fleet.nodes):
        tiers = []
        for i, setting in enumerate(preset.tiers):
            tier = shared[setting.name] if setting.scope is Scope.FLEET else Tier(i, preset)
            if setting.scope is Scope.RACK:
                tier = racks.setdefault((number // fleet.rack_nodes, setting.name), tier)
            tiers.append(tier)
        nodes.append(Node(number, tiers, Batch(preset)))
        top = nodes[-1].tiers[0]
        is_gpu = (
            top.setting.name == "gpu"
            and top.setting.scope is Scope.NODE
            and type(top.policy) is Lru
        )
        is_shared = (
            preset.step_tokens
            and preset.prefill_in_turn
            and preset.has_prefill
            and not top.is_whole
        )
        if is_gpu and is_shared and top.setting.capacity_bytes:
            nodes[-1].is_bounded, top.policy.runs = True, nodes[-1].runs
    return nodes


class Oracle:
    def __init__(
        self, preset: Preset, requests: Requests | None, bytes_per_token: int, ranks: int, *, layers: int = 1,
        pieces: Sequence[Piece] = (), waits: Waits | None = None, seed: int = 0,
        incidents: Sequence[Incident] = (),
    ) -> None:  # fmt: skip
        """`bytes_per_token` is of all `ranks` together.

        `layers` are groups of layers, each an object.
        """
        self.preset, self.ranks, self.layers, self.pieces = preset, ranks, layers, pieces
        has_groups = preset.layer_groups is LayerGroups.KIND and len(pieces) > 1
        is_prefix = preset.entry is Entry.CHUNK and preset.match is not Match.ANY
        self.groups = list(pieces) if has_groups and is_prefix else []
        self.per_chunk = max(1, len(self.groups))
        """Objects of a chunk."""
        self.bytes_per_token = bytes_per_token
        self.nodes = nodes_of(preset)
        self.enter(0)
        for tier in (node.tiers[-1] for node in self.nodes if preset.tiers[-1].store_queue):
            tier.queue = tier.queue or Queue(self, tier)
        self.rows: list[Row] = []
        self.row_nodes: list[int] = []
        self.now = self.hits = self.lookups = 0
        self.seed = seed
        self.sizes: dict[int, int] = {}
        self.seen: set[int] = set()
        self.uses_anywhere: list[int] = []
        self.populated: list[list[int]] = []
        self.order: list[int] = []
        self.known: set[int] = set()
        self.plans = self._plans(requests) if requests is not None else []
        for k in range(0 if waits is None else len(waits)):
            plan = self.plans[int(waits.row[k])]
            plan.waits.append(
                (int(waits.before[k]), int(waits.delay_ns[k]), bool(waits.is_of_start[k]))
            )
            plan.not_before = int(waits.not_before_ns[waits.row[k]])
        self.outages = Outages(self, incidents)
        self.is_renumbered = (
            waits is not None
            or bool(incidents)
            or bool(preset.tiers[-1].bucket_objects)
            or preset.holds_answers
        )
        self.answers = Answers(self, is_named=requests is None)
        self.first_steps: dict[int, tuple[int, int]] = {}
        """Of each request that decodes: when it began, and the batch's steps then."""
        self.numbered = 0
        """How many numbers were given, if they are not those of the keys."""
        self.offsets: list[int] = []
        self.names: dict[int, int] = {}
        """If requests wait for others.

        The numbers of objects, which have them in the order in which they are asked for.
        """
        self.users: Users | None = None
        """Who asks, if that is no file."""
        self.attention_fs = [0]
        """What attention adds to the first so many tokens of a prompt."""
        self.came: list[tuple[int, int]] = []
        """The plans that came, in order, and when."""

    def enter(self, node: int) -> None:
        """Let `node` act, with its tiers, its batch, and what was used there."""
        self.node = node
        here = self.here = self.nodes[node]
        self.tiers, self.batch, self.uses = here.tiers, here.batch, here.uses
        self.staging = next((t for t in self.tiers if t.setting.staging), None)

    def chunk_bytes(self, tokens: int) -> int:
        parts, page = self.ranks * self.layers, self.preset.pad_bytes
        whole = (
            sum(p.copies * p.size_bytes(tokens) for p in self.pieces)
            or tokens * self.bytes_per_token
        )
        pages = -(-whole // (parts * page))
        return pages * page * parts

    def object_bytes(self, tokens: int, index: int) -> int:
        """Return the bytes of the object at `index` of a chain, of a chunk of so many tokens."""
        if not self.groups:
            return self.chunk_bytes(tokens)
        unit = self.ranks * self.layers * self.preset.pad_bytes
        piece = self.groups[index % len(self.groups)]
        return -(-piece.copies * piece.size_bytes(tokens) // unit) * unit

    def _plans(self, r: Requests) -> list[Plan]:
        numbers: dict[object, int] = {}
        plans = []
        chunk = self.preset.chunk_tokens
        for n in range(len(r)):
            blocks = [int(i) for i in r.block_ids[r.block_offsets[n] : r.block_offsets[n + 1]]]
            tokens = int(r.input_tokens[n])
            if self.preset.entry is Entry.TURN:
                names: list[object] = [("turn", n)] if tokens else []
                size = tokens * self.bytes_per_token
            else:
                # A chunk's name: the block that holds its last token, and which chunk of that block
                # it is.
                ends = range(chunk, tokens + 1, chunk)
                names = [
                    (blocks[(end - 1) // r.block_tokens], (end - 1) % r.block_tokens // chunk, 0, k)
                    for end in ends
                    for k in range(self.per_chunk)
                ]
                if self.preset.partial_chunks and tokens % chunk:
                    # Of the end as many tokens as there are: the same only where they are as many
                    # of the same block.
                    names.append(
                        (blocks[-1], (tokens - 1) % r.block_tokens // chunk, tokens % chunk)
                    )
            chain = [numbers.setdefault(name, len(numbers)) for name in names]
            for index, key in enumerate(chain):
                is_turn = self.preset.entry is Entry.TURN
                self.sizes[key] = size if is_turn else self.object_bytes(chunk, index)
            if self.preset.partial_chunks and tokens % chunk:
                self.sizes[chain[-1]] = self.chunk_bytes(tokens % chunk)
            # A turn's own entry is new, and is not looked for.
            session = (
                n if r.session_id is None or r.session_id[n] < 0 else -1 - int(r.session_id[n])
            )
            plans.append(
                Plan(
                    int(r.arrival_ns[n]),
                    tokens,
                    tokens,
                    int(r.output_tokens[n]),
                    chain,
                    0,
                    session=session,
                )
            )
        # A conversation's number is its place among those that began.
        order = list(dict.fromkeys(plan.session for plan in plans))
        for plan in plans:
            plan.session = order.index(plan.session)
        return plans

    def emit(
        self, op: str, tier: Tier, phase: str, key: int, request: int | None = None, stage: int | None = None,
        *, layers: Sequence[int] | None = None, size: int | None = None,
    ) -> None:  # fmt: skip
        each = (self.sizes[key] if size is None else size) // (self.ranks * self.layers)
        for layer in range(self.layers) if layers is None else layers:
            for rank in range(self.ranks):
                home = tier.queue.home.get(key) if tier.queue is not None and op == "read" else None
                named = self.names.get(key if home is None else home[0], key)
                number = (named * self.ranks + rank) * self.layers + layer
                self.offsets.append(0 if home is None else home[1])
                self.row_nodes.append(self.node)
                self.rows.append(
                    (self.now, op, tier.number, phase, number, each, request, stage, rank)
                )

    def use(self, key: int) -> None:
        """Note that `key` was used last."""
        for uses in (self.uses, self.uses_anywhere):
            if key in uses:
                uses.remove(key)
            uses.append(key)

    def follow(self, tier: Tier, key: int) -> None:
        """Make `key`, just used in `tier`, less recent than those before it in `order`, if that is
        so.
        """
        if tier.recency is not Recency.TAIL_FIRST or type(tier.policy) is not Lru:
            return
        keys, before = tier.policy.keys, self.order[: self.order.index(key)]
        keys.remove(key)
        at = next((keys.index(k) for k in reversed(before) if k in tier.objects), len(keys))
        keys.insert(at, key)

    def write(
        self, tier: Tier, phase: str, key: int, request: int | None = None, stage: int | None = None
    ) -> None:
        assert key not in tier.objects
        tier.objects[key] = self.sizes[key]
        if tier.number == 0 and self.here.held.get(request):
            self.here.used[request].append(key)
        tier.policy.insert(key, self.sizes[key])
        if phase != "demote":
            self.use(key)
        elif self.preset.demotion_keeps_age and type(tier.policy) is Lru:
            keys, uses = (
                tier.policy.keys,
                self.uses if tier.setting.scope is Scope.NODE else self.uses_anywhere,
            )
            place = keys.index(key)
            while place and uses.index(keys[place - 1]) > uses.index(key):
                place -= 1
            keys.insert(place, keys.pop())
        if tier.ttl_ns is not None:
            tier.expires[key] = self.now + tier.ttl_ns
        self.emit("write", tier, phase, key, request, stage)

    def delete(self, tier: Tier, phase: str, key: int) -> None:
        del tier.objects[key]
        if tier.number == 0:
            self.here.give_up(key)
        tier.policy.remove(key, is_evicted=phase not in ("promote", "lose"))
        tier.expires.pop(key, None)
        tier.offered.pop(key, None)
        self.emit("delete", tier, phase, key)

    def evict(self, tier: Tier, key: int) -> None:
        if tier.queue is not None and tier.setting.bucket_gc is not None:
            tier.queue.give_up(key)
        elif tier.queue is not None and key in tier.queue.buckets:
            tier.queue.delete_bucket(key)
        else:
            self.delete(tier, "evict", key)

    def fastest(self, key: int) -> Tier | None:
        return next((t for t in self.tiers if key in t.objects and not t.is_gone), None)

    def evict_for(self, tier: Tier, key: int) -> bool:
        """Delete until `key` fits, and then down to the low mark.

        False if the tier takes no such object.
        """
        size = self.sizes[key]
        if not tier.takes(size):
            return False
        if tier.is_whole:
            return self.evict_together(tier, size, set())
        if not tier.fits(size):
            if ns_of(tier.setting.evict_every) and not tier.setting.fits_at_once:
                return False
            while not tier.holds(size, tier.limit if tier.setting.fits_at_once else tier.low):
                self.evict(tier, tier.policy.victim(key, size))
        return True

    def evict_together(self, tier: Tier, size: int, held: set[int]) -> bool:
        """Delete, but not `held`, until `size` more bytes fit, and then down to the low mark.

        False if it cannot.
        """
        free = sum(self.sizes[key] for key in tier.objects if key not in held)
        used = sum(tier.objects.values()) + size
        if tier.limit is None or used <= tier.limit:
            return True
        if used - free > tier.limit:
            return False
        for key in [key for key in tier.policy.keys if key not in held]:
            if sum(tier.objects.values()) + size > tier.low:
                self.delete(tier, "evict", key)
        return True

    def poll(self, tier: Tier) -> None:
        """Let `tier` make room, as it does at times."""
        held = sum(tier.objects.values())
        goal, share = min(tier.low, tier.trigger), tier.setting.evict_share
        if share is not None:
            first = tier.objects[tier.policy.victim(-1, 0)]
            goal = held - max(held * round(share * 1_000_000) // 1_000_000, first)
        while held > goal:
            key = tier.policy.victim(-1, 0)
            if share is not None and held - tier.objects[key] < goal:
                break
            held -= tier.objects[key]
            self.evict(tier, key)

    def demote_for(self, tier: Tier, key: int) -> None:
        """Move down until `key` fits."""
        while not tier.fits(self.sizes[key]):
            victim = tier.policy.victim(key, self.sizes[key])
            lower = next(
                (t for t in self.tiers[tier.number + 1 :] if t.takes(self.sizes[victim])), None
            )
            size = self.sizes[victim]
            if lower is None or victim in lower.objects or not lower.admits(victim, size, self.now):
                self.delete(tier, "evict", victim)
                continue
            self.demote_for(lower, victim)
            self.emit("read", tier, "demote", victim)
            self.write(lower, "demote", victim)
            self.delete(tier, "demote", victim)

    def due_in(self, tier: Tier) -> Iterator[tuple[int, int]]:
        """Yield when something is due in `tier`, and what: EXPIRE, POLL or STORE."""
        if tier.expires:
            yield min(tier.expires.values()), EXPIRE
        every = ns_of(tier.setting.evict_every)
        held = sum(tier.objects.values())
        if every and tier.limit is not None and held and held >= tier.trigger:
            yield (tier.looked // every + 1) * every, POLL
        if tier.queue is not None and tier.queue.due() < FOREVER:
            yield int(tier.queue.due()), STORE

    def catch_up(self) -> None:
        """Do what is due until now, each at its time.

        Of one time node by node, then racks, then what all share.
        """
        now = self.now
        places: dict[int, tuple[tuple[int, int], Tier]] = {}
        for node in self.nodes:
            for tier in node.tiers:
                rank = list(Scope).index(tier.setting.scope)
                rack = node.number // self.preset.fleet.rack_nodes
                places.setdefault(id(tier), ((rank, (node.number, rack, 0)[rank]), tier))
        instances = list(places.values())
        while True:
            due = [
                (when, place, tier.number, what)
                for place, tier in instances
                for when, what in self.due_in(tier)
                if when <= now
            ]
            first = min(due, default=(now, (9, 0), 9, 9))
            # Whoever would have made room before this, did not: it held too little.
            for place, tier in instances:
                tier.looked = max(
                    tier.looked, first[0] - ((first[0], place, tier.number, POLL) > first)
                )
            if not due:
                break
            when, place, number, what = first
            tier = next(t for at, t in instances if at == place and t.number == number)
            sharing = [node for node in self.nodes if node.tiers[number] is tier]
            self.enter(next((node for node in sharing if node.is_up), sharing[0]).number)
            self.now = when
            if what == EXPIRE:
                self.evict(tier, next(key for key, at in tier.expires.items() if at == when))
            elif what == POLL:
                self.poll(tier)
            else:
                tier.queue.store()
        self.now = now

    def find(self, plan: Plan) -> list[tuple[int, Tier]]:
        """Return what of the plan's chain may be used, and where it is."""
        p = self.preset
        if p.match is Match.ANY:
            return [
                (key, tier)
                for key in plan.chain[: plan.known]
                if (tier := self.fastest(key)) is not None
            ]
        if self.groups:
            return self.find_groups(plan)
        found = self.run_of(plan.chain)
        least = FOREVER if self.is_declined(plan) else p.min_load_tokens
        in_fastest = next((i for i, (_, tier) in enumerate(found) if tier.number), len(found))
        if in_fastest < len(found) and (len(found) - in_fastest) * p.chunk_tokens < least:
            found = found[:in_fastest]
        return found

    def is_declined(self, plan: Plan) -> bool:
        """Return whether the plan's whole chunks are too few to be looked for below the GPU."""
        p = self.preset
        least = p.min_lookup_tokens
        return least > 0 and plan.tokens // p.chunk_tokens * p.chunk_tokens < least

    def find_groups(self, plan: Plan) -> list[tuple[int, Tier]]:
        """Return what of the plan's chain is needed of the longest prefix that can be used."""
        p, chunks = self.preset, len(plan.chain) // self.per_chunk
        usable = [(end, self.needed_of(plan.chain, end)) for end in range(chunks + 1)]
        end, found = next(of for of in reversed(usable) if of[1] is not None)
        assert found is not None
        below = [i for i, (_, tier) in found if tier.number]
        first_below = min(below, default=end * self.per_chunk) // self.per_chunk
        least = FOREVER if self.is_declined(plan) else p.min_load_tokens
        if below and (end - first_below) * p.chunk_tokens < least:
            shorter = [of for of in usable[: first_below + 1] if of[1] is not None]
            end, found = shorter[-1]
            assert found is not None
            if any(tier.number for _, (_, tier) in found):
                end, found = 0, []
        plan.end = end * self.per_chunk
        return [hit for _, hit in found]

    def needed_of(self, chain: list[int], chunks: int) -> list[tuple[int, tuple[int, Tier]]] | None:
        """Return what is needed of a prefix of so many chunks, by place; None if any is missing."""
        hits, tiers = [], list(self.tiers)
        for chunk in range(chunks):
            next_tiers = tiers
            for k, piece in enumerate(self.groups):
                index = chunk * self.per_chunk + k
                if chunk < self.first_needed(piece, chunks):
                    continue
                holding = [t for t in tiers if chain[index] in t.objects and not t.is_gone]
                if not holding:
                    return None
                hits.append((index, (chain[index], holding[0])))
                if piece.kind is PieceKind.GROWING and self.preset.match is Match.PREFIX_BY_TIER:
                    next_tiers = [t for t in next_tiers if t.number >= holding[0].number]
            tiers = next_tiers
        return hits

    def first_needed(self, piece: Piece, chunks: int) -> int:
        """Return the first chunk of a prefix of so many that the layers of `piece` need."""
        chunk, window = self.preset.chunk_tokens, piece.window_tokens or 0
        return {
            PieceKind.GROWING: 0,
            PieceKind.SLIDING: chunks - -(-window // chunk),
            # The chunk in which the span began that the next token belongs to.
            PieceKind.CHUNKED: chunks * chunk // max(1, window) * window // chunk,
            PieceKind.STATE: chunks - 1,
        }[piece.kind]

    def chunk_tiers(
        self, plan: Plan, retrieved: list[tuple[int, Tier]], found: list[tuple[int, Tier]]
    ) -> list[Tier]:
        """Return the slowest tier that each chunk that is used comes from."""
        if not self.groups:
            return [tier for _, tier in retrieved + found]
        where, tiers = dict(found), []
        for first in range(0, plan.end, self.per_chunk):
            keys = plan.chain[first : first + self.per_chunk]
            levels = [where[key].number for key in keys if key in where]
            tiers.append(self.tiers[max(levels, default=0)])
        return tiers

    def bring_up(
        self, retrieved: list[tuple[int, Tier]], found: list[tuple[int, Tier]]
    ) -> tuple[list[tuple[int, Tier]], list[tuple[int, Tier]]]:
        """Return where both come from once all below a tier that has to hold all was brought up, in
        as many rounds.
        """
        if self.preset.promotion is not Promotion.ALWAYS or self.staging is not None:
            return retrieved, found
        where = dict(retrieved + found)
        for tier in self.tiers:
            needed = sum(self.sizes[key] for key, at in where.items() if at.number >= tier.number)
            is_one = (
                tier.setting.loads_whole
                and type(tier.policy) is Lru
                and tier.setting.bucket_objects == 0
            )
            if not is_one or tier.limit is None or needed > tier.limit:
                continue
            oldest, free = list(tier.policy.keys), tier.limit - sum(tier.objects.values())
            missing = [key for key, at in where.items() if at.number > tier.number]
            while missing:
                free -= sum(self.sizes[key] for key in missing)
                missing = []
                while free < 0 and oldest:
                    key = oldest.pop(0)
                    if key in where:
                        below = [
                            t
                            for t in self.tiers[tier.number + 1 :]
                            if key in t.objects and not t.is_gone
                        ]
                        if not below:
                            oldest.clear()
                            break
                        missing.append(key)
                        where[key] = below[0]
                        self.delete(tier, "evict", key)
                    free += self.sizes[key]
        return [(key, where[key]) for key, _ in retrieved], [(key, where[key]) for key, _ in found]

    def run_of(self, chain: list[int]) -> list[tuple[int, Tier]]:
        """Return the leading run of what is live.

        Of each object the fastest tier, or of each tier in turn its run.
        """
        found: list[tuple[int, Tier]] = []
        tiers = list(self.tiers)
        for key in chain:
            holding = [tier for tier in tiers if key in tier.objects and not tier.is_gone]
            if not holding:
                break
            found.append((key, holding[0]))
            if self.preset.match is Match.PREFIX_BY_TIER:
                tiers = self.tiers[holding[0].number :]
        return found

    def cut(
        self, retrieved: list[tuple[int, Tier]], found: list[tuple[int, Tier]]
    ) -> tuple[list[tuple[int, Tier]], list[tuple[int, Tier]]]:
        """Return what may be read of both.

        Nothing below a staging tier that has no room for all of that.
        """
        staging = self.staging
        if staging is None or not ns_of(staging.setting.evict_every):
            return retrieved, found
        if staging.has_buffers(
            sum(self.sizes[k] for k, t in retrieved + found if t.number > staging.number)
        ):
            return retrieved, found
        end = next((i for i, (_, t) in enumerate(found) if t.number > staging.number), len(found))
        return [(k, t) for k, t in retrieved if t.number <= staging.number], found[:end]

    def take_buffer(self, size: int, taken: int, kept: set[int]) -> bool:
        """Make room in the staging tier beside `taken` bytes of buffers, but of what is `kept`.

        Return if there is.
        """
        tier = self.staging
        assert tier is not None
        if not tier.takes(size):
            return False
        if not tier.has_buffers(taken + size):
            while sum(tier.objects.values()) + taken + size > tier.low:
                free = [key for key in tier.policy.keys if key not in kept]
                if not free:
                    break
                used = tier.policy.used if type(tier.policy) is Lfu else dict.fromkeys(free, 0)
                self.delete(tier, "evict", min(free, key=lambda key: used[key]))
        return tier.has_buffers(taken + size) or not (tier.objects or taken)

    def buffered(self, keys: list[int], kept: set[int]) -> list[int]:
        """Return the first of `keys`, as many as there are buffers for in the staging tier."""
        taken = 0
        for i, key in enumerate(keys):
            if not self.take_buffer(self.sizes[key], taken, kept):
                return keys[:i]
            taken += self.sizes[key]
        return keys

    def load(self, found: list[tuple[int, Tier]], retrieved: list[tuple[int, Tier]], n: int) -> int:
        """Read documents, then the chain, one group of layers after the other.

        Return the stages.
        """
        for key, tier in reversed(retrieved + found):
            if tier.setting.loads_backwards or (
                tier.setting.loads_twice and type(tier.policy) is Lfu
            ):
                tier.hit(key, self.sizes[key])
                self.use(key)
        for key, tier in retrieved + found:
            if not tier.setting.loads_backwards:
                tier.hit(key, self.sizes[key])
                self.follow(tier, key)
                self.use(key)
        stages = Stages(1 + max((row[7] for row in self.rows if row[6] == n), default=-1))
        for key, tier in retrieved:
            self.emit("read", tier, "retrieve", key, n, stages.of(tier, tier.reads_at_once))
        for layer in range(self.layers):
            stages.end()
            for key, tier in found:
                self.emit(
                    "read",
                    tier,
                    "load",
                    key,
                    n,
                    stages.of(tier, tier.reads_at_once),
                    layers=[layer],
                )
        return stages.end()

    def request(self, plan: Plan, n: int) -> Iterator[int | tuple[int] | None]:
        p = self.preset
        mode = p.workload.mode
        while not any(
            node.is_up for node in self.nodes[: p.fleet.prefill_nodes or len(self.nodes)]
        ):
            yield self.outages.next_join() - self.now
        self.name(plan.chain)
        self.enter(route(self, plan, n))
        self.sent[n] = self.node
        retrieved, found = yield from self.queue(plan, n)
        self.order = [*plan.documents, *plan.chain]
        if mode is not ServingMode.PREFILL_ONLY:
            objects = plan.known if p.match is Match.ANY else len(plan.chain)
            self.lookups += len(plan.documents) + objects // self.per_chunk
            self.hits += len(self.chunk_tiers(plan, retrieved, found))
            self.count_past_miss([*plan.documents, *plan.chain])
        retrieved, found = self.bring_up(retrieved, found)
        stage = self.load(found, retrieved, n)
        self.answers.catch_up()
        stage = self.promote(retrieved + found, n, stage, self.staged(retrieved + found))
        refused: list[int] = []
        if p.entry is Entry.CHUNK:
            hits = len(self.chunk_tiers(plan, retrieved, found))
            missed = plan.tokens - hits * p.chunk_tokens
        else:
            missed = (
                plan.tokens
                - sum(self.sizes[k] for k, _ in found + retrieved) // self.bytes_per_token
            )
        missed = 0 if mode is ServingMode.DECODE_ONLY else max(min(1, plan.tokens), missed)
        self.here.find(self.chunk_tiers(plan, retrieved, found), n, missed)
        if mode is ServingMode.DECODE_ONLY:
            yield 0
        else:
            stage, refused = yield from self.compute(
                plan, [key for key, _ in found], missed, n, stage
            )
            self.here.compute(n)
            self.change_batch(is_shared=True)
            stage = self.hand_over(plan, n, stage)
            yield 0
        if mode is ServingMode.DECODE_ONLY:
            stage = self.hand_over(plan, n, stage)
        answer = yield from self.decode(plan, n, stage)
        if refused:
            self.order = [*plan.documents, *plan.chain]
            self.offer(self.order[len(self.order) - len(refused) :], n, answer.stage, set())
        self.use_at_end(plan, answer)

    def use_at_end(self, plan: Plan, answer: Answer) -> None:
        """Let the objects of a request that ends count as used again, from the last to the first."""
        for key in reversed(answer.unnamed):
            top = self.tiers[0]
            if key in top.objects and top.recency is not Recency.HEAD_FIRST:
                top.policy.hit(key)
        for key in reversed([*plan.documents, *plan.chain, *plan.answers]):
            for tier in self.tiers:
                is_used = tier.recency is not Recency.HEAD_FIRST and type(tier.policy) is Lru
                if is_used and key in tier.objects and not tier.is_gone:
                    tier.policy.hit(key)

    def look_up(self, plan: Plan) -> tuple[list[tuple[int, Tier]], list[tuple[int, Tier]]]:
        """Return which of its documents and of its chain are found, and where."""
        self.answers.catch_up()
        if self.preset.workload.mode is ServingMode.PREFILL_ONLY:
            return [], []
        documents = [
            (key, tier)
            for key in plan.documents
            if (tier := self.fastest(key)) is not None
            and (tier.number == 0 or not self.is_declined(plan))
        ]
        documents, found = self.cut(documents, self.find(plan))
        if not self.groups:
            plan.end = len(found)
        return documents, found

    def queue(self, plan: Plan, n: int) -> Generator[int | None, None, Any]:
        """Yield until it is looked up.

        Once those before it are computed, where that is one prompt at a time.

        And once there is memory for it, where it shares the GPU's.
        """
        here = self.here
        self.ready[n] = self.now
        if not self.preset.prefill_in_turn:
            return self.look_up(plan)
        here.queued.append(n)
        if len(here.queued) > 1:
            yield None
        while True:
            while 0 < here.computing_until >= self.now:
                yield here.computing_until + 1 - self.now
            documents, found = self.look_up(plan)
            used = [key for key, tier in documents + found if tier.number == 0]
            needed = (plan.tokens + plan.output // 2) * self.bytes_per_token
            if not here.is_bounded or here.take_memory(
                n, needed, used, self.sizes, self.tiers[0].limit
            ):
                break
            here.is_full = True
            yield None
        if self.now > max(here.computing_until, self.ready[n]) + 1:
            self.ready[n] = self.now
        here.queued.remove(n)
        if here.queued:
            heapq.heappush(self.due, (self.now, *self.asleep.pop(here.queued[0])))
        return documents, found

    def give_memory(self, n: int, node: Node) -> int:
        """Let `n` run no more at `node`; return what it had of its memory."""
        if node.is_full:
            heapq.heappush(self.due, (self.now, *self.asleep.pop(node.queued[0])))
        node.is_full = False
        node.used.pop(n, None)
        return node.held.pop(n, 0)

    def hand_over(self, plan: Plan, n: int, stage: int) -> int:
        """Send what the node that decodes lacks of the prompt to it, over the link.

        Return the stage that follows.
        """
        if not self.preset.fleet.is_disaggregated:
            return stage
        sender = self.here
        taker = min(
            [node for node in self.nodes[self.preset.fleet.prefill_nodes :] if node.is_up],
            key=lambda node: (len(node.prompts), node.turns, node.number),
        )
        taker.prompts[n] = sender.prompts.pop(n)
        taker.served += 1
        taker.turns += 1
        sender.waiting.pop(n, None)
        needed = self.give_memory(n, sender)
        self.enter(taker.number)
        self.answers.catch_up()
        self.enter(sender.number)
        if taker.is_bounded:
            there = [key for key in [*plan.documents, *plan.chain] if key in taker.tiers[0].objects]
            taker.take_memory(n, needed, there, self.sizes, None)
        self.sent[n] = taker.number
        link = Tier.__new__(Tier)
        link.number, link.queue = len(self.tiers), None
        self.order = [*plan.documents, *plan.chain]
        sent = [key for key in dict.fromkeys(self.order) if key not in taker.tiers[0].objects]
        for key in sent:
            self.emit("write", link, "store", key, n, stage)
        self.enter(taker.number)
        for key in sent:
            self.emit("read", link, "load", key, n, stage + 1)
        for key in sent:
            self.emit("delete", link, "evict", key)
        top, is_any = self.tiers[0], False
        for key in sent:
            if not top.takes(self.sizes[key]):
                continue
            if self.preset.placement is Placement.WRITE_BACK:
                self.demote_for(top, key)
            if key not in top.objects and self.evict_for(top, key):
                self.write(top, "promote", key, n, stage + 2)
                self.follow(top, key)
                is_any = True
        return stage + 2 + is_any if sent else stage

    def prefill_ns(self, first: int, end: int) -> int:
        """Return how long the prompt's tokens from `first` on take, before `end`.

        Keys are counted query by query.
        """
        while len(self.attention_fs) <= end:
            query = len(self.attention_fs) - 1
            fs = 0
            for a in self.preset.prefill_attention:
                oldest = (
                    query - query % a.window_tokens if a.is_aligned else query + 1 - a.window_tokens
                )
                fs += a.pair_fs * (query + 1 - max(0, oldest if a.window_tokens else 0))
            self.attention_fs.append(self.attention_fs[-1] + fs)
        attention_ns = self.attention_fs[end] // 10**6 - self.attention_fs[first] // 10**6
        return attention_ns + (end - first) * self.preset.prefill_ns_per_token

    def compute(
        self, plan: Plan, found: list[int], missed: int, n: int, stage: int
    ) -> Generator[int, None, tuple[int, list[int]]]:
        """Compute what is missing and store it, step by step.

        Return the stage that follows, and what is refused.
        """
        p = self.preset
        steps = [missed]
        if p.offer_tokens and not plan.documents:
            steps = [
                min(p.offer_tokens, missed - at) for at in range(0, missed, p.offer_tokens)
            ] or [0]
        loaded = plan.tokens - missed
        ends = [loaded + sum(steps[: k + 1]) for k in range(len(steps))]
        took = wait = self.prefill_ns(loaded, plan.tokens)
        if p.is_batched:
            wait = max(
                wait, self.batch.reading_ns(missed, self.step_bytes(plan.tokens)) if took else 0
            )
        longer, shared = wait - took, took and p.step_tokens
        took += self.batch.begin_prompt(missed, took) if shared else 0
        self.here.computing += took
        if took and p.prefill_in_turn:
            self.here.computing_until = max(self.here.computing_until, self.ready[n]) + took
            wait = self.here.computing_until - self.now + longer
        if shared:
            self.change_batch(is_shared=True)
        yield wait - self.prefill_ns(ends[0], plan.tokens)
        order, parts = self.parts(plan, found, steps)
        refused: list[int] = []
        before = 0
        for k, part in enumerate(parts):
            if 0 < k < len(steps):
                yield self.prefill_ns(ends[k - 1], ends[k])
            self.answers.catch_up()
            self.order = order
            is_known = p.offers_hits or self.generated_hits(plan)
            hits = plan.chain[: plan.end] if self.groups else found
            self.known = set(hits) if order is plan.chain and is_known else set()
            stage, refused, before = self.offer(refused + part, n, stage, before)
            self.known = set()  # of this request alone: others store before its next step
        if plan.documents:
            refused = refused[max(0, len(refused) - (len(plan.chain) - plan.end)) :]
        return stage, refused

    def parts(
        self, plan: Plan, found: list[int], steps: list[int]
    ) -> tuple[list[int], list[list[int]]]:
        """Return the order that objects are in when they are stored, and those that each step
        offers.
        """
        p, mode = self.preset, self.preset.workload.mode
        lost = [key for key in plan.documents if self.fastest(key) is None]
        new = plan.chain[plan.known if p.match is Match.ANY else plan.end :]
        if p.match is Match.ANY:
            prompt = plan.chain[: plan.prompt]
            lost += [
                key
                for key in prompt
                if mode is ServingMode.PREFILL_ONLY or self.fastest(key) is None
            ]
        if plan.documents or (plan.prompt and p.match is Match.ANY):
            order = lost + self.generated_hits(plan) + new
            each = max(1, p.offer_tokens // p.chunk_tokens if p.offer_tokens else len(order))
            return order, [order[at : at + each] for at in range(0, len(order), each)] or [[]]
        ends = [
            min(len(new), sum(steps[: k + 1]) // p.chunk_tokens * self.per_chunk)
            for k in range(len(steps) - 1)
        ] + [len(new)]
        parts = [new[first:end] for first, end in zip([0, *ends], ends, strict=False)]
        hits = found if p.offers_hits else self.generated_hits(plan)
        if self.groups and p.offers_hits:
            hits = [key for key in plan.chain[: plan.end] if self.fastest(key) is not None]
        return plan.chain, [hits + parts[0], *parts[1:]]

    def generated_hits(self, plan: Plan) -> list[int]:
        """Return what was found last and generated by the turn before: it is stored below, too."""
        first, end = plan.generated
        is_stored = self.answers.is_on and self.preset.placement is Placement.WRITE_THROUGH
        return plan.chain[first : plan.end] if is_stored and first < plan.end <= end else []

    def generated_tokens(self, n: int, plan: Plan) -> int:
        """Return how many tokens request `n`, which decodes here, has generated."""
        start, first_step = self.first_steps[n]
        if self.preset.is_batched:
            batch = self.batch
            passed = (self.now - batch.now) * 1024 // batch.step if batch.reads else 0
            return (batch.steps + passed - first_step) // 1024
        per_token = self.preset.decode_ns_per_token
        return (self.now - start) // per_token if per_token else plan.output

    def count_past_miss(self, keys: list[int]) -> None:
        """Count lookups that do not stop at a miss.

        Past what the first tier has, of what no tier between has.
        """
        while keys and keys[0] in self.tiers[0].objects:
            keys = keys[1:]
        for tier in self.tiers:
            if tier.looks_past_miss and not tier.is_gone:
                between = self.tiers[1 : tier.number]
                tier.looked_up += sum(not any(key in t.objects for t in between) for key in keys)

    def offer(
        self, keys: list[int], n: int | None, stage: int, before: int
    ) -> tuple[int, list[int], int]:
        """Store `keys`.

        Return the stage that follows, what is refused, and the number of the offer.

        What the offer `before` brought in, if it is there since, is in flight.
        """
        whole = next((tier for tier in self.tiers if tier.is_whole), None)
        if whole is None or not keys:
            return self.store(keys, n, stage), [], 0
        new = {key for key in keys if key not in whole.objects and whole.takes(self.sizes[key])}
        flying = {key for key, offer in whole.offered.items() if offer == before}
        if not self.evict_together(whole, sum(self.sizes[key] for key in new), flying | set(keys)):
            return self.store(keys, n, stage, closed=whole.number), keys, 0
        whole.offers += 1
        whole.offered |= dict.fromkeys(new, whole.offers)
        return self.store(keys, n, stage), [], whole.offers

    def step_bytes(self, tokens: int) -> int:
        """Return what a decode step reads of the cache of so many `tokens` on one rank."""
        if not self.pieces:
            return tokens * self.bytes_per_token // self.ranks
        return sum(
            min(tokens, piece.window_tokens or tokens) * piece.bytes_per_token
            + 2 * piece.state_bytes
            for piece in self.pieces
        )

    def decode_reads(self, plan: Plan) -> int:
        p, mode = self.preset, self.preset.workload.mode
        has_entry = plan.chain[plan.prompt :] or mode is ServingMode.DECODE_ONLY
        is_long = 0 < p.prefill_only_from_tokens <= plan.new_tokens
        if not p.decode_read_tokens or not has_entry or is_long or mode is ServingMode.PREFILL_ONLY:
            return 0
        return (mode is ServingMode.BOTH) + -(-plan.output // p.decode_read_tokens)

    def decode(self, plan: Plan, n: int, stage: int) -> Generator[int | tuple[int], None, Answer]:
        """Yield waits in ns, or in 1024ths of a step of the batch, in a tuple.

        Return the answer in GPU memory.
        """
        p, mode = self.preset, self.preset.workload.mode
        start, answer = self.now, Answer(plan, n, stage)

        def until(tokens: int) -> int | tuple[int]:
            if not p.is_batched:
                return start + tokens * p.decode_ns_per_token - self.now
            self.batch.advance(self.now)
            return (max(0, first_step + 1024 * tokens - self.batch.steps),)

        def join() -> int:
            if p.is_batched:
                self.change_batch({n: self.step_bytes(plan.tokens + plan.output // 2)})
            self.first_steps[n] = self.now, self.batch.steps
            self.answers.start(answer)
            return self.batch.steps

        first_step = 0 if p.decode_reads_at_once else join()
        for k in range(self.decode_reads(plan)):
            # The first fetches the entry as decoding starts, unless it was loaded; others begin a
            # run of tokens each.
            run = k if mode is ServingMode.DECODE_ONLY else max(0, k - 1)
            if not p.decode_reads_at_once:
                yield until(run * p.decode_read_tokens)
            tier = self.fastest(plan.chain[-1])
            if tier is not None:
                tier.hit(plan.chain[-1], self.sizes[plan.chain[-1]])
                self.use(plan.chain[-1])
                self.emit("read", tier, "decode", plan.chain[-1], n, answer.stage)
                answer.stage += 1
        if p.decode_reads_at_once:
            first_step = join()
        # The prefill gives the first token.
        has_first = p.has_prefill and mode is not ServingMode.DECODE_ONLY
        yield until(max(0, plan.output - has_first))
        self.answers.finish(answer)
        self.change_batch(leaves=n)
        self.give_memory(n, self.here)
        self.answers.free_unfilled(answer)
        return answer

    def change_batch(
        self,
        joins: dict[int, int] | None = None,
        leaves: int | None = None,
        *,
        is_shared: bool = False,
    ) -> None:
        """Let requests join those who decode here, or one leave.

        Or a prompt that shares their steps begin or end.
        """
        if is_shared and not self.preset.step_tokens:
            return
        self.batch.advance(self.now)
        self.batch.reads.update(joins or {})
        self.batch.reads.pop(leaves, None)
        self.batch.change(self.now, self.here.computing_until)

    def store(
        self, keys: list[int], n: int | None, stage: int | None, phase: str = "prefill", closed: int = 99
    ) -> int:  # fmt: skip
        """Write `keys` into the tiers before `closed`; return the stage that follows."""
        if self.preset.placement is Placement.WRITE_BACK:
            return self.store_down(keys, n, stage, phase)
        if self.staging is not None:
            return self.store_staged(
                keys, n, stage, phase, "store" if phase == "prefill" else phase
            )
        return self.store_through(
            keys, n, stage, phase, "store" if phase == "prefill" else phase, closed
        )

    def store_through(
        self, keys: list[int], n: int | None, stage: int | None, first: str, rest: str, closed: int
    ) -> int:  # fmt: skip
        stages = Stages(stage or 0)
        for is_lower in (False, True):
            for key in keys:
                top = next((t.number for t in self.tiers if t.takes(self.sizes[key])), None)
                if top is None:
                    continue
                for tier in self.tiers[top + 1 :] if is_lower else self.tiers[top : top + 1]:
                    if key in tier.objects:
                        if not is_lower and key not in self.known:
                            tier.hit(key, self.sizes[key])
                            self.follow(tier, key)
                            self.use(key)
                    elif (
                        tier.number < closed
                        and self.takes(tier, key, first)
                        and self.evict_for(tier, key)
                    ):
                        at = stages.of(tier, tier.writes_at_once)
                        self.write(
                            tier, rest if is_lower else first, key, n, None if n is None else at
                        )
                        self.follow(tier, key)
            stages.end()
        return stages.at

    def takes(self, tier: Tier, key: int, phase: str) -> bool:
        """Return whether `tier` takes `key`, and admits it unless it is there from the start."""
        size, queue = self.sizes[key], tier.queue
        if not tier.takes(size) or (
            queue is not None and key in [other for other, *_ in queue.waiting]
        ):
            return False
        takes_it = phase == "populate" or tier.admits(key, size, self.now)
        if takes_it and queue is not None:
            queue.offer(key)
        return takes_it and queue is None

    def buffered_writes(self, staging: Tier, keys: list[int]) -> list[int]:
        """Return the first of `keys` that find a buffer to be stored.

        Where room is made at times, all or none.
        """
        if not ns_of(staging.setting.evict_every):
            return self.buffered(keys, set())
        new = sum(self.sizes[key] for key in keys if key not in staging.objects)
        return (
            keys
            if staging.has_buffers(new) and all(staging.takes(self.sizes[key]) for key in keys)
            else []
        )

    def is_stored_nowhere(self, key: int) -> bool:
        """Return whether no tier has `key`; of a hit, none below the fastest."""
        holder = self.fastest(key)
        if key in self.known:
            holder = next((t for t in self.tiers[1:] if key in t.objects and not t.is_gone), None)
        return holder is None

    def store_staged(
        self, keys: list[int], n: int | None, stage: int | None, first: str, rest: str
    ) -> int:
        """As store_through, with buffers of the staging tier for all before any is written."""
        staging, stages = self.staging, Stages(stage or 0)
        assert staging is not None
        if self.preset.skip_held:
            keys = [key for key in keys if self.is_stored_nowhere(key)]
        buffers = self.buffered_writes(staging, keys)
        tops = {
            key: next((t.number for t in self.tiers if t.takes(self.sizes[key])), len(self.tiers))
            for key in keys
        }
        stored = [key for key in buffers if key not in staging.objects]
        for is_lower in (False, True):
            for key in keys:
                targets = (
                    self.tiers[tops[key] + 1 :]
                    if is_lower
                    else self.tiers[tops[key] : tops[key] + 1]
                )
                for tier in (
                    targets if key in buffers else [t for t in targets if t.number < staging.number]
                ):
                    if key not in tier.objects and (
                        tier is staging
                        or (self.takes(tier, key, first) and self.evict_for(tier, key))
                    ):
                        at = stages.of(tier, tier.writes_at_once)
                        self.write(
                            tier, rest if is_lower else first, key, n, None if n is None else at
                        )
                        self.follow(tier, key)
                    elif key in tier.objects and tier is not staging and not tier.is_gone:
                        tier.hit(key, self.sizes[key])
                        self.follow(tier, key)
                        self.use(key)
            stages.end()
        for key in reversed(stored if staging.setting.stores_backwards else []):
            if not staging.counts_at_end:
                staging.policy.hit(key)
        return stages.at

    def staged(self, found: list[tuple[int, Tier]]) -> list[int]:
        """Return what was read below the staging tier and has a buffer there."""
        staging = self.staging
        if staging is None:
            return []
        below = [key for key, tier in found if tier.number > staging.number]
        if ns_of(staging.setting.evict_every):
            return below
        return self.buffered(below, {key for key, tier in found if tier is staging})

    def promote(self, found: list[tuple[int, Tier]], n: int, stage: int, staged: list[int]) -> int:
        """Copy what was found to faster tiers; return the stage that follows."""
        stages = Stages(stage)
        p = self.preset
        for key, tier in found:
            targets = self.tiers[: tier.number][::-1]
            if p.promotion is Promotion.NEVER:
                targets = []
            elif p.promotion is Promotion.TEMPORARY:
                targets = targets[-1:]
            elif p.promotion is Promotion.SECOND_TOUCH and targets:
                targets = targets if key in self.seen else []
                self.seen ^= {key}
            if p.exclusive:
                # It moves to the next tier up that takes it, unless a promotion before it took it
                # out of its tier.
                targets = [t for t in targets if t.takes(self.sizes[key]) and key in tier.objects][
                    :1
                ]
                if targets:
                    self.delete(tier, "promote", key)
            for faster in targets:
                if p.placement is Placement.WRITE_BACK and faster.takes(self.sizes[key]):
                    self.demote_for(faster, key)
                has_buffer = key in staged if faster is self.staging else None
                if key not in faster.objects and (
                    self.evict_for(faster, key) if has_buffer is None else has_buffer
                ):
                    self.write(faster, "promote", key, n, stages.of(faster, faster.writes_at_once))
                    self.follow(faster, key)
        return stages.end()

    def store_down(self, keys: list[int], n: int | None, stage: int | None, phase: str) -> int:
        stages = Stages(stage or 0)
        for key in keys:
            holder, tier = self.fastest(key), None
            if holder is not None and self.preset.exclusive:
                tier = holder if any(t.takes(self.sizes[key]) for t in self.tiers) else None
            else:
                for other in self.tiers:
                    if other.takes(self.sizes[key]) and (
                        other is holder or self.takes(other, key, phase)
                    ):
                        tier = other
                        break
            if tier is None:
                continue
            if holder is tier:
                tier.hit(key, self.sizes[key])
                self.follow(tier, key)
                self.use(key)
            else:
                self.demote_for(tier, key)
                self.write(
                    tier, phase, key, n, None if n is None else stages.of(tier, tier.writes_at_once)
                )
                self.follow(tier, key)
        return stages.end()

    def populate(self) -> None:
        """Store at each node what is there before the start."""
        for node in [node.number for node in self.nodes if node.is_up]:
            self.enter(node)
            for keys in self.populated:
                self.order = keys
                whole = next((tier for tier in self.tiers if tier.is_whole), None)
                new = [
                    key
                    for key in keys
                    if whole and whole.takes(self.sizes[key]) and key not in whole.objects
                ]
                is_taken = whole is None or self.evict_together(
                    whole, sum(self.sizes[k] for k in new), set(keys)
                )
                self.store(keys, None, None, "populate", 99 if is_taken else whole.number)

    def run(self) -> list[Row]:  # noqa: PLR0915 - the order of all that happens, at one glance
        """Return all rows.

        What is due comes before what arrives; what is due together goes by place in flight.
        """
        self.populate()
        # What is moved down for it is there before the start, too.
        self.rows[:] = [
            (*r[:3], r[3] if r[1] == "delete" else "populate", *r[4:]) for r in self.rows
        ]
        coming = sorted((plan.arrival, n) for n, plan in enumerate(self.plans) if not plan.waits)
        answered: dict[int, int] = {}
        in_flight: dict[int, int] = {}
        self.due: list[tuple[int, int, Iterator[int | tuple[int]]]] = []
        self.sent: dict[int, int] = {}
        self.ready: dict[int, int] = {}
        """Since when each could be computed: loads take no time."""
        self.asleep: dict[int, tuple[int, Iterator[Any]]] = {}
        """Requests that wait for the one before them in their node's queue.

        Their places, and the steps to come.
        """
        numbers: dict[int, int] = {}
        self.numbers, self.in_flight = numbers, in_flight
        if self.users is not None:
            self.users.begin()
        idle = list(range(len(self.plans) - 1, -1, -1))
        while self.due or coming or any(node.decoding for node in self.nodes):
            times = [(*self.due[0][:2], self.due)] if self.due else []
            times += [
                (node.batch.time_of(node.decoding[0][0]), node.decoding[0][1], node.decoding)
                for node in self.nodes
                if node.decoding
            ]
            first = min(times, key=lambda of: of[:2], default=None)
            next_ns = min([when for when, *_ in times] + [when for when, _ in coming[:1]])
            if self.outages.due and self.outages.due[0][0] <= next_ns:
                self.now, *_, happen = self.outages.due.pop(0)
                self.catch_up()
                happen()
                continue
            if first is not None and (not coming or first[0] <= coming[0][0]):
                self.now, place, of = first
                steps = heapq.heappop(of)[2]
            else:
                (self.now, n), place = coming.pop(0), idle.pop()
                numbers[place] = len(self.came)
                steps = self.request(self.plans[n], len(self.came))
                self.came.append((n, self.now))
                in_flight[place] = n
                coming = self.followers(coming, n, answered)
            self.catch_up()
            self.enter(self.sent.get(numbers[place], self.node))
            for wait in steps:
                if wait is None:
                    self.asleep[numbers[place]] = place, steps
                    break
                if isinstance(wait, tuple):
                    if wait[0]:
                        heapq.heappush(
                            self.here.decoding, (self.batch.steps + wait[0], place, steps)
                        )
                        break
                elif wait:
                    heapq.heappush(self.due, (self.now + wait, place, steps))
                    break
                # What waits to be stored may be stored between the steps of a request.
                self.catch_up()
                self.enter(self.sent.get(numbers[place], self.node))
            else:
                self.here.end(numbers[place])
                idle.append(place)
                answered[n := in_flight[place]] = self.now
                coming = self.followers(coming, n, answered)
        return self.rows

    def again(self, place: int, n: int) -> Iterator[int | tuple[int]]:
        """Return the steps of request `n`, that at `place`, which begins again."""
        steps = self.request(self.plans[self.in_flight[place]], n)
        return steps if self.users is None else self.users.again(place, steps, n)

    def node_of(self, place: int) -> int | None:
        """Return the node that serves the request at `place`; null if it waits for one."""
        return self.sent.get(self.numbers[place])

    def name(self, keys: list[int]) -> None:
        """Number what is asked for the first time, if numbers go by that."""
        for key in keys if self.is_renumbered else ():
            if key not in self.names:
                self.names[key] = self.numbered
                self.numbered += 1

    def followers(
        self, coming: list[tuple[int, int]], after: int, answered: dict[int, int]
    ) -> list[tuple[int, int]]:
        """Return who is to come, with those that came or were answered by now and had to wait for
        `after` last.
        """
        came = dict(self.came)
        known = {n for _, n in coming} | set(came)
        found = list(coming)
        for n, plan in enumerate(self.plans):
            if n in known or after not in [other for other, _, _ in plan.waits]:
                continue
            times = [
                (came if is_of_start else answered).get(other)
                for other, _, is_of_start in plan.waits
            ]
            if None not in times:
                ready = [
                    time + delay for time, (_, delay, _) in zip(times, plan.waits, strict=True)
                ]
                found.append((max(plan.not_before, *ready), n))
        return sorted(found)
