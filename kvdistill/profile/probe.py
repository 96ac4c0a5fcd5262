"""Distil the histograms of `kvreplay probe`; what histograms do not tell is null in the profile."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvdistill.profile.profile import DepthProfile, DirectionProfile, Origin, Profile, SizeCount, SourceKind
from kvtrace.core.errors import TraceError
from kvtrace.core.files import read_json
from kvtrace.core.metadata import Count

_NOTES = (
    "requests of the block layer, after splits and merges: not the objects that were asked for",
    (
        "histograms hold no order: no arrivals, places, reuse or phases; blocks.parquet does (probe without "
        "--histograms-only)"
    ),
)


class _Sized(msgspec.Struct, frozen=True):
    bytes: Count
    count: Count


class _InFlight(msgspec.Struct, frozen=True):
    in_flight: Count
    count: Count


class _Times(msgspec.Struct, frozen=True):
    count: Count
    mean_ns: float | None


class _Moved(msgspec.Struct, frozen=True):
    issued: Count
    issued_bytes: Count
    block_sizes: list[_Sized]
    in_flight_at_dispatch: list[_InFlight]
    d2c: _Times
    q2d: _Times = _Times(0, None)


class _Block(msgspec.Struct, frozen=True):
    directions: dict[str, _Moved]


class _Timed(msgspec.Struct, frozen=True):
    duration_ns: Count | None = 0


class _Config(msgspec.Struct, frozen=True):
    devices: list[str] | None = None


class _Probe(msgspec.Struct, frozen=True):
    program: str
    version: str
    config: _Config
    config_sha256: str
    duration_ns: Count
    block: _Block


_NOTHING = _Moved(0, 0, [], [], _Times(0, None))


def distil_probe(path: Path) -> Profile:
    """Return the profile of the probe.json at `path`.

    Raises:
        TraceError: it is none, or holds no reads or writes.

    """
    misfit = "no probe.json of kvreplay probe: {}"
    if read_json(path, _Timed, misfit=misfit).duration_ns is None:
        why = "holds no duration and no exact sizes (bpftrace prints neither), so a job has no rate and no sizes"
        raise TraceError(f"{why}; distil what kvreplay probe or an imported blkparse text holds", path=path)
    probe = read_json(path, _Probe, misfit=misfit)
    of = probe.block.directions
    read, write, discard = (of.get(name, _NOTHING) for name in ("read", "write", "discard"))
    if not read.issued + write.issued:
        raise TraceError("no reads or writes: there is no job to write", path=path)
    devices = probe.config.devices or []
    return Profile(
        origin=Origin(
            kind=SourceKind.PROBE,
            file=path.name,
            program=probe.program,
            version=probe.version,
            config_sha256=probe.config_sha256,
            preset=None,
            seed=None,
            model=None,
            is_simulated=False,
            limit="",
            notes=list(_NOTES),
        ),
        tier=", ".join(devices) or "all disks",
        start_ns=0,
        span_ns=probe.duration_ns,
        read=_direction(read),
        write=_direction(write),
        delete_ops=discard.issued,
        delete_bytes=discard.issued_bytes,
        stray_delete_ops=0,
        empty_ops=0,
        space=None,
        concurrency=None,
        arrivals=None,
        depth=_depth(read, write, probe.duration_ns),
        idle=None,
        locality=None,
        streams=[],
        data=None,
    )


def _direction(moved: _Moved) -> DirectionProfile:
    sizes = [SizeCount(size.bytes, size.count) for size in moved.block_sizes if size.bytes]
    total = sum(size.io_bytes * size.ops for size in sizes)
    return DirectionProfile(
        ops=sum(size.ops for size in sizes), object_bytes=total, io_bytes=total, sizes=sizes, zones=[]
    )


def _total(times: _Times) -> float:
    return (times.mean_ns or 0) * times.count


def _depth(read: _Moved, write: _Moved, duration_ns: int) -> DepthProfile | None:
    """Return the depth by Little's law: mean time queued and in the device times the rate; null where none was seen."""
    busy = [None if m.issued and m.d2c.mean_ns is None else _total(m.d2c) + _total(m.q2d) for m in (read, write)]
    if busy[0] is None or busy[1] is None or not duration_ns:
        return None
    most = max((d.in_flight for m in (read, write) for d in m.in_flight_at_dispatch), default=0)
    return DepthProfile(
        mean=(busy[0] + busy[1]) / duration_ns,
        read_mean=busy[0] / duration_ns,
        write_mean=busy[1] / duration_ns,
        max=most,
        shares=[],
        timed_share=(read.d2c.count + write.d2c.count) / (read.issued + write.issued),
    )
