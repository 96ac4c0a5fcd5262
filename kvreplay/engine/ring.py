"""One io_uring of the kernel's, through three system calls and shared memory: no compiled code.

Layouts and numbers from linux/io_uring.h. Every entry point must be called from the thread that made the ring.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
from pathlib import Path
from typing import Literal, Self

_SETUP, ENTER, _REGISTER = 425, 426, 427
SETUP_SINGLE_ISSUER, SETUP_DEFER_TASKRUN, SETUP_CLAMP = 1 << 12, 1 << 13, 1 << 4
SETUP_COOP_TASKRUN = 1 << 8
_FEAT_SINGLE_MMAP, _FEAT_EXT_ARG, _FEAT_CQE_SKIP = 1 << 0, 1 << 8, 1 << 11
_OFF_SQ_RING, _OFF_SQES = 0, 0x10000000
GETEVENTS, EXT_ARG = 1 << 0, 1 << 3
"""Flags of the call that enters."""
ARGUMENT_BYTES = 24
"""Of the structure that `EXT_ARG` passes."""
_REGISTER_BUFFERS, _REGISTER_FILES2, _REGISTER_IOWQ_MAX_WORKERS = 0, 13, 19
_RSRC_SPARSE = 1 << 0
POLLIN = 1
WOKEN = 6
"""The user data of a completion that tells that a thread woke us."""
FSYNC, READ_FIXED, WRITE_FIXED, POLL_ADD, FALLOCATE, OPENAT, CLOSE = 3, 4, 5, 6, 17, 18, 19
READ, WRITE, FADVISE, UNLINKAT = 22, 23, 24, 36
FIXED_FILE, LINK, HARDLINK, SKIP_SUCCESS = 1 << 0, 1 << 2, 1 << 3, 1 << 6
"""Flags of a request: `SKIP_SUCCESS` posts no completion unless it fails."""
AT_FDCWD = -100
# The last 16 bytes of a request stay as mapped: zero.
_SQE = struct.Struct("=BBHiQQIIQHHI")
_SQE_BYTES, _CQE_BYTES, _PARAMS_BYTES = 64, 16, 120
_TIMESPEC = struct.Struct("=qq")
_NS_PER_S = 10**9
PATH_BYTES = 4096
_DISABLED = Path("/proc/sys/kernel/io_uring_disabled")

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long


class RingRefused(Exception):  # noqa: N818 - what the kernel does, not a fault of the caller
    """The kernel gives no io_uring that we can use; its text is the reason."""


def refusal() -> str | None:
    """Return why the kernel gives no usable io_uring to this process; None if it does."""
    try:
        ring = Ring(8, files=1)
    except RingRefused as refused:
        return str(refused)
    ring.close()
    return None


def _why(code: int) -> str:
    if code == errno.ENOSYS:
        return "the kernel was built without io_uring, or a seccomp filter hides it"
    if code in (errno.EPERM, errno.EACCES):
        try:
            disabled = _DISABLED.read_text(encoding="ascii").strip()
        except OSError:
            disabled = "0"
        if disabled != "0":
            return f"sysctl kernel.io_uring_disabled={disabled} forbids io_uring"
        return "io_uring is not permitted here (a seccomp filter, as containers have)"
    if code == errno.ENOMEM:
        return "the locked-memory limit leaves no room for an io_uring (ulimit -l)"
    return f"io_uring_setup: {os.strerror(code)}"


class Ring:
    """A submission and a completion queue; requests are put, then submitted together."""

    wanted: tuple[int, ...] = (SETUP_SINGLE_ISSUER | SETUP_DEFER_TASKRUN, 0)
    """How to set it up: the first of these that the kernel takes; before 6.1 it refuses the first."""

    def __init__(self, entries: int, files: int) -> None:
        """Make a ring of `entries` requests, a power of two, with `files` places for open files.

        Raises:
            RingRefused: the kernel does not allow or does not know what we need.

        """
        self._maps: list[mmap.mmap] = []
        self._views: list[memoryview] = []
        self.fd, self.flags, params = self._set_up(entries)
        try:
            self._map(params)
            self._register(_REGISTER_FILES2, struct.pack("=IIQQQ", files, _RSRC_SPARSE, 0, 0, 0), 32)
        except OSError as error:
            self.close()
            raise RingRefused(f"this kernel ({os.uname().release}) has no sparse file tables; 5.19 has") from error
        except RingRefused:
            self.close()
            raise

    def _set_up(self, entries: int) -> tuple[int, int, bytes]:
        code = 0
        for flags in self.wanted:
            params = ctypes.create_string_buffer(struct.pack("=III", 0, 0, flags | SETUP_CLAMP), _PARAMS_BYTES)
            fd = _syscall(_SETUP, ctypes.c_uint(entries), params)
            if fd >= 0:
                os.set_inheritable(fd, False)
                return fd, flags, params.raw
            code = ctypes.get_errno()
            if code != errno.EINVAL:
                break
        raise RingRefused(_why(code))

    def _map(self, params: bytes) -> None:
        sq_entries, cq_entries, _flags, _cpu, _idle, features = struct.unpack_from("=IIIIII", params)
        wanted = _FEAT_SINGLE_MMAP | _FEAT_EXT_ARG | _FEAT_CQE_SKIP
        if features & wanted != wanted:
            raise RingRefused(f"this kernel's io_uring ({os.uname().release}) is too old; 5.19 is new enough")
        sq = struct.unpack_from("=IIIIIII", params, 40)
        cq = struct.unpack_from("=IIIIII", params, 80)
        self._rings = self._mapped(max(sq[6] + 4 * sq_entries, cq[5] + _CQE_BYTES * cq_entries), _OFF_SQ_RING)
        self._sqes = self._mapped(_SQE_BYTES * sq_entries, _OFF_SQES)
        words, self.entries = self._view(self._rings, "I"), int(sq_entries)
        self._words, self.sq_head_at, self.sq_tail_at, self.sq_mask = words, sq[0] // 4, sq[1] // 4, sq_entries - 1
        self.cq_head_at, self.cq_tail_at, self.cq_mask = cq[0] // 4, cq[1] // 4, cq_entries - 1
        for index in range(sq_entries):
            words[sq[6] // 4 + index] = index
        self._data = self._view(self._rings, "Q")
        self._results = self._view(self._rings, "i")
        self._cqes = cq[5] // 8
        self.tail: int = words[self.sq_tail_at]
        self.submitted: int = self.tail
        """Requests put and requests submitted since the ring was made."""
        self.head = words[self.cq_head_at]
        """Completions taken."""
        self._paths = mmap.mmap(-1, PATH_BYTES * sq_entries)
        self._maps.append(self._paths)
        self._path_address = address(self._paths)
        self._timeout = mmap.mmap(-1, mmap.PAGESIZE)
        self._maps.append(self._timeout)
        at = address(self._timeout)
        # struct io_uring_getevents_arg at byte 64, pointing to the timespec at byte 0.
        struct.pack_into("=QIIQ", self._timeout, 64, 0, 8, 0, at)
        self.argument_address = at + 64
        """Of the structure that holds the timeout."""
        self._fd_argument, self._argument = ctypes.c_int(self.fd), ctypes.c_void_p(self.argument_address)
        self._argument_bytes = ctypes.c_size_t(ARGUMENT_BYTES)

    def _mapped(self, length: int, offset: int) -> mmap.mmap:
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        self._maps.append(mmap.mmap(self.fd, length, flags=flags, offset=offset))
        return self._maps[-1]

    def _view(self, mapped: mmap.mmap, form: Literal["I", "Q", "i"]) -> memoryview[int]:
        whole = memoryview(mapped)
        view: memoryview[int] = whole[: len(whole) // 8 * 8].cast(form)
        self._views += [whole, view]
        return view

    def _register(self, what: int, argument: object, count: int) -> None:
        if _syscall(_REGISTER, ctypes.c_int(self.fd), ctypes.c_uint(what), argument, ctypes.c_uint(count)) < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def register_buffers(self, places: list[tuple[int, int]]) -> None:
        """Pin buffers at `places` (address, bytes), so that requests can name them by index; OSError if not."""
        flat = [word for place in places for word in place]
        self._register(_REGISTER_BUFFERS, struct.pack(f"={len(flat)}Q", *flat), len(places))

    def allow_workers(self, count: int) -> None:
        """Let the kernel use up to `count` threads for requests that would block."""
        self._register(_REGISTER_IOWQ_MAX_WORKERS, struct.pack("=II", count, count), 2)

    @property
    def room(self) -> int:
        """How many requests can be put before the next `enter`."""
        return self.entries - self.tail + self.submitted

    @property
    def queued(self) -> int:
        """How many requests were put and not submitted."""
        return self.tail - self.submitted

    def put(
        self,
        opcode: int,
        flags: int,
        fd: int,
        offset: int,
        address: int,
        length: int,
        op_flags: int,
        user_data: int,
        buffer: int = 0,
        file: int = 0,
    ) -> None:
        """Put a request; its fields are those of struct io_uring_sqe."""
        at = (self.tail & self.sq_mask) * _SQE_BYTES
        _SQE.pack_into(
            self._sqes, at, opcode, flags, 0, fd, offset, address, length, op_flags, user_data, buffer, 0, file
        )
        self.tail += 1

    def put_path(
        self, opcode: int, flags: int, path: bytes, length: int, op_flags: int, user_data: int, file: int = 0
    ) -> None:
        """Put a request that takes a path, which the kernel copies when it is submitted."""
        at = (self.tail & self.sq_mask) * PATH_BYTES
        self._paths[at : at + len(path) + 1] = path + b"\0"
        self.put(opcode, flags, AT_FDCWD, 0, self._path_address + at, length, op_flags, user_data, 0, file)

    def set_timeout(self, timeout_ns: int) -> None:
        """Say how long a timed wait may take."""
        _TIMESPEC.pack_into(self._timeout, 0, timeout_ns // _NS_PER_S, timeout_ns % _NS_PER_S)

    def arm(self, fd: int) -> None:
        """Let a completion tell when `fd` becomes readable."""
        self.put(POLL_ADD, 0, fd, 0, 0, 0, POLLIN, WOKEN)

    def places(self) -> dict[str, int]:
        """Return by the names of `tables.RING` what stays as it is; what the kernel shares ends with the ring."""
        rings, heads = address(self._rings), (self.sq_head_at, self.sq_tail_at, self.cq_head_at, self.cq_tail_at)
        found = dict(zip(("sq_head", "sq_tail", "cq_head", "cq_tail"), (rings + 4 * at for at in heads), strict=True))
        found |= {"requests": address(self._sqes), "completions": rings + 8 * self._cqes, "paths": self._path_address}
        found |= {"fd": self.fd, "sq_mask": self.sq_mask, "cq_mask": self.cq_mask}
        return found | {"timeout_argument": self.argument_address}

    @property
    def timeout(self) -> int:
        """The address of how long a timed wait may take."""
        return address(self._timeout)

    def enter(self, wait: int, timeout_ns: int | None = None) -> None:
        """Submit what was put; wait for `wait` completions or the time; a signal ends the wait."""
        self._words[self.sq_tail_at] = self.tail & 0xFFFFFFFF
        if timeout_ns is not None:
            self.set_timeout(timeout_ns)
            done = _syscall(
                ENTER,
                self._fd_argument,
                self.tail - self.submitted,
                wait,
                GETEVENTS | EXT_ARG,
                self._argument,
                self._argument_bytes,
            )
        else:
            done = _syscall(ENTER, self._fd_argument, self.tail - self.submitted, wait, GETEVENTS, None, 0)
        if done >= 0:
            self.submitted += done
            return
        code = ctypes.get_errno()
        if code not in (errno.ETIME, errno.EINTR, errno.EAGAIN, errno.EBUSY):
            raise OSError(code, f"io_uring_enter: {os.strerror(code)}")

    def reap(self) -> list[tuple[int, int]]:
        """Return (user data, result) of what has completed."""
        head, tail = self.head, self._words[self.cq_tail_at]
        if head == tail:
            return []
        data, results, base, mask = self._data, self._results, self._cqes, self.cq_mask
        found = []
        while head != tail:
            at = base + 2 * (head & mask)
            found.append((data[at], results[2 * at + 2]))
            head = (head + 1) & 0xFFFFFFFF
        self.head = self._words[self.cq_head_at] = head
        return found

    def close(self) -> None:
        """Give the ring back to the kernel; it waits for nothing that is in flight."""
        for view in reversed(self._views):
            view.release()
        self._views.clear()
        for mapped in self._maps:
            mapped.close()
        self._maps.clear()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def address(mapped: mmap.mmap) -> int:
    """Return where a mapping begins."""
    # The array that exports the buffer goes at once, so that the map can be closed.
    return ctypes.addressof(ctypes.c_char.from_buffer(mapped))
