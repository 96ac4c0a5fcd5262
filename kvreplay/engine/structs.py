"""The structures of replay.h that Python lays out for a job, and how tiers become them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from kvreplay.engine.share import OfTier
from kvreplay.native.rows import DELETE
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


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class DriveStruct(ctypes.Structure):
    """`Drive`."""

    _fields_ = (
        *_fields(ctypes.c_void_p, "space"),
        *_fields(ctypes.c_int64, "base touched_bytes"),
        *_fields(ctypes.c_int32, "fd first_loop loops loop_step"),
    )


class DigitStruct(ctypes.Structure):
    """`Digit`."""

    _fields_ = tuple(_fields(ctypes.c_int32, "at shift of_hash unused"))


class TierStruct(ctypes.Structure):
    """`Tier`."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("lane", ctypes.c_int32 * len(Op)),
        *_fields(ctypes.c_int64, "padding_bytes drives"),
        *_fields(ctypes.c_void_p, "drive drive_of name digit"),
        *_fields(ctypes.c_int64, "name_bytes digits"),
        ("spread", ctypes.c_uint64),
        *_fields(ctypes.c_int32, "read_flags write_flags opened_advice closing_advice"),
        *_fields(ctypes.c_int32, "is_synced is_discarding write_streams unused"),
        ("sink", ctypes.c_void_p),
        *_fields(ctypes.c_int64, "sink_bytes read_bytes_per_s write_bytes_per_s latency_ns occupied_ns"),
    )


class UseStruct(ctypes.Structure):
    """`Use`."""

    _fields_ = (
        *_fields(
            ctypes.c_int64, "enter_ns blocked_ns making_ns copying_ns touching_ns checking_ns asleep_ns waited_ns"
        ),
        *_fields(ctypes.c_int64, "user_ns system_ns minor_faults major_faults ended_ns"),
        *_fields(ctypes.c_int32, "cpu doing"),
    )


class JobStruct(ctypes.Structure):
    """`Job`."""

    _fields_ = (
        *_fields(ctypes.c_void_p, "rows tier data buffers"),
        *_fields(ctypes.c_int64, "io_bytes depth bulk_depth rings copiers registered_bytes"),
        *_fields(ctypes.c_int64, "is_open_loop stops_on_error is_checking start_ns"),
        *_fields(ctypes.c_void_p, "plan use bad"),
        *_fields(ctypes.c_int64, "bad_room is_stopped completed moved_steps in_flight copying"),
        *_fields(ctypes.c_int64, "failed_row failed_errno failed_outcome failed_from_bytes failed_bytes failed_moved"),
        *_fields(ctypes.c_int64, "failed_trace_row failed_op failed_object failed_tier"),
        *_fields(ctypes.c_int64, "bad_blocks checked_blocks unwritten_blocks"),
        ("faults", ctypes.c_int64 * 5),
        *_fields(ctypes.c_int64, "allowed_places most_places in_use_ns held_ns blocked_ns unread_ns reserve_ns"),
        *_fields(ctypes.c_int64, "growing_ns long_writes is_deferred"),
    )


class StepStruct(ctypes.Structure):
    """`Step`, which Python only keeps."""

    _fields_ = (
        ("flight", ctypes.c_void_p),
        *_fields(ctypes.c_int64, "from_bytes bytes result ended_ns"),
        *_fields(ctypes.c_int32, "act place"),
    )


class TaskStruct(ctypes.Structure):
    """`Task`."""

    _fields_ = (
        *_fields(ctypes.c_int64, "act flight row op tier object stream from_bytes bytes"),
        *_fields(ctypes.c_int64, "whole_from_bytes whole_to_bytes needed_to_bytes pieces is_failed"),
        ("buffer", ctypes.c_void_p),
        *_fields(ctypes.c_int64, "version is_answer moved error submitted_ns completed_ns retries"),
        ("step", StepStruct),
    )


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

    def _lay(self, to: TierStruct, of: Native, padding: int, share: OfTier, rings: int, is_placed: bool) -> None:
        to.kind, to.padding_bytes = of.kind, padding
        self._lanes(to, of, rings)
        drives: Any = (DriveStruct * len(of.drives))()
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
            of_name: Any = (DigitStruct * len(digits))(*[DigitStruct(*digit) for digit in digits])
            to.name, to.name_bytes, to.spread = self._at(text), len(name) + 1, SPREAD
            to.digit, to.digits = self._at(of_name), len(digits)
        to.sink, to.sink_bytes = of.sink
        if of.service is not None:
            to.read_bytes_per_s, to.write_bytes_per_s = of.service.read_bytes_per_s, of.service.write_bytes_per_s
            to.latency_ns, to.occupied_ns = of.service.latency_ns, of.service.least_ns

    def _lanes(self, to: TierStruct, of: Native, rings: int) -> None:
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
