"""A thread that enters the kernel for one ring: it submits what another thread has put, and sleeps until there is more.

Completions reach the ring while it sleeps, in the kernel. All functions take the address of a `tables.SERVER`.
"""

from __future__ import annotations

import errno
from typing import Any

import numpy as np
from numba.core import types

from kvreplay.data.copies import fence
from kvreplay.engine import ring as r
from kvreplay.engine.tables import server_at
from kvtrace.core.compiled import holding, inner, int32s, njit, uint32s

_syscall: Any = types.ExternalFunction("syscall", types.int64(*[types.int64] * 7))
_eventfd_write: Any = types.ExternalFunction("eventfd_write", types.int32(types.int32, types.int64))
_read: Any = types.ExternalFunction("read", types.int64(types.int32, types.int64, types.int64))
_sched_getcpu: Any = types.ExternalFunction("sched_getcpu", types.int32())
_errno_at: Any = types.ExternalFunction("__errno_location", types.int64())
_EVENTFD_BYTES = 8
_LOOKS = 300
"""How often it looks whether there is more before it sleeps: about as long as to be put to sleep and woken takes."""


@inner
def hand_on(address: int, tail: int) -> None:
    """Let requests up to `tail` be submitted; wake the thread if it sleeps."""
    server = server_at(address)
    fence()
    uint32s(server.sq_tail)[0] = tail & 0xFFFFFFFF
    fence()
    if server.is_asleep:
        server.is_asleep = 0
        _eventfd_write(server.bell_fd, 1)


@holding
def hand_on_to(address: int, tail: int) -> None:
    """Do what `hand_on` does, for Python."""
    hand_on(address, tail)


@njit
def serve(address: int, room: int) -> int:
    """Submit what is put until `is_ending`; return the error that ended it before, or 0.

    `room` is the address of 8 bytes.
    """
    server, looks = server_at(address), 0
    while True:
        fence()
        queued = np.int64(uint32s(server.sq_tail)[0]) - np.int64(uint32s(server.sq_head)[0]) & 0xFFFFFFFF
        if queued:
            if _syscall(r.ENTER, server.fd, queued, 0, 0, 0, 0) < 0:
                code = int32s(_errno_at())[0]
                if code not in (errno.EINTR, errno.EAGAIN, errno.EBUSY):
                    return code
            looks = 0
            continue
        if server.is_ending:
            server.cpu = _sched_getcpu()
            return 0
        looks += 1
        if looks < _LOOKS:
            continue
        looks = 0
        server.is_asleep = 1
        fence()
        if uint32s(server.sq_tail)[0] == uint32s(server.sq_head)[0] and not server.is_ending:
            _read(server.bell_fd, room, _EVENTFD_BYTES)
        server.is_asleep = 0
