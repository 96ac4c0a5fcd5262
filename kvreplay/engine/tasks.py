"""Steps on tiers that are Python's.

Object stores, and files by cuFile. Each is done by one thread.
"""

from __future__ import annotations

import errno
from time import monotonic_ns
from typing import Any

from kvreplay.engine.job import CLOSE, ERASE, MOVE, OPEN, WHOLE, Job
from kvreplay.plan.buffers import Arena
from kvreplay.plan.row_ring import DELETE, WRITE
from kvreplay.tiers.objects import ObjectTier
from kvreplay.tiers.tier import Handle, Tier

Task = Any
"""The struct Task of replay.h: a step of an operation that Python performs."""


class PythonTiers:
    """The tiers of a job that are Python's.

    Called from many threads, each with a task of its own.
    """

    def __init__(self, job: Job, arena: Arena) -> None:
        """Serve the tiers of `job` with data in `arena`."""
        self.start_ns = 0
        """The run's start on the monotonic clock."""
        self.texts: dict[int, str] = {}
        """The error text of each failed row, by its number in the trace."""
        self._tiers, self._arena = job.tiers, arena
        self._handles: dict[int, Handle] = {}

    def perform(self, task: Task) -> None:
        """Perform a task and store its outcome in it."""
        task.error = task.moved = task.retries = 0
        task.submitted_ns = -1
        tier = self._tiers[task.tier]
        assert tier is not None, "planned rows have a tier"
        try:
            self._perform(tier, task)
        except OSError as error:
            task.error = error.errno or errno.EIO
            self.texts.setdefault(task.row, error.strerror or str(error))
        except MemoryError as error:
            task.error = errno.ENOMEM
            self.texts.setdefault(task.row, f"no space: {error}")
        task.completed_ns = monotonic_ns() - self.start_ns
        if isinstance(tier, ObjectTier):
            task.retries = tier.take_retries()
        task.is_answer = 1

    def _perform(self, tier: Tier, task: Task) -> None:
        if task.act in (OPEN, WHOLE, ERASE):
            if task.op == WRITE:
                try:
                    tier.reserve(task.object, task.whole_to_bytes)
                except OSError as error:
                    raise OSError(error.errno or errno.ENOSPC, f"no space: {error}") from None
            if task.act == WHOLE:
                self._stage(tier, task)
            task.submitted_ns = monotonic_ns() - self.start_ns
        if task.op == DELETE:
            tier.delete(task.object)
            return
        if task.act in (OPEN, WHOLE):
            self._handles[task.operation] = self._begin(tier, task)
        # An object of no bytes is a request to a store, too: after its write it is there.
        has_work = task.bytes or (task.act == WHOLE and isinstance(tier, ObjectTier))
        try:
            if task.act in (MOVE, WHOLE) and has_work:
                if task.act == MOVE:
                    self._stage(tier, task)
                self._move(tier, task)
        finally:
            if task.act in (CLOSE, WHOLE):
                self._end(tier, task)

    def _move(self, tier: Tier, task: Task) -> None:
        handle, data = self._handles[task.operation], self._arena.view(task.buffer, task.bytes)
        if task.op == WRITE:
            tier.write(handle, task.from_bytes, data)
            task.moved = task.bytes
        else:
            task.moved = tier.read(handle, task.from_bytes, data)

    def _stage(self, tier: Tier, task: Task) -> None:
        if tier.is_of_gpu and task.op == WRITE and task.bytes:
            tier.stage(self._arena.view(task.buffer, task.bytes))

    def _begin(self, tier: Tier, task: Task) -> Handle:
        if isinstance(tier, ObjectTier):
            byte_range = task.whole_from_bytes, task.whole_to_bytes
            return tier.begin_whole(task.op, task.object, *byte_range, is_split=task.ios > 1)
        return tier.begin(task.op, task.object)

    def _end(self, tier: Tier, task: Task) -> None:
        handle = self._handles.pop(task.operation)
        try:
            if (
                isinstance(tier, ObjectTier)
                and task.act == CLOSE
                and task.op == WRITE
                and not task.is_failed
            ):
                # Until now its data was gathered, which is no work of the tier's.
                task.submitted_ns = monotonic_ns() - self.start_ns
                tier.end_whole(task.op, handle)
        finally:
            tier.end(task.op, handle)
