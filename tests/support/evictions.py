"""The eviction policies, said again in plain Python.

Slow, obvious, and made without looking at the compiled ones.

A policy is told what is inserted, used and removed, and says which key is to make room for which.
`limit` is in bytes, None without a bound.
"""

# ruff: noqa: ARG002 - every policy is told the same, whether it needs it or not

from __future__ import annotations

from collections.abc import Callable

from kvtrace.curves.stack import policy_uses
from kvtrace.sim.policies import Policy


def policy_hits(*args, **options) -> list[int]:
    """Return the hits of `policy_uses`, which has the same arguments."""
    return [uses.hits for uses in policy_uses(*args, **options)]


class Fifo:
    def __init__(self, limit: int | None) -> None:
        self.limit = 2**62 if limit is None else limit
        self.keys: list[int] = []  # oldest first
        self.sizes: dict[int, int] = {}
        self.used: dict[int, int] = {}

    def insert(self, key: int, size: int) -> None:
        self.keys.append(key)
        self.sizes[key], self.used[key] = size, 0

    def hit(self, key: int) -> None:
        self.used[key] += 1

    def victim(self, incoming: int, size: int) -> int:
        return self.keys[0]

    def remove(self, key: int, *, is_evicted: bool) -> None:
        self.keys.remove(key)


class Lru(Fifo):
    runs: Callable[[int], bool] | None = None
    """Whether a request runs with a key in a GPU's memory.

    It is then used again before it would go.
    """

    def hit(self, key: int) -> None:
        self.keys.remove(key)
        self.keys.append(key)

    def victim(self, incoming: int, size: int) -> int:
        idle = [key for key in self.keys if self.runs is None or not self.runs(key)]
        if idle:
            spared = self.keys.index(idle[0])
            self.keys = self.keys[spared:] + self.keys[:spared]
        return self.keys[0]


class Lfu(Fifo):
    def hit(self, key: int) -> None:
        super().hit(key)
        # Sorting is stable: of those used as often, it is the last.
        self.keys.remove(key)
        self.keys.append(key)

    def victim(self, incoming: int, size: int) -> int:
        return min(self.keys, key=lambda key: self.used[key])


class Clock(Fifo):
    def victim(self, incoming: int, size: int) -> int:
        while self.used[self.keys[0]]:
            spared = self.keys.pop(0)
            self.used[spared] = 0
            self.keys.append(spared)
        return self.keys[0]


class Sieve(Fifo):
    hand: int | None = None

    def victim(self, incoming: int, size: int) -> int:
        at = 0 if self.hand is None else self.keys.index(self.hand)
        while self.used[self.keys[at]]:
            self.used[self.keys[at]] = 0
            at = (at + 1) % len(self.keys)
        self.hand = self.keys[at]
        return self.hand

    def remove(self, key: int, *, is_evicted: bool) -> None:
        if key == self.hand:
            newer = self.keys[self.keys.index(key) + 1 :]
            self.hand = newer[0] if newer else None
        super().remove(key, is_evicted=is_evicted)


class S3Fifo(Fifo):
    """`keys` is the small queue."""

    def __init__(self, limit: int | None) -> None:
        super().__init__(limit)
        self.small_limit = self.limit // 10
        self.ghost_limit = self.limit * 9 // 10
        self.main: list[int] = []
        self.ghosts: list[int] = []
        self.recalled: set[int] = set()
        self.has_evicted = False

    def bytes_of(self, keys: list[int]) -> int:
        return sum(self.sizes[key] for key in keys)

    def recall(self, key: int) -> None:
        if key in self.ghosts:
            self.ghosts.remove(key)
            self.recalled.add(key)

    def insert(self, key: int, size: int) -> None:
        self.recall(key)
        is_full = not self.has_evicted and self.bytes_of(self.keys) >= self.small_limit
        self.sizes[key], self.used[key] = size, 0
        (self.main if key in self.recalled or is_full else self.keys).append(key)
        self.recalled.discard(key)

    def victim(self, incoming: int, size: int) -> int:
        self.recall(incoming)
        self.has_evicted = True
        if self.bytes_of(self.main) <= self.limit - self.small_limit:
            while self.keys and self.used[self.keys[0]] >= 2:
                self.used[self.keys[0]] = 0
                self.main.append(self.keys.pop(0))
            if self.keys:
                return self.keys[0]
        while self.used[self.main[0]]:
            key = self.main.pop(0)
            self.used[key] = min(self.used[key], 3) - 1
            self.main.append(key)
        return self.main[0]

    def remove(self, key: int, *, is_evicted: bool) -> None:
        if key in self.main:
            self.main.remove(key)
            return
        self.keys.remove(key)
        if is_evicted and self.sizes[key] <= self.ghost_limit:
            while self.bytes_of([*self.ghosts, key]) > self.ghost_limit:
                self.ghosts.pop(0)
            self.ghosts.append(key)


