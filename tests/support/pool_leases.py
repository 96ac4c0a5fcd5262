"""A pool with read leases above an SSD written by heartbeat, said again in plain Python.

One page is one unit of room. Requests are served one after the other, in no time.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class LeasedPool:
    """Mooncake's DRAM and SSD: leases, pins, refused puts, and buckets of full ones only."""

    limit: int
    """Pages above which it evicts."""
    low: int
    """Pages down to which it evicts."""
    full: int
    """Pages that it may have if it finds none to evict."""
    lease: int
    heartbeat: int
    bucket: int
    now: int = 0
    put: list[tuple[int, int]] = field(default_factory=list)
    """When the leases of pages that were only put ended, and the pages, in order."""
    read: list[tuple[int, int]] = field(default_factory=list)
    """When the leases of pages that were read end, and the pages, in order."""
    queued: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    on_ssd: list[int] = field(default_factory=list)
    carried: int = 0
    beat: int | None = None

    @property
    def pages(self) -> list[int]:
        return [page for _, page in self.put + self.read]

    def grant(self, page: int) -> None:
        """Let the lease of a page begin again."""
        for pages in (self.put, self.read):
            pages[:] = [entry for entry in pages if entry[1] != page]
        self.read.append((self.now + self.lease, page))

    def evict(self, more: int) -> None:
        """Evict down to the low mark, if there is no room for so many more pages."""
        if not self.pages or len(self.pages) + more <= self.limit:
            return
        while self.pages and len(self.pages) + more > self.low:
            firsts = [
                next((end, k, page) for end, page in pages if page not in self.queued)
                for k, pages in enumerate((self.put, self.read))
                if any(page not in self.queued for _, page in pages)
            ]
            victims = [first for first in firsts if first[0] <= self.now]
            if not victims:
                return
            end, k, page = min(victims)
            (self.put, self.read)[k].remove((end, page))

    def store(self, page: int) -> bool:
        """Put a page, and queue it for the SSD; return False if it is refused."""
        self.evict(1)
        if len(self.pages) + 1 > self.full:
            return False
        self.put.append((self.now, page))
        if page not in self.on_ssd:
            self.queued.append(page)
            if self.beat is None:
                self.beat = (self.now // self.heartbeat + 1) * self.heartbeat
        return True

    def retry(self) -> None:
        """Put what waits, in its order, up to the first that is refused again."""
        while self.waiting and (self.waiting[0] in self.pages or self.store(self.waiting[0])):
            self.waiting.pop(0)

    def beats(self) -> None:
        """Write what is queued in full buckets, and let go of what fills none."""
        while self.carried + len(self.queued) >= self.bucket:
            written = self.queued[: self.bucket - self.carried]
            self.queued, self.carried = self.queued[len(written) :], 0
            for page in written:
                self.grant(page)
            self.on_ssd += written
        self.carried, self.queued, self.beat = self.carried + len(self.queued), [], None
        self.evict(0)
        self.retry()

    def catch_up(self, until: int) -> None:
        """Do what is due until then: leases that end come before a heartbeat."""
        while True:
            ends = [end for end, page in self.read if page not in self.queued]
            lease_end = ends[0] if self.waiting and ends else None
            times = [time for time in (lease_end, self.beat) if time is not None]
            if not times or min(times) > until:
                break
            self.now = min(times)
            if lease_end == self.now:
                self.retry()
            else:
                self.beats()
        self.now = until

    def serve(self, now: int, pages: list[int]) -> int:
        """Serve a request at a time; return how many of its first pages it finds."""
        self.catch_up(now)
        hits = 0
        while hits < len(pages) and (pages[hits] in self.pages or pages[hits] in self.on_ssd):
            hits += 1
        # Behind the first miss, looking up is a use as well; of the hits, reading is.
        for page in [*pages[hits:], *pages[:hits]]:
            if page in self.pages:
                self.grant(page)
        self.retry()
        for page in pages[hits:]:
            if page in self.pages:
                self.grant(page)
            elif page not in self.waiting and not self.store(page):
                self.waiting.append(page)
        return hits
