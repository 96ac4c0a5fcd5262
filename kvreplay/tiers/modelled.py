"""Tiers that move no data.

`sim` takes the time of a service model, `null` takes none; every output marks them.

The model is the one by which `kvtrace gen` gives a tier's operations their times; or, of
`sim:drive.json`, what `kvreplay scorecard` measured of a drive. Such a drive file is a matrix of
cells (size x depth x mix): between them times are interpolated on logarithms, and each I/O takes
one of its cell's, by the run's seed (`native/threads.c`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Self

import msgspec
import numpy as np

from kvreplay.plan.row_ring import REPLAY
from kvreplay.tiers.directio import ALIGNMENT
from kvreplay.tiers.tier import Native, Service, Tier, TierKind
from kvtrace import __version__
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.files import read_json
from kvtrace.core.metadata import Metadata
from kvtrace.core.native.library import StructAt, function
from kvtrace.core.native.structs import Structure
from kvtrace.core.run.figures import Distribution
from kvtrace.core.run.run_file import sealed
from kvtrace.core.units import NS_PER_S, parse_bytes, parse_duration_ns

OPTIONS = ("bandwidth", "read_bandwidth", "write_bandwidth", "latency", "concurrency")


def _served(rates: Sequence[int], latency_ns: int, source: str, concurrency: int = 0) -> Service:
    """Return the service that reads and writes at `rates`, in bytes a second."""
    read, write = rates
    return Service(
        read_bytes_per_s=read,
        write_bytes_per_s=write,
        latency_ns=latency_ns,
        concurrency=concurrency,
        source=source,
    )


ASSUMED = {
    "gpu": _served((1_500 * 10**9, 1_500 * 10**9), 10_000, "assumed: copies within HBM3"),
    "cpu": _served((50 * 10**9, 50 * 10**9), 10_000, "assumed: copies over PCIe 5.0 x16"),
}
"""Defaults by tier name, where neither the option nor the trace gives a value."""


class SimulatedTier(Tier):
    """Operations that move nothing: they take the time of `service`, or none without it."""

    engine = "sim"
    is_simulated = True

    def __init__(
        self, name: str, service: Service | None = None, drive: DriveModel | None = None
    ) -> None:
        """Name the tier.

        `service` None is `null`; `drive` takes I/Os instead, as they are issued to a drive.
        """
        self.name, self.service, self._drive = name, service, drive
        self.alignment = 1 if drive is None else ALIGNMENT
        self.target = "null" if service is None else "sim"
        self.has_times = service is not None

    def native(self) -> Native:
        """Return how the engine does its operations."""
        kind = TierKind.NOTHING if self.service is None else TierKind.MODELLED
        matrix = {} if self._drive is None else {"matrix": self._drive.struct.address}
        return Native(kind, fields=matrix, service=self.service)

    def gain(self, each_bytes: float, io_bytes: int, read_share: float, in_flight: float) -> float:
        """Return how much more its model moves with twice as much `in_flight`, I/Os of a drive,
        else operations.
        """
        now, then = (
            self._rate(each_bytes, io_bytes, read_share, so_many)
            for so_many in (in_flight, 2 * in_flight)
        )
        return then / now - 1

    def _rate(self, each_bytes: float, io_bytes: int, read_share: float, in_flight: float) -> float:
        if self._drive is not None:
            return self._drive.at(min(each_bytes, io_bytes), max(1.0, in_flight), read_share)[
                0
            ] * min(1.0, in_flight)
        assert self.service is not None, "null has no model"
        of, rates = self.service, (self.service.read_bytes_per_s, self.service.write_bytes_per_s)
        # In each direction a server has one at a time; the latency comes after it.
        each_ns = (max(of.least_ns, each_bytes * NS_PER_S / rate) for rate in rates)
        busy_ns = [
            share * ns for share, ns in zip((read_share, 1 - read_share), each_ns, strict=True)
        ]
        return min(1 / max(busy_ns), in_flight / (sum(busy_ns) + of.latency_ns))

    def facts(self) -> dict[str, object]:
        """Return that nothing moved, and the model of its times."""
        if self.service is None:
            return {"is_simulated": True, "note": "no data moved: its times are not latencies"}
        note = f"no data moved; its times are a model's: {self.service}"
        return {"is_simulated": True, "service": msgspec.to_builtins(self.service), "note": note}


def service_of(tier: str, options: Mapping[str, str], meta: Metadata, said: str) -> Service:
    """Return the service of the simulated `tier`.

    By its options, else the trace's own model, else what is assumed.

    ConfigError for an option that is none, or no bandwidth for a tier for which none is assumed; it
    quotes `said`.
    """
    for name in options:
        if name not in OPTIONS:
            raise ConfigError(f"{said}: unknown option {name!r}; sim takes {', '.join(OPTIONS)}")
    if options.keys() & {"bandwidth", "read_bandwidth", "write_bandwidth"}:
        return _stated(options, said)
    if options:
        raise ConfigError(f"{said}: name a bandwidth too, such as sim:bandwidth=25GB,latency=10us")
    found = _of_trace(tier, meta) or ASSUMED.get(tier)
    if found is None:
        raise ConfigError(
            f"{said}: the trace models no bandwidths of tier {tier}; name one, such as"
            " sim:bandwidth=7GB,latency=80us"
        )
    return found


def _stated(options: Mapping[str, str], said: str) -> Service:
    both = options.get("bandwidth")
    directions = [options.get(f"{way}_bandwidth", both) for way in ("read", "write")]
    if None in directions:
        raise ConfigError(
            f"{said}: name both read_bandwidth and write_bandwidth, or bandwidth for both"
        )
    try:
        rates = [parse_bytes(text) for text in directions if text is not None]
        latency_ns = parse_duration_ns(options.get("latency", "0"))
        concurrency = int(options.get("concurrency", "0"))
    except ValueError:
        raise ConfigError(f"{said}: concurrency is a whole number") from None
    except ConfigError as error:
        raise ConfigError(f"{said}: {error}") from None
    if min(rates) <= 0 or concurrency < 0:
        raise ConfigError(f"{said}: a bandwidth must be > 0, and concurrency >= 0")
    return _served(rates, latency_ns, "--tier", concurrency)


def _of_trace(tier: str, meta: Metadata) -> Service | None:
    """Return the service model that the trace was simulated with.

    None if it had none for both directions.
    """
    hierarchy = meta.config.get("hierarchy")
    tiers = hierarchy.get("tiers", []) if isinstance(hierarchy, dict) else []
    found: dict[str, Any] = next((t for t in tiers if t.get("name") == tier), {})
    said = [found.get(f"{way}_bandwidth") or 0 for way in ("read", "write")]
    rates = [parse_bytes(rate) if isinstance(rate, str) else rate for rate in said]
    if not all(rates):
        return None
    latency_ns = parse_duration_ns(found["latency"]) if found.get("latency") else 0
    return _served(rates, latency_ns, "the trace's service model", found.get("concurrency") or 0)


# === drive files ======================================================================================================

DRIVE_FILE = "drive.json"
PARTS = (0.0, 0.5, 0.95, 0.99, 0.999, 0.9999, 1.0)
"""Quantiles of a cell's I/O times that are kept, the fastest first."""
_KEPT = ("p50_ns", "p95_ns", "p99_ns", "p99_9_ns", "p99_99_ns", "max_ns")
_HELD, _WORK = len(PARTS), len(PARTS) + 1
_BETWEEN, _BEYOND, _ALONE = 1.0, 1e-3, 1e-6
"""Weights of an estimate for a missing cell: between two known cells, beyond two, beside one."""
_OPS = ("read", "write")
_matrix_at = function(
    "thread_interpolate_matrix", StructAt, int, float, float, float, np.dtype(np.float64)
)