class Arc:
    """`are_steps_sized`.

    The target moves by so many times the object's size (ours), not bytes (libcachesim's).
    """

    def __init__(self, limit: int | None, *, are_steps_sized: bool = True) -> None:
        self.limit = 2**62 if limit is None else limit
        self.are_steps_sized = are_steps_sized
        self.t1: list[int] = []
        self.t2: list[int] = []
        self.b1: list[int] = []
        self.b2: list[int] = []
        self.sizes: dict[int, int] = {}
        self.target = 0.0
        self.origin: dict[int, str] = {}
        self.unremembered: set[int] = set()

    def bytes_of(self, *lists: list[int]) -> int:
        return sum(self.sizes[key] for keys in lists for key in keys)

    def recall(self, key: int) -> None:
        in_b1, in_b2 = self.bytes_of(self.b1), self.bytes_of(self.b2)
        unit = self.sizes.get(key, 0) if self.are_steps_sized else 1
        if key in self.b1:
            self.target = min(self.target + unit * max(1.0, in_b2 / in_b1), float(self.limit))
            self.b1.remove(key)
            self.origin[key] = "b1"
        elif key in self.b2:
            self.target = max(self.target - unit * max(1.0, in_b1 / in_b2), 0.0)
            self.b2.remove(key)
            self.origin[key] = "b2"

    def insert(self, key: int, size: int) -> None:
        self.recall(key)
        self.sizes[key] = size
        (self.t2 if self.origin.pop(key, None) else self.t1).append(key)

    def hit(self, key: int) -> None:
        (self.t1 if key in self.t1 else self.t2).remove(key)
        self.t2.append(key)

    def victim(self, incoming: int, size: int) -> int:
        self.recall(incoming)
        origin = self.origin.get(incoming)
        if origin is None:
            if self.bytes_of(self.t1, self.b1) + size > self.limit:
                if self.b1:
                    self.b1.pop(0)
                elif self.t1:
                    self.unremembered.add(self.t1[0])
                    return self.t1[0]
            elif self.b2 and self.bytes_of(self.t1, self.b1, self.t2, self.b2) >= 2 * self.limit:
                self.b2.pop(0)
        in_t1 = self.bytes_of(self.t1)
        from_t1 = in_t1 > self.target or (in_t1 == self.target and origin == "b2")
        return self.t1[0] if not self.t2 or (self.t1 and from_t1) else self.t2[0]

    def remove(self, key: int, *, is_evicted: bool) -> None:
        data, ghosts = (self.t1, self.b1) if key in self.t1 else (self.t2, self.b2)
        data.remove(key)
        if is_evicted and key not in self.unremembered:
            ghosts.append(key)
        self.unremembered.discard(key)


POLICIES = {
    Policy.LRU: Lru, Policy.LFU: Lfu, Policy.FIFO: Fifo, Policy.CLOCK: Clock, Policy.S3FIFO: S3Fifo,
    Policy.SIEVE: Sieve, Policy.ARC: Arc, Policy.TTL: Fifo,
}  # fmt: skip
OF_OBJECTS = tuple(POLICIES)
"""Those that go by objects alone: sae goes by requests."""


def count_hits(policy: Fifo | Arc, references: list[int], sizes: list[int]) -> int:
    """Return the hits of one cache; an object larger than it is not inserted."""
    live: set[int] = set()
    hits = 0
    for key in references:
        if key in live:
            policy.hit(key)
            hits += 1
        elif sizes[key] <= policy.limit:
            while sum(sizes[k] for k in live) + sizes[key] > policy.limit:
                leaving = policy.victim(key, sizes[key])
                policy.remove(leaving, is_evicted=True)
                live.remove(leaving)
            policy.insert(key, sizes[key])
            live.add(key)
    return hits
