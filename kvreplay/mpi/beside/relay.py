"""The process of a rank that speaks MPI: it passes on what the replay beside it says, and watches whether all live.

MPI itself does not tell of a rank that died or stands still, so all give rank 0 a sign of life twice a second, and it
them. A rank whose replay is gone goes on to answer for it with nothing, so that no other waits for it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from kvreplay.mpi.beside import wire
from kvreplay.mpi.beside.clock import answer_pings, send_pings
from kvtrace.core.app import leave_at_once
from kvtrace.core.errors import RankLost
from kvtrace.core.run.run_file import argv_of

_CONTROL = 7
_BEAT, _STOP, _LOST = b"b", b"s", b"l"
BEAT_S = 0.5
_QUICK_S, _QUICK_FOR_S, _SLOW_S = 0.0003, 0.2, 0.005
"""How long to rest between two looks: at first, for how long so, and then."""
_DEAF_S = 1.0
"""A replay that is silent for less is not worth a word."""
_STOOD_S = 4 * BEAT_S
"""Between two signs of life of our own: who stood still so long himself heard nobody."""
_EXCHANGE, _SYNC, _GONE = 0, 1, 2
"""What a rank is about to do with the others."""


class Relay:
    """The MPI side of one rank."""

    def __init__(self, line: Connection, pid: int, timeout_s: float) -> None:
        """Begin MPI, and speak for the replay with the process id `pid`, through `line`."""
        import mpi4py

        mpi4py.rc.thread_level = "single"
        from mpi4py import MPI

        self._mpi: Any = MPI
        self._comm = MPI.COMM_WORLD
        self._line, self._pid, self._timeout_s = line, pid, timeout_s
        self.rank, self.count = self._comm.rank, self._comm.size
        library = " ".join(MPI.Get_library_version().replace("\n", " ").replace(",", " ").split()[:3]).rstrip("\0")
        wire.send(line, wire.Hello(self.rank, self.count, library))
        self._sent: list[Any] = []
        now = time.monotonic()
        self._heard = dict.fromkeys(range(1, self.count) if self.rank == 0 else [0], now)
        self._beat_at, self._ponged = now, now
        self._deaf_s, self._used = 0.0, 0
        self._code: int | None = None
        """What the replay left with."""
        self._is_gone, self._said_bye = False, False
        self._waiting: wire.FromReplay | None = None
        self.lost: str | None = None
        self.folder: str | None = None
        self._signals: list[str] = []
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda n, _frame: self._signals.append(signal.Signals(n).name))

    def run(self) -> int:
        """Pass on until all are done; return the exit code of the replay."""
        while self.lost is None:
            while self._waiting is None and not self._is_gone and self.lost is None:
                self._serve(_SLOW_S)
            if self.lost is None and self._together():
                break
        while not self._is_gone:
            self._serve(_SLOW_S)
        return 1 if self._code is None else self._code

    def _together(self) -> bool:
        """Do with all ranks what the replays ask for; return whether all are gone."""
        asked, self._waiting = self._waiting, None
        data = asked.data if isinstance(asked, wire.Exchange) else b""
        kind = _GONE if asked is None else _SYNC if isinstance(asked, wire.Sync) else _EXCHANGE
        to_all = int(not isinstance(asked, wire.Exchange) or asked.to_all)
        heads = memoryview(bytearray(24 * self.count)).cast("q")
        mine = memoryview(bytearray(24)).cast("q")
        mine[0], mine[1], mine[2] = kind, len(data), to_all
        if not self._finish(self._comm.Iallgather([mine, self._mpi.INT64_T], [heads, self._mpi.INT64_T])):
            return False
        kinds, sizes = heads.tolist()[::3], heads.tolist()[1::3]
        doing = [k for k in kinds if k != _GONE]
        if not doing:
            return True
        if _SYNC in doing:
            self._sync()
        else:
            is_for_all = all(flag for k, flag in zip(kinds, heads.tolist()[2::3], strict=True) if k != _GONE)
            self._pass_on(data, kinds, sizes, is_for_all=is_for_all)
        return False

    def _pass_on(self, data: bytes, kinds: list[int], sizes: list[int], *, is_for_all: bool) -> None:
        starts = [sum(sizes[:at]) for at in range(self.count)]
        is_taking = is_for_all or self.rank == 0
        found = bytearray(sum(sizes)) if is_taking else bytearray()
        mine = [data, len(data), self._mpi.BYTE]
        into = [found, sizes, starts, self._mpi.BYTE]
        call = (
            self._comm.Iallgatherv(mine, into)
            if is_for_all
            else self._comm.Igatherv(mine, into if is_taking else None, 0)
        )
        if not self._finish(call):
            return
        items = [
            None if kind == _GONE else bytes(found[start : start + size])
            for kind, start, size in zip(kinds, starts, sizes, strict=True)
        ]
        self._tell(wire.Reply(items if is_taking else []))

    def _sync(self) -> None:
        """Compare the clocks, rank after rank."""
        offset, error = 0, 0
        for other in range(1, self.count):
            try:
                if self.rank == 0:
                    send_pings(self._comm, other, self._timeout_s)
                elif self.rank == other:
                    offset, error = answer_pings(self._comm, self._serve_shortly, self._timeout_s)
            except TimeoutError:
                self._lose(f"the silence of rank {other if self.rank == 0 else 0} while clocks were compared")
            if self.lost is not None:
                return
        # From one time that clocks are compared to the next: from when the run begins until it ends.
        deaf_s, self._deaf_s = self._deaf_s, 0.0
        self._tell(wire.Clock(offset, error, int(deaf_s * 1e9)))

    def _serve_shortly(self) -> bool:
        """Do what is due besides; return whether to go on."""
        self._serve(_QUICK_S)
        return self.lost is None

    def _finish(self, call: Any) -> bool:
        """Wait until `call` is done on all ranks; return False if one is lost."""
        quick_until = time.monotonic() + _QUICK_FOR_S
        while not call.Test():
            self._serve(_QUICK_S if time.monotonic() < quick_until else _SLOW_S)
            if self.lost is not None:
                return False
        return True

    def _serve(self, rest_s: float) -> None:
        """Take what the replay and the other ranks say, for so long; give and look for signs of life."""
        if not self._is_gone and self._line.poll(rest_s):
            self._take()
        elif self._is_gone:
            time.sleep(rest_s)
        while self._signals:
            self._tell(wire.Stop(self._signals.pop(0)))
        status = self._mpi.Status()
        while self._comm.Iprobe(self._mpi.ANY_SOURCE, _CONTROL, status):
            said = self._comm.recv(source=status.source, tag=_CONTROL)
            if status.source in self._heard:
                self._heard[status.source] = time.monotonic()
            self._hear(said)
        now = time.monotonic()
        if now - self._beat_at >= BEAT_S:
            stood_s, self._beat_at = now - self._beat_at, now
            if stood_s > _STOOD_S:
                self._ponged += stood_s
                self._heard = {other: heard + stood_s for other, heard in self._heard.items()}
            self._beat(now)

    def _beat(self, now: float) -> None:
        self._sent = [request for request in self._sent if not request.Test()]
        for other, heard in self._heard.items():
            self._sent.append(self._comm.isend((_BEAT, ""), other, _CONTROL))
            if now - heard > self._timeout_s:
                return self._lose(f"the silence of rank {other}, {self._timeout_s:g} s long")
        if self._is_gone:
            return None
        self._tell(wire.Ping())
        if (used := _cpu_ticks(self._pid)) != self._used:
            # It may have no time to answer.
            self._used, self._ponged = used, now
        deaf_s = now - self._ponged
        if deaf_s > _DEAF_S:
            self._deaf_s = max(self._deaf_s, deaf_s)
        if deaf_s > self._timeout_s:
            self._end_all(f"the silence of rank {self.rank}, {self._timeout_s:g} s long")
            os.kill(self._pid, signal.SIGKILL)
        return None

    def _hear(self, said: tuple[bytes, str]) -> None:
        kind, reason = said
        if kind == _STOP:
            self._tell(wire.Stop(reason))
            if self.rank == 0:
                self._say_to_all(_STOP, reason)
        elif kind == _LOST:
            self._give_up(reason)

    def _take(self) -> None:
        """Take one message of the replay."""
        try:
            said = wire.from_replay(self._line)
        except (EOFError, OSError):
            return self._bury()
        # Whatever it says, it lives.
        self._ponged = time.monotonic()
        if isinstance(said, wire.Stop):
            self._end_all(said.reason)
        elif isinstance(said, wire.Folder):
            self.folder = said.path
        elif isinstance(said, wire.Bye):
            self._said_bye = True
        elif not isinstance(said, wire.Pong):
            self._waiting = said
        return None

    def _bury(self) -> None:
        """Note what became of the replay."""
        _, status = os.waitpid(self._pid, 0)
        self._is_gone, self._code = True, os.waitstatus_to_exitcode(status)
        if not self._said_bye:
            how = signal.Signals(-self._code).name if self._code < 0 else f"code {self._code}"
            self._end_all(f"the death of rank {self.rank} ({how})")
            self._code = RankLost.exit_code

    def _end_all(self, reason: str) -> None:
        """End the run on all ranks: rank 0 tells them."""
        self._tell(wire.Stop(reason))
        if self.rank == 0:
            self._say_to_all(_STOP, reason)
        else:
            self._sent.append(self._comm.isend((_STOP, reason), 0, _CONTROL))

    def _say_to_all(self, kind: bytes, reason: str) -> None:
        self._sent += [self._comm.isend((kind, reason), other, _CONTROL) for other in range(1, self.count)]

    def _lose(self, reason: str) -> None:
        """Note that a rank will not be heard any more: no call of MPI's that all take part in can end."""
        if self.rank == 0:
            self._say_to_all(_LOST, reason)
        self._give_up(reason)

    def _give_up(self, reason: str) -> None:
        self.lost = self.lost or reason
        self._tell(wire.Lost(self.lost))

    def _tell(self, message: wire.FromMpi) -> None:
        if self._is_gone:
            return
        try:
            wire.send(self._line, message)
        except OSError:
            self._bury()

    def leave(self, code: int) -> None:
        """End the process; MPI in good order if all ranks are there for that. Rank 0's code speaks for the run.

        What rank 0's replay would have put together, had it lived, is put together now.
        """
        if self.rank == 0 and self._is_gone and not self._said_bye and self.folder is not None:
            subprocess.run(argv_of("kvreplay", "recover", self.folder), check=False)  # noqa: S603 - our own program
        if self.lost is None:
            self._mpi.Finalize()
            leave_at_once(code if self.rank == 0 else 0)
        leave_at_once(code or RankLost.exit_code)


def _cpu_ticks(pid: int) -> int:
    """Return what a process has had of processors so far, in the kernel's ticks."""
    with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - twice a second, of the kernel
        fields = file.read().rpartition(b")")[2].split()
        return int(fields[11]) + int(fields[12])
    return 0
