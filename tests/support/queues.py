"""What waits to be stored, and buckets of it, said again in plain Python for the oracle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvtrace.sim.presets.tier import bytes_of, ns_of

if TYPE_CHECKING:
    from oracle import Oracle, Tier


class Queue:
    """What waits for the slowest tier, and the buckets that it has there."""

    def __init__(self, oracle: Oracle, tier: Tier) -> None:
        self.oracle, self.tier, self.setting = oracle, tier, tier.setting
        self.waiting: list[tuple[int, int, int]] = []
        """Keys, since when, and which node offered them."""
        self.dropped: list[int] = []
        self.lost: list[int] = []
        self.beat: int | None = None
        self.busy = self.collected = 0
        self.home: dict[int, tuple[int, int]] = {}
        """Of a key in a bucket: the bucket, and where it begins."""
        self.buckets: dict[int, tuple[list[int], int, int]] = {}
        """Keys that are in a bucket, its bytes, and those of the file beside it, all ranks
        together.
        """

    @property
    def parts(self) -> int:
        return self.oracle.ranks * self.oracle.layers

    def offer(self, key: int) -> None:
        """Let `key` wait, or drop it."""
        size, setting, now = self.oracle.sizes[key], self.setting, self.oracle.now
        is_large = setting.bucket_objects and size // self.parts > (
            bytes_of(setting.bucket_bytes) or 0
        )
        if is_large or len(self.waiting) == setting.store_queue:
            self.dropped.append(size)
            return
        self.waiting.append((key, now, self.oracle.node))
        if ns_of(setting.heartbeat) and self.beat is None:
            self.beat = next(
                t
                for t in range(0, now + 2 * ns_of(setting.heartbeat), ns_of(setting.heartbeat))
                if t > now
            )

    def due(self) -> float:
        if self.tier.is_gone:
            return float("inf")
        if ns_of(self.setting.heartbeat):
            return float("inf") if self.beat is None else self.beat
        return max(self.busy, self.waiting[0][1]) if self.waiting else float("inf")

    def store(self) -> None:
        """Store one object or bucket."""
        if self.setting.bucket_objects:
            self.store_bucket()
        else:
            for key in self.still_there(1, is_of_node=True):
                if self.oracle.evict_for(self.tier, key):
                    rate = self.tier.setting.rates_bytes_per_s[1]
                    if rate:
                        self.busy = (
                            max(self.busy, self.oracle.now) + self.oracle.sizes[key] * 10**9 // rate
                        )
                    self.oracle.write(self.tier, "store", key)
        if not self.waiting:
            self.beat = None

    def still_there(self, count: int, *, is_of_node: bool = False) -> list[int]:
        """Take the first `count` of what waits.

        Return those that the tier above has, at the node that offered each.

        With `is_of_node` that node acts from now on.
        """
        found = []
        for key, _, node in self.waiting[:count]:
            if is_of_node:
                self.oracle.enter(node)
            if key in self.oracle.nodes[node].tiers[self.tier.number - 1].objects:
                found.append(key)
            else:
                self.lost.append(self.oracle.sizes[key])
        self.waiting = self.waiting[count:]
        return found

    def bucketful(self) -> int:
        size, most = 0, bytes_of(self.setting.bucket_bytes) or 0
        for n, (key, *_) in enumerate(self.waiting):
            size += self.oracle.sizes[key] // self.parts
            if size > most:
                return n
            if size == most or n + 1 == self.setting.bucket_objects:
                return n + 1
        return 0

    def store_bucket(self) -> None:
        count = self.bucketful()
        if not count:
            self.beat = None
            return
        keys = self.still_there(count)
        if not keys:
            return
        oracle, setting, parts = self.oracle, self.setting, self.parts
        bucket = -1 - oracle.numbered  # of no other node either
        size = sum(oracle.sizes[key] + parts * setting.bucket_key_bytes for key in keys)
        meta = parts * setting.bucket_meta_bytes * len(keys)
        oracle.sizes[bucket] = size + meta
        if not oracle.evict_for(self.tier, bucket):
            self.dropped += [oracle.sizes[key] for key in keys]
            return
        if setting.bucket_gc is None:
            self.tier.policy.insert(bucket, size + meta)
            if self.tier.ttl_ns is not None:
                self.tier.expires[bucket] = oracle.now + self.tier.ttl_ns
        self.place(bucket, keys, "store")
        for key in keys if setting.bucket_gc is not None else ():
            self.tier.policy.insert(key, oracle.sizes[key])

    def place(self, bucket: int, keys: list[int], phase: str) -> None:
        """Write `keys` as a bucket, which gets the next number."""
        oracle, setting, parts = self.oracle, self.setting, self.parts
        size = sum(oracle.sizes[key] + parts * setting.bucket_key_bytes for key in keys)
        meta = parts * setting.bucket_meta_bytes * len(keys)
        oracle.names[bucket] = oracle.numbered
        oracle.numbered += 2 if meta else 1
        self.buckets[bucket] = keys, size, meta
        at = 0
        for key in keys:
            at += setting.bucket_key_bytes
            self.home[key] = bucket, at
            self.tier.objects[key] = oracle.sizes[key]
            at += oracle.sizes[key] // parts
        self.emit_both("write", phase, bucket)

    def give_up(self, key: int) -> None:
        """Let `key` be dead in its bucket; write what lives of that again if it is too little."""
        oracle, bucket = self.oracle, self.home[key][0]
        keys, size, _ = self.buckets[bucket]
        self.tier.policy.remove(key, is_evicted=True)
        del self.tier.objects[key], self.home[key]
        keys.remove(key)
        live = sum(
            oracle.sizes[other] + self.parts * self.setting.bucket_key_bytes for other in keys
        )
        if live >= self.setting.bucket_gc * size:
            return
        for other in keys:
            oracle.emit("read", self.tier, "collect", other)
        self.emit_both("delete", "evict", bucket)
        del self.buckets[bucket]
        if keys:
            self.place(-(10**9) - len(oracle.rows), keys, "collect")
            new = next(reversed(self.buckets.values()))
            self.collected += new[1] + new[2]

    def delete_bucket(self, bucket: int) -> None:
        self.tier.policy.remove(bucket, is_evicted=True)
        self.tier.expires.pop(bucket, None)
        for key in self.buckets[bucket][0]:
            del self.tier.objects[key], self.home[key]
        self.emit_both("delete", "evict", bucket)
        del self.buckets[bucket]

    def emit_both(self, op: str, phase: str, bucket: int) -> None:
        _, size, meta = self.buckets[bucket]
        self.oracle.emit(op, self.tier, phase, bucket, size=size)
        if meta:
            self.oracle.names["beside"] = self.oracle.names[bucket] + 1
            self.oracle.emit(op, self.tier, phase, "beside", size=meta)

    def used(self) -> int:
        return sum(size + meta for _, size, meta in self.buckets.values())

    def counts(self) -> dict[str, Any]:
        """Return what the simulation's counters say of it."""
        return {
            "dropped_objects": len(self.dropped), "dropped_bytes": sum(self.dropped), "lost_objects": len(self.lost),
            "lost_bytes": sum(self.lost), "waiting_objects": len(self.waiting),
        }  # fmt: skip
