"""The lines of a fio section that say which operations a stream has, of which sizes, and where they go."""

from __future__ import annotations

import msgspec
import numpy as np

from kvdistill.jobs.random_map import wanted_sizes
from kvdistill.profile.distributions import percentages, split_sizes
from kvdistill.profile.profile import DirectionProfile, IoStream, Law, Places, SizeCount

_WHOLE = 0.9
"""A stretch of this share of the space is all of it."""
_ALIKE_TV = 0.01
_LEAST_BS = 512


def place_lines(stream: IoStream, space: int) -> list[str]:
    """Return what `stream` does and where, on a target of `space` bytes."""
    lines = [f"rw={_pattern(stream)}"]
    if stream.read.ops and stream.write.ops:
        lines.append(f"rwmixread={percentages([stream.read.ops, stream.write.ops])[0]}")
    places = stream.places
    if places is None:
        return [*lines, "# no random_distribution: the source does not say where operations lie", "norandommap=1"]
    if 0 < places.sequential_share < 1 and places.run_ops is None:
        lines.append(f"percentage_random={round(100 * (1 - places.sequential_share))}")
    lines += _region(places, stream, space)
    if places.sequential_share == 1:
        return lines
    if not has_map(stream):
        # With the map, no place comes again before all have come.
        lines.append("norandommap=1")
    least = _least_size(stream)
    if places.align_bytes != least:
        lines.append(f"blockalign={places.align_bytes}")
    if places.law in (Law.ZIPF, Law.PARETO):
        lines.append(f"random_distribution={places.law}:{places.theta:g}")
    elif places.law is Law.ZONES:
        said = [_zones(d, space) for d in (stream.read, stream.write) if d.ops]
        lines.append(f"random_distribution=zoned_abs:{','.join(dict.fromkeys(said))}")
    return lines


def sizes_line(stream: IoStream) -> list[str]:
    """Return the line that says the sizes, and a comment where whole percents lose some."""
    sides = [_asked(d, stream) for d in (stream.read, stream.write) if d.ops]
    if all(len(side.sizes) == 1 for side in sides) and len({side.sizes[0].io_bytes for side in sides}) == 1:
        return [f"bs={sides[0].sizes[0].io_bytes}"]
    if len(sides) == 2 and _unlike(sides[0], sides[1]) <= _ALIKE_TV:  # noqa: PLR2004 - directions
        sides = [_together(sides[0], sides[1])]
    splits = [split_sizes(side) for side in sides]
    said = [str(split) for split in splits]
    lines = [f"bs={splits[0].entries[0][0]}"] if len(splits) == 1 and len(splits[0].entries) == 1 else []
    lines = lines or [f"bssplit={','.join(said)}"]
    lost = max(split.moved_share for split in splits)
    if lost > _ALIKE_TV:
        lines.insert(0, f"# whole percents: {lost:.1%} of I/Os get another size than theirs")
    least = min(size for split in splits for size, _percent in split.entries)
    if any(size % least for split in splits for size, _percent in split.entries):
        lines.append("bs_unaligned=1")
    return lines


def has_map(stream: IoStream) -> bool:
    """Return whether fio's random map draws the places of `stream`: its unit is the smallest size."""
    places = stream.places
    if places is None or places.law is not Law.ONCE or _least_size(stream) != places.align_bytes:
        return False
    return all(s.io_bytes % places.align_bytes == 0 for s in (*stream.read.sizes, *stream.write.sizes))


def _pattern(stream: IoStream) -> str:
    what = "rw" if stream.read.ops and stream.write.ops else "read" if stream.read.ops else "write"
    places = stream.places
    if places is not None and places.sequential_share == 1:
        return what
    run = f":{places.run_ops}" if places is not None and places.run_ops else ""
    return f"rand{what}{run}"


def _region(places: Places, stream: IoStream, space: int) -> list[str]:
    """Return where the stream's stretch of the target begins and how long it is, unless it is all of it."""
    is_hashed = places.law in (Law.ZIPF, Law.PARETO)
    is_all = places.span_bytes >= _WHOLE * space and places.sequential_share < 1 and not is_hashed
    if places.law is Law.ZONES or is_all:
        return []
    size = -(-places.span_bytes // places.align_bytes) * places.align_bytes
    if is_hashed:
        # As many places as the law is over, which its hash depends on.
        size = min(size, space)
        begin = min(places.begin_bytes, space - size) // places.align_bytes * places.align_bytes
        return [*([f"offset={begin}"] if begin else []), f"size={size}"]
    if not has_map(stream) and places.sequential_share < 1:
        # A long operation may begin in the last place.
        size += max(s.io_bytes for s in (*stream.read.sizes, *stream.write.sizes))
    size = min(size, space - places.begin_bytes)
    return [*([f"offset={places.begin_bytes}"] if places.begin_bytes else []), f"size={size}"]


def _zones(direction: DirectionProfile, space: int) -> str:
    zones = [f"{zone.percent}/{zone.span_bytes}" for zone in direction.zones]
    rest = space - sum(zone.span_bytes for zone in direction.zones)
    return ":".join([*zones, *([f"0/{rest}"] if rest else [])])


def _least_size(stream: IoStream) -> int:
    """Return the smallest size that comes often enough to be said."""
    sizes = [size for d in (stream.read, stream.write) if d.ops for size, percent in split_sizes(d).entries if percent]
    return max(_LEAST_BS, min(sizes))


def _asked(direction: DirectionProfile, stream: IoStream) -> DirectionProfile:
    """Return `direction` with the sizes to ask for: where the random map cuts some, not those that come out."""
    places = stream.places
    if len(direction.sizes) == 1 or places is None or not has_map(stream):
        return direction
    blocks = np.array([s.io_bytes // places.align_bytes for s in direction.sizes])
    weights = np.array([s.ops for s in direction.sizes], dtype=np.float64)
    asked = wanted_sizes(blocks, weights, max(1, places.span_bytes // places.align_bytes), stream.ops)
    ops = np.round(asked * direction.ops).astype(int)
    sizes = [SizeCount(s.io_bytes, int(n)) for s, n in zip(direction.sizes, ops, strict=True) if n]
    return msgspec.structs.replace(direction, sizes=sizes, ops=sum(s.ops for s in sizes))


def _unlike(a: DirectionProfile, b: DirectionProfile) -> float:
    shares = [{s.io_bytes: s.ops / d.ops for s in d.sizes} for d in (a, b)]
    return sum(abs(shares[0].get(size, 0) - shares[1].get(size, 0)) for size in shares[0].keys() | shares[1].keys()) / 2


def _together(a: DirectionProfile, b: DirectionProfile) -> DirectionProfile:
    counts: dict[int, int] = {}
    for size in (*a.sizes, *b.sizes):
        counts[size.io_bytes] = counts.get(size.io_bytes, 0) + size.ops
    sizes = [SizeCount(size, ops) for size, ops in sorted(counts.items())]
    return msgspec.structs.replace(a, sizes=sizes, ops=a.ops + b.ops, io_bytes=a.io_bytes + b.io_bytes)
