"""LMCache 0.5.6 with save_unfull_chunk=true in plain Python.

How often each request writes, reads and deletes on disk.

Written from its code: the look-up (v1/cache_engine.py:1157, storage_backend/storage_manager.py:972)
asks the pool for the leading run and the disk for what goes on, and makes both the most recent,
last chunk first; what is read from disk takes a buffer of the pool (local_disk_backend.py:502),
which gives up its oldest that the look-up has not pinned until one fits (local_cpu_backend.py:629);
the store takes a buffer for each new chunk until none fits (cache_engine.py:510), and writes
through. A prompt's last chunk is of the tokens that are left (token_database.py:355), and is named
by all tokens before its end.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

ALIGN, CHUNK, BLOCK, TOKEN_BYTES = 4096, 256, 512, 256
Key = tuple[int, int, int]
"""Block, place in it, tokens."""


def prompts(trace: Path, count: int) -> Iterator[list[Key]]:
    """Yield the chunks of each of the first `count` prompts."""
    for line in trace.read_text(encoding="utf-8").splitlines()[:count]:
        row = json.loads(line)
        tokens, ids = row["input_length"], row["hash_ids"]
        starts = range(0, tokens, CHUNK)
        yield [(ids[at // BLOCK], at % BLOCK, min(CHUNK, tokens - at)) for at in starts]


def size_of(key: Key) -> int:
    """Return the bytes that `key` takes in the pool and counts on disk."""
    return -(-key[2] * TOKEN_BYTES // ALIGN) * ALIGN


class Addresses:
    """A pool's memory, first fit in order of address (memory_management.py:1320)."""

    def __init__(self, size: int) -> None:
        self.free: list[tuple[int, int]] = [(0, size)]

    def take(self, size: int) -> int | None:
        """Return where `size` bytes are taken, or None if no gap is as large."""
        for n, (start, room) in enumerate(self.free):
            if room >= size:
                self.free[n : n + 1] = [(start + size, room - size)] * (room > size)
                return start
        return None

    def give(self, start: int, size: int) -> None:
        """Give `size` bytes back; neighbours become one gap."""
        merged: list[tuple[int, int]] = []
        for at, room in sorted([*self.free, (start, size)]):
            if merged and sum(merged[-1]) == at:
                merged[-1] = (merged[-1][0], merged[-1][1] + room)
            else:
                merged.append((at, room))
        self.free = merged


class Amount(Addresses):
    """The same as an amount of bytes, as a preset's pool is.

    All that is free is always in one piece.
    """

    def give(self, start: int, size: int) -> None:
        """Give `size` bytes back, wherever they were: `start` says nothing here."""
        super().give(sum(self.free[-1]) if self.free else start, size)


class Engine:
    """Its two tiers, each a table of chunks, those used last at the end."""

    def __init__(self, memory: Addresses, disk_bytes: int) -> None:
        self.memory, self.disk_bytes = memory, disk_bytes
        self.pool: OrderedDict[Key, int] = OrderedDict()
        self.disk: OrderedDict[Key, int] = OrderedDict()

    def serve(self, keys: list[Key]) -> list[int]:
        """Return how many of its chunks a prompt wrote to disk, and read from there, and how many
        went from it.
        """
        in_pool = next((n for n, key in enumerate(keys) if key not in self.pool), len(keys))
        end = next((n for n in range(in_pool, len(keys)) if keys[n] not in self.disk), len(keys))
        pinned, read, new = keys[:in_pool], keys[in_pool:end], keys[end:]
        for key in reversed(pinned):
            self.pool.move_to_end(key)
        for key in (*reversed(read), *read):
            self.disk.move_to_end(key)
        for key, start in self.buffers(read, set(pinned)):
            self.keep(key, start)
        return [*self.store(new), len(read)]

    def buffers(self, keys: list[Key], pinned: set[Key]) -> list[tuple[Key, int]]:
        """Return those of `keys` that find a buffer, with its place, up to the first that finds
        none.
        """
        found = []
        for key in keys:
            while (start := self.memory.take(size_of(key))) is None:
                oldest = next((k for k in self.pool if k not in pinned), None)
                if oldest is None:
                    return found
                self.memory.give(self.pool.pop(oldest), size_of(oldest))
            found.append((key, start))
        return found

    def keep(self, key: Key, start: int) -> None:
        """Keep `key` in the pool.

        If it is there, behind a gap, it stays as it is and the second buffer goes back.
        """
        if key in self.pool:
            self.memory.give(start, size_of(key))
        else:
            self.pool[key] = start

    def store(self, keys: list[Key]) -> tuple[int, int]:
        """Store `keys`, as far as there are buffers.

        Return how many were written to disk, and deleted there.
        """
        written = deleted = 0
        for key, start in self.buffers(keys, set()):
            self.keep(key, start)
            if key in self.disk:
                self.disk.move_to_end(key)
                continue
            while sum(self.disk.values()) + size_of(key) > self.disk_bytes:
                self.disk.popitem(last=False)
                deleted += 1
            self.disk[key] = size_of(key)
            written += 1
        return written, deleted


def served(trace: Path, count: int, memory: Addresses, disk_bytes: int) -> list[list[int]]:
    """Return of each request how many chunks it wrote to disk, read from there and deleted there."""
    engine = Engine(memory, disk_bytes)
    did = [engine.serve(keys) for keys in prompts(trace, count)]
    return [[written, read, deleted] for written, deleted, read in did]
