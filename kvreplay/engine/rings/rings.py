"""The rings of one job: one that the submitting thread enters, or several that threads of their own serve."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from kvreplay.engine import ring as r
from kvreplay.engine.rings.serve import hand_on_to, serve
from kvreplay.engine.rings.share import OfTier, Share
from kvreplay.engine.tables import SERVER
from kvreplay.engine.workers import no_thread
from kvtrace.core.structures import fields_of

_POLLED = np.dtype([("fd", "i4"), ("events", "i2"), ("found", "i2")])
"""struct pollfd."""
_LOOK_AGAIN_S = 2e-5


class ServedRing(r.Ring):
    """A ring for which a thread of its own enters the kernel.

    The kernel has such threads, too (IORING_SETUP_SQPOLL), which do not sleep between requests: two of them beside the
    thread that orders, on two processors, took ten to thirty times the processor time an I/O and moved a fifth.
    """

    wanted = (r.SETUP_COOP_TASKRUN, 0)

    def __init__(self, entries: int, files: int) -> None:
        """Make a ring as `Ring` does; nothing is submitted before it is served."""
        super().__init__(entries, files)
        self._server = np.zeros(1, SERVER)
        self._fields: Any = fields_of(self._server)
        found = super().places()
        self._fields.sq_head, self._fields.sq_tail, self._fields.fd = found["sq_head"], found["sq_tail"], self.fd
        self._bell = self._fields.bell_fd = os.eventfd(0, os.EFD_CLOEXEC)
        self._fields.cpu = -1
        self._thread: threading.Thread | None = None

    def places(self) -> dict[str, int]:
        """Return the same, and where its thread is told of what is put."""
        return super().places() | {"server": int(self._server.ctypes.data)}

    @property
    def cpu(self) -> int | None:
        """On which processor its thread ended; None before."""
        return None if self._fields.cpu < 0 else int(self._fields.cpu)

    @property
    def room(self) -> int:
        """How many requests can be put before the thread has taken more."""
        return self.entries - ((self.tail - self._words[self.sq_head_at]) & 0xFFFFFFFF)

    def enter(self, wait: int, timeout_ns: int | None = None) -> None:
        """Let the thread submit what was put; return when there is room for more. It waits for no completion."""
        assert not wait, "who waits for completions polls all rings"
        assert timeout_ns is None, "the same"
        hand_on_to(int(self._server.ctypes.data), self.tail)
        self.submitted = self.tail
        while self.room < self.entries // 2 and self._thread is not None and self._thread.is_alive():
            time.sleep(_LOOK_AGAIN_S)

    def serve(self, cpus: set[int] | None, died: Callable[[BaseException], None]) -> None:
        """Start the thread, on `cpus` if that is not None; it tells of what ended it."""

        def work() -> None:
            if cpus is not None:
                os.sched_setaffinity(0, cpus)
            room = np.zeros(1, np.int64)
            code = serve(int(self._server.ctypes.data), int(room.ctypes.data))
            if code:
                died(OSError(code, f"io_uring_enter: {os.strerror(code)}"))

        self._thread = threading.Thread(target=work, name="kvreplay ring", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; the kernel cancels what is in flight."""
        if self._thread is not None and self._thread.ident is not None:
            self._fields.is_ending = True
            os.eventfd_write(self._bell, 1)
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        """End the thread, and give the ring back to the kernel."""
        if self.fd >= 0 and hasattr(self, "_bell"):
            self.stop()
            os.close(self._bell)
        super().close()


class Rings:
    """The rings of one job, and what its submitting thread waits on."""

    def __init__(self, rings: Sequence[r.Ring] = (), share: Share | None = None) -> None:
        """Take one ring, several that are served and shared out, or none, where only a descriptor wakes who waits."""
        self.all, self._share = rings, share
        self.is_served = any(isinstance(ring, ServedRing) for ring in rings)
        self._polled, self._timeout = np.zeros(1 + len(rings), _POLLED), np.zeros(2, np.int64)
        self._polled["events"] = r.POLLIN
        self._polled["fd"][1:] = [ring.fd for ring in rings]

    @property
    def queued(self) -> bool:
        """Whether requests were put and not submitted."""
        return any(ring.queued for ring in self.all)

    @property
    def completions(self) -> int:
        """How many completions there can be at once."""
        return sum(ring.cq_mask + 1 for ring in self.all)

    def of(self, tier: int, object_id: int) -> r.Ring:
        """Return the ring by which an object's I/O goes."""
        return self.all[0 if len(self.all) == 1 else self.of_tiers[tier].ring(object_id)]

    def arm(self, fd: int) -> None:
        """Wait for `fd`, too, from now on."""
        self._polled["fd"][0] = fd
        if len(self.all) == 1 and not self.is_served:
            self.all[0].arm(fd)

    def places(self) -> dict[str, int]:
        """Return by the names of `tables.LANES` what is polled, and where it is said for how long."""
        is_one = len(self.all) == 1 and not self.is_served
        timeout = self.all[0].timeout if is_one else int(self._timeout.ctypes.data)
        return {"poll": int(self._polled.ctypes.data), "timeout": timeout}

    def submit(self) -> None:
        """Submit what was put."""
        for ring in self.all:
            ring.enter(0)

    @property
    def of_tiers(self) -> tuple[OfTier, ...]:
        """By tier: by which rings its I/O goes; nothing where there is one."""
        return () if self._share is None else self._share.of_tiers

    def serve(self, died: Callable[[BaseException], None]) -> None:
        """Start the threads that serve, near the drives of their rings; they tell of what ends them."""
        for at, ring in enumerate(self.all):
            if isinstance(ring, ServedRing) and self._share is not None:
                try:
                    ring.serve(self._share.cpus(at), died)
                except RuntimeError as error:
                    raise no_thread(error, len(self.all)) from error

    def stop(self) -> None:
        """End these threads."""
        for ring in self.all:
            if isinstance(ring, ServedRing):
                ring.stop()

    def cpus(self) -> list[int | None]:
        """Return on which processor the thread of each ended; None for one that has none of its own."""
        return [ring.cpu if isinstance(ring, ServedRing) else None for ring in self.all]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for ring in self.all:
            ring.close()
