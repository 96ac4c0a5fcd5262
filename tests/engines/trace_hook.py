"""A hook within an engine that writes our trace with examples/write_trace.py, as the users of
another system would.

For the interpreter of an engine's environment, which has pyarrow besides: the program that drives
the engine makes a `TraceHook` and tells it what the engine does. What comes out is read by our
programs, and held against the recording of the same drive, in test_real_engines.py.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))

PHASES = {"write": "store", "read": "load", "delete": "evict"}


class TraceHook:
    """Collects what an engine does on one tier, as events in the order of time."""

    def __init__(self):
        """Begin at time 0, before the first request."""
        self.request, self._events, self._lock, self._start = (
            -1,
            [],
            threading.Lock(),
            time.monotonic_ns(),
        )
        self._stage, self._is_reading = 0, None

    def begin(self, request):
        """Take what comes for that of `request`, a number."""
        self.request, self._stage, self._is_reading = request, 0, None

    def add(self, op, group, place, length):
        """Note an `op` of `length` bytes that begins now, on the object of a `group` at a `place`.

        A request stores when what it loads is there: each change between reading and the rest
        begins another stage.
        """
        with self._lock:
            if self._is_reading is not None and (op == "read") != self._is_reading:
                self._stage += 1
            self._is_reading = op == "read"
            event = (
                time.monotonic_ns() - self._start,
                op,
                PHASES[op],
                f"{group}-{place}",
                length,
                self.request,
            )
            self._events.append((*event, self._stage))

    def write(self, path, tier):
        """Write the trace of a `tier` to `path`."""
        from write_trace import write_trace

        write_trace(str(path), self._events, tier)


def hook_lmcache_disk(disk, hook, named):
    """Tell `hook` what LMCache's LocalDiskBackend `disk` puts, gets and removes.

    `named` names a file's object.
    """
    write_file, read_file, remove, reading = (
        disk.write_file,
        disk.read_file,
        disk.remove,
        threading.Lock(),
    )

    def write(buffer, path):
        hook.add("write", *named(path), len(buffer))
        write_file(buffer, path)

    def read(key, buffer, path):
        # One at a time, so that who looks on sees them in this order, too.
        with reading:
            hook.add("read", *named(path), len(buffer))
            read_file(key, buffer, path)

    def removed(key, force=True):
        known = disk.dict.get(key)
        if known is not None:
            hook.add("delete", *named(known.path), known.size)
        return remove(key, force=force)

    disk.write_file, disk.read_file, disk.remove = write, read, removed
