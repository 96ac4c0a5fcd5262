"""The structures of replay.h that Python lays out for a job, and how tiers become them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from kvreplay.engine.share import OfTier
from kvreplay.native.rows import DELETE, REPLAY
from kvreplay.tiers.layout import SPREAD, name_template
from kvreplay.tiers.tier import Native, Tier, TierKind, native_of
from kvtrace.core.schema import Op

_RINGS_LANE = -2
_NONE = -1
ACTS = ("open", "move", "close", "erase", "whole")
"""By the numbers of replay.h: what a task of Python's is to do."""
OPEN, MOVE, CLOSE, ERASE, WHOLE = range(len(ACTS))
DOINGS = ("starting", "making data", "in the kernel", "waiting", "moving", "in a tier's client", "checking", "ended")
"""By the numbers of replay.h: what a thread is doing."""


Drive, Digit = map(REPLAY.struct, ("Drive", "Digit"))
TierStruct, UseStruct, JobStruct, TaskStruct = map(REPLAY.struct, ("Tier", "Use", "Job", "Task"))


class TierTable:
    """The tiers of a job as C sees them, and what they point to."""

    def __init__(
        self, tiers: Sequence[Tier | None], rings: int, of_tiers: Sequence[OfTier], *, is_placed: bool
    ) -> None:
        """Lay out `tiers`: those on rings go by `of_tiers`; lanes after the rings are the workers' and the copiers'."""
        self._kept: list[Any] = []
        self.structs: Any = (TierStruct * max(1, len(tiers)))()
        self.workers = self.has_copies = False
        """Whether steps go to workers, and to copiers."""
        for at, tier in enumerate(tiers):
            of = of_tiers[at] if at < len(of_tiers) else OfTier()
            native = Native(TierKind.NOTHING) if tier is None else native_of(tier)
            self._lay(self.structs[at], native, 1 if tier is None else tier.alignment, of, rings, is_placed)

    def _at(self, values: Any) -> int:
        """Return the address of a ctypes or NumPy array, which is kept."""
        self._kept.append(values)
        return ctypes.addressof(values) if isinstance(values, ctypes.Array) else int(values.ctypes.data)

    def _lay(self, to: Any, of: Native, padding: int, share: OfTier, rings: int, is_placed: bool) -> None:
        to.kind, to.padding_bytes = of.kind, padding
        self._lanes(to, of, rings)
        drives: Any = (Drive * len(of.drives))()
        for at, (drive, known) in enumerate(zip(drives, of.drives, strict=True)):
            drive.space, drive.base, drive.fd = known.space, known.base, known.fd
            drive.touched_bytes = known.touched_bytes
            one = at if len(share.first) > 1 else 0
            drive.first_loop, drive.loops, drive.loop_step = share.first[one], share.counts[one], share.step
        to.drives, to.drive = len(drives), self._at(drives) if len(drives) else None
        to.drive_of = None if of.drive_of is None else self._at(of.drive_of)
        to.opened_advice, to.closing_advice = (_NONE if a is None else a for a in (of.opened_advice, of.closing_advice))
        to.read_flags, to.write_flags = of.read_flags, of.write_flags
        to.is_synced, to.is_discarding = of.is_synced, of.is_discarding
        to.write_streams = of.write_streams if is_placed else 0
        if of.layout is not None:
            name, digits = name_template(of.layout)
            text = ctypes.create_string_buffer(name)
            of_name: Any = (Digit * len(digits))(*[Digit(*digit) for digit in digits])
            to.name, to.name_bytes, to.spread = self._at(text), len(name) + 1, SPREAD
            to.digit, to.digits = self._at(of_name), len(digits)
        to.sink, to.sink_bytes = of.sink
        if of.service is not None:
            to.read_bytes_per_s, to.write_bytes_per_s = of.service.read_bytes_per_s, of.service.write_bytes_per_s
            to.latency_ns, to.occupied_ns = of.service.latency_ns, of.service.least_ns

    def _lanes(self, to: Any, of: Native, rings: int) -> None:
        """Say whose loops do a tier's reads, writes and deletes."""
        workers, copiers = rings, rings + 1
        lane = 0 if rings else workers
        if of.kind in (TierKind.EXTENTS, TierKind.FILES) and rings:
            lane = _RINGS_LANE
        elif of.kind is TierKind.MEMORY:
            lane = copiers
        elif of.kind in (TierKind.MODELLED, TierKind.PYTHON):
            lane = workers
        to.lane[:] = [lane] * len(Op)
        if of.kind is TierKind.EXTENTS and of.is_discarding:
            to.lane[DELETE] = workers
        self.workers |= workers in to.lane[:]
        self.has_copies |= lane == copiers

    @property
    def address(self) -> int:
        """Of the first."""
        return ctypes.addressof(self.structs)
