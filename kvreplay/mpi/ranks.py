"""A rank as the replay sees it: which it is, what the others give, why all end, and what time it is at rank 0."""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from time import monotonic_ns

from kvreplay.mpi.beside import wire
from kvtrace.core.errors import RankLost

ORPHANED = "the end of its MPI process, as when the launcher is interrupted or another rank died"


@dataclass(frozen=True, slots=True)
class Instant:
    """How a rank's clock stands to that of rank 0."""

    offset_ns: int = 0
    """Its monotonic clock - rank 0's."""
    error_ns: int = 0
    """How far off that may be: half the shortest round trip."""
    deaf_ns: int = 0
    """The longest that its replay did not answer so far; 0 if never for long."""


def _speak_to_nobody() -> None:
    """Let output go nowhere: the launcher that took it may be gone, and the results are still to be written."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)


class Ranks:
    """A job of one rank, which needs no MPI."""

    rank = 0
    count = 1
    library: str | None = None

    def __init__(self) -> None:
        """Be alone."""
        self.host = socket.gethostname()

    @property
    def reason(self) -> str | None:
        """Why the run ends on all ranks; null while it does not."""
        return None

    @property
    def is_lost(self) -> bool:
        """Whether the others cannot be reached any more."""
        return False

    @property
    def orphaned_ns(self) -> int | None:
        """When, by our clock, the process beside was gone; null while it is there."""
        return None

    def exchange(self, data: bytes, *, to_all: bool = True) -> Sequence[bytes | None]:  # noqa: ARG002 - for several
        """Return what each rank gave, null of one that is gone; with `to_all` false rank 0 alone gets it.

        Raises:
            RankLost: the others cannot be reached any more.

        """
        return [data]

    def clock(self) -> Instant:
        """Return how our clock stands to rank 0's; all ranks ask together."""
        return Instant()

    def stop(self, reason: str) -> None:
        """End the run on all ranks."""

    def note_folder(self, path: str) -> None:
        """Say where what is written lies, for whoever sees to it should we die."""

    def close(self) -> None:
        """Say that we leave."""


class SeveralRanks(Ranks):
    """A job of several ranks, reached through the process beside (`relay`)."""

    def __init__(self, line: Connection) -> None:
        """Speak through `line`, whose other process says who we are."""
        super().__init__()
        self._line = line
        try:
            hello = wire.from_mpi(line)
        except (EOFError, OSError):
            raise RankLost("MPI did not start: mpirun's own messages say why") from None
        assert isinstance(hello, wire.Hello), "it is the first"
        self.rank, self.count, self.library = hello.rank, hello.count, hello.library
        self._answers: queue.SimpleQueue[wire.FromMpi] = queue.SimpleQueue()
        self._reason: str | None = None
        self._lost: str | None = None
        self._orphaned_ns: int | None = None
        self._sending = threading.Lock()
        threading.Thread(target=self._listen, name="kvreplay-ranks", daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                message = wire.from_mpi(self._line)
            except (EOFError, OSError):
                message, self._orphaned_ns = wire.Lost(ORPHANED), monotonic_ns()
                _speak_to_nobody()
            if isinstance(message, wire.Ping):
                self._send(wire.Pong())
            elif isinstance(message, wire.Stop):
                self._reason = self._reason or message.reason
            else:
                if isinstance(message, wire.Lost):
                    self._lost = message.reason
                    self._reason = self._reason or message.reason
                self._answers.put(message)
            if self._lost is not None:
                return

    def _send(self, message: wire.FromReplay) -> None:
        # If the other process is gone, the listener says so.
        with self._sending, suppress(OSError):
            wire.send(self._line, message)

    def _ask(self, message: wire.FromReplay) -> wire.FromMpi:
        if self._lost is None:
            self._send(message)
            answer = self._answers.get()
            if not isinstance(answer, wire.Lost):
                return answer
        raise RankLost(self._lost or ORPHANED)

    @property
    def reason(self) -> str | None:
        """What another rank, or the process beside, said."""
        return self._reason

    @property
    def is_lost(self) -> bool:
        """Whether the process beside said so, or is gone."""
        return self._lost is not None

    @property
    def orphaned_ns(self) -> int | None:
        """When the process beside was gone."""
        return self._orphaned_ns

    def exchange(self, data: bytes, *, to_all: bool = True) -> Sequence[bytes | None]:
        """Let the process beside exchange it."""
        answer = self._ask(wire.Exchange(data, to_all))
        assert isinstance(answer, wire.Reply), "what was asked for"
        return answer.items

    def clock(self) -> Instant:
        """Let the process beside compare the clocks."""
        answer = self._ask(wire.Sync())
        assert isinstance(answer, wire.Clock), "what was asked for"
        return Instant(answer.offset_ns, answer.error_ns, answer.deaf_ns)

    def stop(self, reason: str) -> None:
        """Let the process beside tell the others."""
        self._send(wire.Stop(reason))

    def note_folder(self, path: str) -> None:
        """Tell the process beside."""
        self._send(wire.Folder(path))

    def close(self) -> None:
        """Tell the process beside."""
        self._send(wire.Bye())