class DriveTimes(Distribution, frozen=True, forbid_unknown_fields=True):
    """How long the I/Os of one direction took in a cell, from submission to completion."""


class DriveCell(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The drive's measurements for one I/O size, one queue depth and one share of reads.

    Unmeasured values are null.
    """

    io_bytes: int
    depth: int
    read_share: float
    operations: int | None = None
    bytes_per_s: float | None = None
    """From the first submission to the last completion."""
    in_flight: float | None = None
    """On average, in that time; less than `depth` by what submission takes."""
    read: DriveTimes | None = None
    """Null where nothing was read."""
    write: DriveTimes | None = None
    reason: str | None = None
    """Why the cell is null."""


class DriveError(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far predictions of cells are off that were held out of a fit to the others.

    |predicted / measured - 1|.
    """

    cells: int
    """Held out: every third."""
    bandwidth_median: float
    bandwidth_greatest: float
    p99_median: float | None
    """Null where no cell had operations enough."""
    p99_greatest: float | None


class DriveFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The measurements of a drive: drive.json."""

    schema_version: int = 1
    program: str = "kvreplay"
    version: str = __version__
    argv: list[str]
    started_utc: str
    kernel: str | None
    device: str | None
    """Null where no block device is seen; then it is not known that a drive did the work."""
    model: str | None
    device_bytes: int | None
    filesystem: str | None
    file_bytes: int
    """Length of the file that was read and written; it was written whole before."""
    cells: list[DriveCell]
    held_out: DriveError | None
    """Null of too few cells."""
    sha256: str | None = None
    """Checksum of all other fields, as `sealed` computes it."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the drive file at `path`.

        TraceError if it is none, is damaged, or knows no reads or no writes.
        """
        misfit = "not a drive file of this version of kvreplay: {}; kvreplay scorecard makes one"
        drive = read_json(path, cls, misfit=misfit)
        if drive.sha256 != sealed(drive).sha256:
            raise TraceError("damaged: its content is not what was written", path=path)
        for op in _OPS:
            if not any(cell.bytes_per_s and getattr(cell, op) for cell in drive.cells):
                raise TraceError(
                    f"no cell of it has {op}s; measure the drive again (kvreplay scorecard)",
                    path=path,
                )
        return drive

    def __str__(self) -> str:
        return (
            f"{self.device or 'no device seen'}, {self.model or 'model not known'}, measured"
            f" {self.started_utc[:10]}"
        )


class DriveModel:
    """A drive's times at any size, depth and mix: those of the cells, and between them."""

    def __init__(self, cells: Sequence[DriveCell]) -> None:
        """Fit the cells that are known; some must have reads, some writes."""
        known = [cell for cell in cells if cell.bytes_per_s]
        shares, sizes, depths = (
            sorted({getattr(cell, name) for cell in known})
            for name in ("read_share", "io_bytes", "depth")
        )
        grid = np.full((2, len(shares), len(sizes), len(depths), len(PARTS) + 2), np.nan)
        for cell in known:
            share, size = shares.index(cell.read_share), sizes.index(cell.io_bytes)
            like = [
                c.bytes_per_s or 0
                for c in known
                if (c.read_share, c.io_bytes) == (cell.read_share, cell.io_bytes)
            ]
            for op, name in enumerate(_OPS):
                if (times := getattr(cell, name)) is not None:
                    held, work_ns = (
                        cell.depth / (cell.in_flight or cell.depth),
                        cell.io_bytes / max(like) * NS_PER_S,
                    )
                    values = [*_log_parts(times), np.log(held), np.log(work_ns)]
                    grid[op, share, size, depths.index(cell.depth)] = values
        for of_op in grid:
            there = [at for at, of_share in enumerate(of_op) if not np.isnan(of_share).all()]
            for at in there:
                _fill(of_op[at], np.log(sizes), np.log(depths))
            for at in set(range(len(shares))) - set(there):
                of_op[at] = of_op[min(there, key=lambda near: abs(shares[near] - shares[at]))]
        axes = {
            "share": np.array(shares, float),
            "size": np.log(sizes),
            "depth": np.log(depths),
            "part": np.array(PARTS),
        }
        counts = {f"{name}s": len(axis) for name, axis in axes.items()}
        self.struct = Structure(REPLAY, "Matrix", cell=np.ascontiguousarray(grid), **axes, **counts)

    def at(
        self, io_bytes: float, depth: float, read_share: float
    ) -> tuple[float, dict[str, float]]:
        """Return bytes a second, and the p99 of reads and of writes in ns, with so many in flight
        all the time.
        """
        mean_ns, p99_ns = 0.0, {}
        for op, share in enumerate((read_share, 1 - read_share)):
            if share > 0:
                slots = np.zeros(len(PARTS) + 2)
                _matrix_at(self.struct, op, read_share, io_bytes, depth, slots)
                mean_ns += share * _mean(slots[:_HELD]) * float(np.exp(slots[_HELD]))
                p99_ns[_OPS[op]] = float(np.exp(slots[PARTS.index(0.99)]))
        return io_bytes * depth * NS_PER_S / mean_ns, p99_ns


def simulated(name: str, options: Mapping[str, str], meta: Metadata, said: str) -> SimulatedTier:
    """Return the tier `name` by its options.

    As a drive file says, else by a service; errors as of `service_of`.
    """
    if "drive" not in options:
        return SimulatedTier(name, service_of(name, options, meta, said))
    if len(options) > 1:
        raise ConfigError(
            f"{said}: a drive file says all of a drive's times; name it alone, as"
            f" sim:{options['drive']}"
        )
    drive = DriveFile.read(Path(options["drive"]))
    rates = [
        max(int(cell.bytes_per_s or 0) for cell in drive.cells if getattr(cell, op)) for op in _OPS
    ]
    least = min((cell.read.mean_ns or 0 for cell in drive.cells if cell.read), default=0)
    source = f"at best: the {len(drive.cells)} cells of a drive file of {drive}"
    return SimulatedTier(name, _served(rates, int(least), source), DriveModel(drive.cells))


def held_out(cells: Sequence[DriveCell]) -> DriveError | None:
    """Fit all known `cells` but every third, and return how far those are predicted off.

    None if it cannot be fitted.

    They lie diagonally: each has neighbours of its size, of its depth and of its mix among the
    others.
    """
    known = [cell for cell in cells if cell.bytes_per_s]
    axes = {
        name: sorted({getattr(cell, name) for cell in known})
        for name in ("read_share", "io_bytes", "depth")
    }
    out = [
        cell
        for cell in known
        if sum(axis.index(getattr(cell, n)) for n, axis in axes.items()) % 3 == 1
    ]
    rest = [cell for cell in known if cell not in out]
    if not out or not all(any(getattr(cell, op) for cell in rest) for op in _OPS):
        return None
    model, rates, tails = DriveModel(rest), [], []
    for cell in out:
        rate, p99_ns = model.at(cell.io_bytes, cell.depth, cell.read_share)
        rates.append(abs(rate / (cell.bytes_per_s or 1) - 1))
        for op, predicted in p99_ns.items():
            times = getattr(cell, op)
            if times is not None and times.p99_ns:
                tails.append(abs(predicted / times.p99_ns - 1))
    return DriveError(
        cells=len(out),
        bandwidth_median=median(rates),
        bandwidth_greatest=max(rates),
        p99_median=median(tails) if tails else None,
        p99_greatest=max(tails, default=None),
    )


def _mean(logs: np.ndarray) -> float:
    """Return the mean of times whose logarithms are `logs` at PARTS, and rise evenly between them."""
    values, steps = np.exp(logs), np.diff(logs)
    is_flat = steps < 1e-9  # noqa: PLR2004 - of logarithms
    between = np.where(is_flat, values[:-1], np.diff(values) / np.where(is_flat, 1.0, steps))
    return float(between @ np.diff(PARTS))


def _log_parts(times: DriveTimes) -> np.ndarray:
    """Return the logarithms of a cell's times at PARTS.

    Those kept, a least one so that their mean is right.

    A percentile of too few operations is taken for the greatest.
    """
    kept = np.array([getattr(times, name) or times.max_ns or 1 for name in _KEPT], float)
    logs = np.maximum.accumulate(np.log(np.maximum(kept, 1.0)))
    of_lower = 2 * (times.mean_ns or 1) - 2 * _mean(np.append(logs[:1], logs)) + kept[0]
    ratios = np.geomspace(0.01, 0.9999, 200)
    ratio = np.interp(of_lower / kept[0], (1 - ratios) / -np.log(ratios), ratios)
    logs = np.append(logs[0] + np.log(ratio), logs)
    scaled: np.ndarray = logs + np.log((times.mean_ns or 1) / _mean(logs))
    return scaled


def _fill(values: np.ndarray, sizes: np.ndarray, depths: np.ndarray) -> None:
    """Estimate the missing cells (size, depth) of `values` along both axes.

    On the line through the two nearest.
    """
    while (missing := np.isnan(values[..., 0])).any():
        before = values.copy()
        for size, depth in np.argwhere(missing):
            parts, weight = np.zeros(values.shape[-1]), 0.0
            for x, line, at in ((sizes, before[:, depth], size), (depths, before[size], depth)):
                on = np.flatnonzero(~np.isnan(line[:, 0]))
                below, above = on[on < at], on[on > at]
                if not len(on):
                    continue
                near = (
                    [*below[-1:], *above[:1]]
                    if len(below) and len(above)
                    else [*on[:2]]
                    if len(above)
                    else [*on[-2:]]
                )
                counts = (
                    _ALONE if len(near) == 1 else _BETWEEN if len(below) and len(above) else _BEYOND
                )
                way = (x[at] - x[near[0]]) / (x[near[1]] - x[near[0]]) if len(near) > 1 else 0.0
                parts += counts * (line[near[0]] + way * (line[near[-1]] - line[near[0]]))
                weight += counts
            if weight:
                values[size, depth] = parts / weight
                values[size, depth, :_HELD] = np.maximum.accumulate(values[size, depth, :_HELD])
