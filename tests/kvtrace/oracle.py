"""What a hierarchy does, said again in plain Python: slow, obvious, and made without looking at the kernel.

A request is a generator that yields how long it waits; what a tier gives up, evictions.py says.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from evictions import POLICIES

from kvtrace.hierarchy import Entry, Match, Placement, Policy, Preset, Promotion

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.sources import Requests

Row = tuple[int, str, int, str, int, int, int | None, int | None, int]


class Tier:
    def __init__(self, number: int, capacity: int | None, preset: Preset) -> None:
        self.number = number
        self.limit = self.largest = capacity
        if capacity is not None:
            self.limit = int(capacity * preset.tiers[number].high_watermark)
            self.largest = int(capacity * preset.tiers[number].max_object_fraction)
        setting = preset.tiers[number]
        self.objects: dict[int, int] = {}
        self.policy = POLICIES[setting.policy](self.limit)
        self.ttl_ns = setting.ttl_ns if setting.policy is Policy.TTL else None
        self.expires: dict[int, int] = {}

    def takes(self, size: int) -> bool:
        return self.largest is None or size <= self.largest

    def fits(self, size: int) -> bool:
        # An object that it takes may be alone in it.
        return not self.objects or self.limit is None or sum(self.objects.values()) + size <= self.limit


class Oracle:
    def __init__(self, preset: Preset, requests: Requests, bytes_per_token: int, ranks: int) -> None:
        """`bytes_per_token` is of all `ranks` together."""
        self.preset, self.requests, self.ranks = preset, requests, ranks
        self.bytes_per_token = bytes_per_token
        self.tiers = [Tier(i, t.capacity_bytes, preset) for i, t in enumerate(preset.tiers)]
        self.rows: list[Row] = []
        self.now = self.hits = self.lookups = 0
        self.sizes: dict[int, int] = {}
        self.seen: set[int] = set()
        self.chains = self._chains()

    def _chains(self) -> list[list[int]]:
        numbers: dict[object, int] = {}
        chains = []
        r, chunk = self.requests, self.preset.chunk_tokens
        for n in range(len(r)):
            blocks = [int(i) for i in r.block_ids[r.block_offsets[n] : r.block_offsets[n + 1]]]
            tokens = int(r.input_tokens[n])
            if self.preset.entry is Entry.TURN:
                names: list[object] = [("turn", n)] if tokens else []
                size = tokens
            else:
                # A chunk's name: the block that holds its last token, and which chunk of that block it is.
                ends = range(chunk, tokens + 1, chunk)
                names = [(blocks[(end - 1) // r.block_tokens], (end - 1) % r.block_tokens // chunk) for end in ends]
                size = chunk
            chain = [numbers.setdefault(name, len(numbers)) for name in names]
            self.sizes |= dict.fromkeys(chain, size * self.bytes_per_token)
            chains.append(chain)
        return chains

    def emit(self, op: str, tier: Tier, phase: str, key: int, request: int | None = None, stage: int | None = None):
        for rank in range(self.ranks):
            self.rows.append(
                (self.now, op, tier.number, phase, key * self.ranks + rank, self.sizes[key] // self.ranks,
                 request, stage, rank)
            )  # fmt: skip

    def write(self, tier: Tier, phase: str, key: int, request: int | None = None, stage: int | None = None) -> None:
        assert key not in tier.objects
        tier.objects[key] = self.sizes[key]
        tier.policy.insert(key, self.sizes[key])
        if tier.ttl_ns is not None:
            tier.expires[key] = self.now + tier.ttl_ns
        self.emit("write", tier, phase, key, request, stage)

    def delete(self, tier: Tier, phase: str, key: int) -> None:
        del tier.objects[key]
        tier.policy.remove(key, is_evicted=True)
        tier.expires.pop(key, None)
        self.emit("delete", tier, phase, key)

    def read(self, tier: Tier, phase: str, key: int, request: int, stage: int) -> None:
        tier.policy.hit(key)
        self.emit("read", tier, phase, key, request, stage)

    def fastest(self, key: int) -> Tier | None:
        return next((t for t in self.tiers if key in t.objects), None)

    def evict_for(self, tier: Tier, key: int) -> bool:
        """Delete until `key` fits; False if the tier takes no such object."""
        size = self.sizes[key]
        if not tier.takes(size):
            return False
        while not tier.fits(size):
            self.delete(tier, "evict", tier.policy.victim(key, size))
        return True

    def demote_for(self, tier: Tier, key: int) -> None:
        """Move down until `key` fits."""
        while not tier.fits(self.sizes[key]):
            victim = tier.policy.victim(key, self.sizes[key])
            lower = next((t for t in self.tiers[tier.number + 1 :] if t.takes(self.sizes[victim])), None)
            if lower is None or victim in lower.objects:
                self.delete(tier, "evict", victim)
                continue
            self.demote_for(lower, victim)
            self.emit("read", tier, "demote", victim)
            self.write(lower, "demote", victim)
            self.delete(tier, "demote", victim)

    def expire(self) -> None:
        """Delete what expires until now, each at its time."""
        now = self.now
        due = [
            (when, tier.number, order, key)
            for tier in self.tiers
            for order, (key, when) in enumerate(tier.expires.items())
            if when <= now
        ]
        for when, number, _, key in sorted(due):
            self.now = when
            self.delete(self.tiers[number], "evict", key)
        self.now = now

    def request(self, n: int) -> Iterator[int]:
        chain, p = self.chains[n], self.preset
        tokens, output = int(self.requests.input_tokens[n]), int(self.requests.output_tokens[n])
        found: list[tuple[int, Tier]] = []
        if p.match is Match.PREFIX:
            for key in chain:
                tier = self.fastest(key)
                if tier is None:
                    break
                found.append((key, tier))
            self.lookups += len(chain)
        # A turn's own entry is new, and is not looked for.
        self.hits += len(found)
        for key, tier in found:
            self.read(tier, "load", key, n, 0)
        stage = 1 if found else 0
        stage += self.promote(found, n, stage)
        missed = tokens - sum(self.sizes[key] for key, _ in found) // self.bytes_per_token
        yield missed * p.prefill_ns_per_token
        store = self.store_down if p.placement is Placement.WRITE_BACK else self.store_through
        stage = store(chain[len(found) :], n, stage)
        start = self.now
        reads = 0
        if p.decode_read_tokens and chain and not 0 < p.prefill_only_from_tokens <= tokens:
            reads = 1 + -(-output // p.decode_read_tokens)
        for k in range(reads):
            # The first fetches the entry as decoding starts; the others begin a run of tokens each.
            yield start + max(0, k - 1) * p.decode_read_tokens * p.decode_ns_per_token - self.now
            tier = self.fastest(chain[-1])
            if tier is not None:
                self.read(tier, "decode", chain[-1], n, stage)
                stage += 1
        yield start + output * p.decode_ns_per_token - self.now

    def store_through(self, keys: list[int], n: int, stage: int) -> int:
        for is_lower in (False, True):
            is_any = False
            for key in keys:
                top = next((t.number for t in self.tiers if t.takes(self.sizes[key])), None)
                if top is None:
                    continue
                for tier in self.tiers[top + 1 :] if is_lower else self.tiers[top : top + 1]:
                    if key in tier.objects:
                        if not is_lower:
                            tier.policy.hit(key)
                    elif self.evict_for(tier, key):
                        self.write(tier, "store" if is_lower else "prefill", key, n, stage)
                        is_any = True
            stage += is_any
        return stage

    def promote(self, found: list[tuple[int, Tier]], n: int, stage: int) -> bool:
        """Copy what was found to faster tiers; return whether anything was."""
        is_any = False
        for key, tier in found:
            targets = self.tiers[: tier.number][::-1]
            if self.preset.promotion is Promotion.NEVER:
                targets = []
            elif self.preset.promotion is Promotion.TEMPORARY:
                targets = targets[-1:]
            elif self.preset.promotion is Promotion.SECOND_TOUCH and targets:
                targets = targets if key in self.seen else []
                self.seen ^= {key}
            for faster in targets:
                if self.preset.placement is Placement.WRITE_BACK and faster.takes(self.sizes[key]):
                    self.demote_for(faster, key)
                if self.evict_for(faster, key):
                    self.write(faster, "promote", key, n, stage)
                    is_any = True
        return is_any

    def store_down(self, keys: list[int], n: int, stage: int) -> int:
        is_any = False
        for key in keys:
            tier = next((t for t in self.tiers if t.takes(self.sizes[key])), None)
            if tier is not None and key in tier.objects:
                tier.policy.hit(key)
            elif tier is not None:
                self.demote_for(tier, key)
                self.write(tier, "prefill", key, n, stage)
                is_any = True
        return stage + is_any

    def run(self) -> list[Row]:
        """Return all rows. What is due comes before what arrives; what is due together goes by place in flight."""
        arrivals = [int(t) for t in self.requests.arrival_ns]
        due: list[tuple[int, int, Iterator[int]]] = []
        idle = list(range(len(arrivals) - 1, -1, -1))
        n = 0
        while due or n < len(arrivals):
            if due and (n == len(arrivals) or due[0][0] <= arrivals[n]):
                self.now, place, steps = heapq.heappop(due)
            else:
                self.now, place, steps = arrivals[n], idle.pop(), self.request(n)
                n += 1
            self.expire()
            for wait in steps:
                if wait:
                    heapq.heappush(due, (self.now + wait, place, steps))
                    break
            else:
                idle.append(place)
        return self.rows
