"""Where the replays of all ranks meet: when each is prepared, at the instant at which all begin, and at the end."""

from __future__ import annotations

from time import monotonic_ns

import msgspec

from kvreplay.ranks.helper import Instant, Ranks
from kvtrace.core.errors import KvError, RankLost

MARGIN_NS = 100_000_000
"""From the latest rank's soonest start to that of all: for the answer to be back everywhere."""


class Refused(msgspec.Struct, frozen=True):
    """Why a rank cannot be prepared."""

    message: str
    exit_code: int


class Elsewhere(KvError):  # noqa: N818 - an error of another rank
    """Another rank cannot go on; its message and its exit code."""


class Meeting:
    """One replay's meetings with those of the other ranks."""

    def __init__(self, ranks: Ranks) -> None:
        """Meet the others of `ranks`."""
        self._ranks = ranks
        self._is_ready = self._is_agreed = False
        self.is_off = False
        """Whether a rank could not be prepared, so that none begins."""
        self.before = Instant()
        """How our clock stood to rank 0's when all began."""
        self.start_ns: int | None = None
        """By our clock; null if it was never agreed."""
        self.late_ns: int | None = None
        """How much later we began."""

    @property
    def reason(self) -> str | None:
        """Why all are to end now."""
        return self._ranks.reason

    def ready(self, error: KvError | None = None) -> None:
        """Return when all are prepared; `error` says that we cannot be."""
        self._is_ready = True
        mine = b"" if error is None else msgspec.msgpack.encode(Refused(str(error), error.exit_code))
        try:
            told = self._ranks.exchange(mine)
        except RankLost:
            # The reason to end is known by now, and the run ends before its first operation.
            return
        refused = [(rank, data) for rank, data in enumerate(told) if data]
        self.is_off = bool(refused)
        if refused and error is None:
            rank, data = refused[0]
            found = msgspec.msgpack.decode(data, type=Refused)
            elsewhere = Elsewhere(f"rank {rank}: {found.message}")
            elsewhere.exit_code = found.exit_code
            raise elsewhere

    def agree(self, soonest_ns: int | None) -> int:
        """Return when all begin, by our clock; null: we shall not."""
        self._is_agreed = True
        try:
            self.before = self._ranks.clock()
            offset_ns = self.before.offset_ns
            mine = b"" if soonest_ns is None else msgspec.msgpack.encode(soonest_ns - offset_ns)
            told = self._ranks.exchange(mine)
        except RankLost:
            return soonest_ns or monotonic_ns()
        instants = [msgspec.msgpack.decode(data, type=int) for data in told if data]
        margin_ns = MARGIN_NS if self._ranks.count > 1 else 0
        self.start_ns = max(instants, default=monotonic_ns()) + margin_ns + offset_ns
        return self.start_ns

    def begun(self) -> None:
        """Record how late our threads were started; 0 if before the instant on which all agreed: they wait for it."""
        if self.start_ns is not None:
            self.late_ns = max(0, monotonic_ns() - self.start_ns)

    def leave(self, error: KvError | None) -> None:
        """Meet as often as the others do that we have not met with yet; `error` says why."""
        if not self._is_ready:
            if error is not None:
                # Others may be writing for minutes what will not be needed.
                self._ranks.stop(f"an error of rank {self._ranks.rank}: {error}")
            self.ready(error)
        if not self._is_agreed and not self.is_off:
            if error is not None:
                self._ranks.stop(f"an error of rank {self._ranks.rank}: {error}")
            self.agree(None)
