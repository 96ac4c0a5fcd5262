"""What the two processes of a rank say to each other: the one that replays, and the one that speaks MPI.

The replay has a process of its own, in a session of its own, for two reasons. A launcher that loses one rank kills the
others within a quarter of a second (Open MPI) or at once (MPICH), and so would take what they measured; what it kills
here is the process beside, and the replay ends in good order. And an MPI library that polls takes no time from the
threads that submit I/O.
"""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import TypeAlias

import msgspec


class Exchange(msgspec.Struct, tag=True, frozen=True):
    """Replay: give this to all ranks, or to rank 0 alone, and me what they give."""

    data: bytes
    to_all: bool = True


class Sync(msgspec.Struct, tag=True, frozen=True):
    """Replay: compare our clock with that of rank 0; all ranks ask for it together."""


class Stop(msgspec.Struct, tag=True, frozen=True):
    """Replay: my run is cut short, for this reason, so end it everywhere. MPI: end it, for this reason."""

    reason: str


class Folder(msgspec.Struct, tag=True, frozen=True):
    """Replay of rank 0: what is written lies here, should I die."""

    path: str


class Bye(msgspec.Struct, tag=True, frozen=True):
    """Replay: I am done, and leave."""


class Ping(msgspec.Struct, tag=True, frozen=True):
    """MPI: say that you are there."""


class Pong(msgspec.Struct, tag=True, frozen=True):
    """Replay: I am there."""


class Hello(msgspec.Struct, tag=True, frozen=True):
    """MPI: who we are."""

    rank: int
    count: int
    library: str


class Reply(msgspec.Struct, tag=True, frozen=True):
    """MPI: what each rank gave; null of one that is gone."""

    items: list[bytes | None]


class Clock(msgspec.Struct, tag=True, frozen=True):
    """MPI: our monotonic clock - that of rank 0, how far off that may be, and for how long our replay once was deaf."""

    offset_ns: int
    error_ns: int
    deaf_ns: int


class Lost(msgspec.Struct, tag=True, frozen=True):
    """MPI: there will be no answer any more, for this reason."""

    reason: str


FromReplay: TypeAlias = Exchange | Sync | Stop | Folder | Bye | Pong
FromMpi: TypeAlias = Hello | Reply | Clock | Stop | Lost | Ping
_from_replay: msgspec.msgpack.Decoder[FromReplay] = msgspec.msgpack.Decoder(FromReplay)
_from_mpi: msgspec.msgpack.Decoder[FromMpi] = msgspec.msgpack.Decoder(FromMpi)


def send(line: Connection, message: FromReplay | FromMpi) -> None:
    """Send `message`; OSError if the other process is gone."""
    line.send_bytes(msgspec.msgpack.encode(message))


def from_replay(line: Connection) -> FromReplay:
    """Return the next message of the replay; EOFError or OSError if it is gone."""
    return _from_replay.decode(line.recv_bytes())


def from_mpi(line: Connection) -> FromMpi:
    """Return the next message of the process beside; EOFError or OSError if it is gone."""
    return _from_mpi.decode(line.recv_bytes())
