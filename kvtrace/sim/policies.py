"""The eviction policies by name.

To add one: a line in `Policy`, and a file of its name in `kvtrace/native/policies/`.

The file has some of these operations, whose names begin with the policy's. They are called for the
tier at `level` only if it has the policy. An operation that is missing is that of fifo (fifo.c),
which goes through one list from the newest to the oldest:

    EXPORT void mru_on_hit(World *world, int64_t level, int64_t slot);  // `slot` was used
    EXPORT void mru_on_insert(World *world, int64_t level, int64_t slot, int64_t now);  // it was written
    EXPORT int64_t mru_choose_victim(World *world, int64_t level, int64_t incoming);  // makes room for it
    EXPORT void mru_on_remove(World *world, int64_t level, int64_t slot, int64_t is_evicted);  // it leaves

A policy that remembers what it evicted (ghosts) also has `forget(slot)`: a slot that is live in no
tier is given to another object. `lists.c` has the lists; World.links and World.notes are what a
policy may keep of each slot. A policy that goes by requests has `on_lookup(named, hit_end)`: a
request named `chain[:named]` and found `chain[:hit_end]`; `admits_offer(live_objects, is_full)`:
whether an offer is stored, of which the tier has so many objects; `on_stored(named,
previous_offer)`: it was; `on_empty(is_end)`: all of the tier is gone.

All policies count bytes, need no clock but TTL, and draw no random numbers. LRU has no file: it is
in lists.c. Compared with libcachesim 0.3.5, the same references give the same hits, objects of any
sizes:

- lru; fifo; clock (one bit); sieve; lfu (a count starts anew with each insertion, ties go to what has had its count
  for longest) are the same.
- s3fifo (10 % small queue, 90 % ghosts, two uses to be moved to the main queue, counts to 3) is the same, except that
  libcachesim refuses objects as large as the small queue, and this puts them in like any other.
- arc is the same for objects of one unit. For others libcachesim still moves its target by max(1, ratio of the ghost
  lists) bytes on a ghost hit, which is next to nothing beside objects of megabytes. This moves it by so many times the
  object's size, so that objects of one size do as in the paper (Megiddo and Modha, FAST 2003), whatever that size.
- ttl: what is written expires `ttl` later, read or not; to make room, what expires first leaves first.

A ghost is forgotten when its slot is given back, that is when nobody can ask for it any more; what
leaves its tier other than by eviction never becomes one.
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
    """Which object a tier evicts to make room; see above."""

    LRU = "lru"
    """The one not used for longest."""
    LFU = "lfu"
    """The one used least often since it was written.

    Of several, the one that has been so for longest.
    """
    FIFO = "fifo"
    """The one written first."""
    CLOCK = "clock"
    """As fifo, but one that was used is spared once for it."""
    S3FIFO = "s3fifo"
    """New ones pass through a tenth of the tier, and stay if used twice there, or asked for again
    soon after.
    """
    SIEVE = "sieve"
    """A hand goes from old to new, over and over, past those used since it last came by."""
    ARC = "arc"
    """Those used once and those used more often share the tier as the misses of either suggest."""
    SAE = "sae"
    """vLLM's session-aware eviction (its pull request 50422).

    What one request stored last of the session that scores least by use and prefix depth; what
    would be a session that scores less is refused. Needs whole_offers.
    """
    TTL = "ttl"
    """The one written first.

    And each is deleted `ttl` after it was written, whatever room there is.
    """

    @property
    def keeps_ghosts(self) -> bool:
        """Whether it remembers what it evicted."""
        return bool(address_of(f"{self}_forget"))

    def addresses(self) -> dict[str, int]:
        """Return where its operations are, by the tier's fields for them; all 0 for LRU."""
        if self is Policy.LRU:
            return dict.fromkeys(_OPERATIONS, 0)
        return {
            name: address_of(f"{self}_{name}") or address_of(f"{Policy.FIFO}_{name}")
            for name in _OPERATIONS
        }
