"""The eviction policies by name.

To add one: a line in `Policy`, and a file of its name in `kvtrace/native/policies/`.

The file implements some of these operations; their names begin with the name of the policy. They
are called for the tier at `level` only if it has the policy. A missing operation is that of fifo
(fifo.c), which keeps one list from the newest object to the oldest:

    EXPORT void mru_on_hit(World *world, int64_t level, int64_t slot);  // `slot` was used
    EXPORT void mru_on_insert(World *world, int64_t level, int64_t slot, int64_t now);  // it was written
    EXPORT int64_t mru_choose_victim(World *world, int64_t level, int64_t incoming);  // makes room for it
    EXPORT void mru_on_remove(World *world, int64_t level, int64_t slot, int64_t is_evicted);  // it leaves

A policy that remembers evicted objects (ghosts) also has `forget(slot)`: a slot that is live in no
tier is reused for another object. `lists.c` has the lists; a policy stores its state of each slot
in World.links and World.notes. A policy that works by requests has more operations:

- `on_lookup(named, hit_end)`: a request named `chain[:named]` and hit `chain[:hit_end]`.
- `admits_offer(live_objects, is_full)`: tells whether an offer is stored, of which the tier already
  has `live_objects` objects.
- `on_stored(named, previous_offer)`: the offer was stored.
- `on_empty(is_end)`: the tier has lost all its objects.

All policies count bytes, need no clock but TTL, and draw no random numbers. LRU has no file: it is
in lists.c. Compared with libcachesim 0.3.5, the same references give the same hits, objects of any
sizes:

- lru, fifo, clock (one bit), sieve and lfu are the same. In lfu, a count restarts with each
  insertion, and of equal counts the one reached first is evicted first.
- s3fifo (10 % small queue, 90 % ghosts, two uses to move to the main queue, counts to 3) is the
  same, except that libcachesim refuses objects as large as the small queue, which are admitted here.
- arc is the same for objects of size 1. For others, libcachesim still moves its target by max(1,
  ratio of the ghost lists) bytes on a ghost hit, which is negligible for objects of megabytes. Here
  the target moves by that many times the object's size. So objects of any one size behave as in the
  paper (Megiddo and Modha, FAST 2003).
- ttl: an object expires `ttl` after it was written, read or not. To make room, the object that
  expires first is evicted first.

A ghost is forgotten when its slot is freed, that is when no request can name its object any more. An
object that leaves its tier by other means than eviction never becomes a ghost.
"""

from __future__ import annotations

from enum import StrEnum

from kvtrace.core.native.library import address_of

_OPERATIONS = (
    "on_hit",
    "on_insert",
    "choose_victim",
    "on_remove",
    "forget",
    "admits_offer",
    "on_lookup",
    "on_stored",
    "on_empty",
)


class Policy(StrEnum):
    """The eviction policy of a tier: it chooses the object that is evicted to make room."""

    LRU = "lru"
    """Least recently used object first."""
    LFU = "lfu"
    """The object used least often since it was written.

    Of equal counts, the one reached first.
    """
    FIFO = "fifo"
    """The object written first."""
    CLOCK = "clock"
    """As fifo, but an object that was used is spared once."""
    S3FIFO = "s3fifo"
    """New objects pass through a tenth of the tier. They stay if used twice there, or requested
    again soon after.
    """
    SIEVE = "sieve"
    """A hand moves from old to new, over and over, and skips objects used since its last pass."""
    ARC = "arc"
    """Objects used once and objects used more often share the tier, in proportions that adapt to the
    misses of either group.
    """
    SAE = "sae"
    """vLLM's session-aware eviction (its pull request 50422).

    It evicts the last stored object of the session that scores lowest by use and prefix depth. An offer
    of a session with an even lower score is refused. It needs whole_offers.
    """
    TTL = "ttl"
    """The object written first. Each object is also deleted `ttl` after it was written.
    """

    @property
    def keeps_ghosts(self) -> bool:
        """Tell whether the policy remembers evicted objects."""
        return bool(address_of(f"{self}_forget"))

    def addresses(self) -> dict[str, int]:
        """Return the addresses of its operations by the fields of a tier record; all 0 for LRU."""
        if self is Policy.LRU:
            return dict.fromkeys(_OPERATIONS, 0)
        return {
            name: address_of(f"{self}_{name}") or address_of(f"{Policy.FIFO}_{name}")
            for name in _OPERATIONS
        }


def lease_addresses() -> dict[str, int]:
    """Return the addresses of the operations of a tier with read leases, as `Policy.addresses`."""
    return {name: address_of(f"lease_{name}") for name in _OPERATIONS}
