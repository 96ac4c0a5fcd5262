"""Tiers that move no data.

An operation of `sim` takes the time of a service model, one of `null` takes no time. Every output
marks these tiers as simulated.

The model is the one by which `kvtrace gen` times a tier's operations; or, with `sim:drive.json`,
the measurements of a drive by `kvreplay scorecard`. Such a drive file is a matrix of cells (I/O
size x queue depth x read share). Between cells, the logarithms of times are interpolated. The time
of each I/O is sampled from that distribution by the run's seed (`native/threads.c`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np

from kvreplay.plan.row_ring import REPLAY
from kvreplay.tiers.directio import ALIGNMENT
from kvreplay.tiers.tier import Native, Service, Tier, TierKind
from kvtrace.core.errors import ConfigError
from kvtrace.core.metadata import Metadata
from kvtrace.core.native.library import StructAt, function
from kvtrace.core.native.structs import Structure
from kvtrace.core.run.drive_file import OPS, DriveCell, DriveError, DriveFile, DriveTimes
from kvtrace.core.units import NS_PER_S, parse_bytes, parse_duration_ns

OPTIONS = ("bandwidth", "read_bandwidth", "write_bandwidth", "latency", "concurrency")


def _service(rates: Sequence[int], latency_ns: int, source: str, concurrency: int = 0) -> Service:
    """Return the service that reads and writes at `rates`, in bytes per second."""
    read, write = rates
    return Service(
        read_bytes_per_s=read,
        write_bytes_per_s=write,
        latency_ns=latency_ns,
        concurrency=concurrency,
        source=source,
    )


ASSUMED = {
    "gpu": _service((1_500 * 10**9, 1_500 * 10**9), 10_000, "assumed: copies within HBM3"),
    "cpu": _service((50 * 10**9, 50 * 10**9), 10_000, "assumed: copies over PCIe 5.0 x16"),
}
"""Defaults by tier name, if neither the option nor the trace gives a value."""


class SimulatedTier(Tier):
    """A tier that moves no data; its operations take the time of `service`, or none without it."""

    engine = "sim"
    is_simulated = True

    def __init__(
        self,
        name: str,
        service: Service | None = None,
        drive: DriveModel | None = None,
        error: PredictionRanges | None = None,
    ) -> None:
        """Simulate the tier `name`.

        Without `service` its operations take no time (`null`). With `drive`, each I/O takes the
        time of the drive model instead, whose predictions have this `error`.
        """
        self.name, self.service, self._drive = name, service, drive
        self.error = error
        self.alignment = 1 if drive is None else ALIGNMENT
        self.target = "null" if service is None else "sim"
        self.has_times = service is not None

    def native(self) -> Native:
        """Return its description for the C engine."""
        kind = TierKind.NOTHING if self.service is None else TierKind.MODELLED
        matrix = {} if self._drive is None else {"matrix": self._drive.struct.address}
        return Native(kind, fields=matrix, service=self.service)

    def gain(self, mean_bytes: float, io_bytes: int, read_share: float, in_flight: float) -> float:
        """Return the relative gain in throughput of twice the depth, by the model.

        `mean_bytes` is the mean length of an operation. `in_flight` counts I/Os with a drive model,
        else operations.
        """
        rate, doubled_rate = (
            self._rate(mean_bytes, io_bytes, read_share, depth)
            for depth in (in_flight, 2 * in_flight)
        )
        return doubled_rate / rate - 1

    def _rate(self, mean_bytes: float, io_bytes: int, read_share: float, in_flight: float) -> float:
        """Return the model's throughput in a unit that depends on the model only."""
        if self._drive is not None:
            # Below one in flight, the drive is idle for the rest of the time.
            length, depth = min(mean_bytes, io_bytes), max(1.0, in_flight)
            bytes_per_s, _ = self._drive.at(length, depth, read_share)
            return bytes_per_s * min(1.0, in_flight)
        service = self.service
        assert service is not None, "null has no model"
        rates = (service.read_bytes_per_s, service.write_bytes_per_s)
        # Each direction's server serves one operation at a time; the latency follows it.
        served_ns = (max(service.least_ns, mean_bytes * NS_PER_S / rate) for rate in rates)
        busy_ns = [
            share * ns for share, ns in zip((read_share, 1 - read_share), served_ns, strict=True)
        ]
        return min(1 / max(busy_ns), in_flight / (sum(busy_ns) + service.latency_ns))

    def facts(self) -> dict[str, object]:
        """Return the model of its times, and that no data moved."""
        if self.service is None:
            return {"is_simulated": True, "note": "no data moved: its times are not latencies"}
        note = f"no data moved; its times are a model's: {self.service}"
        return {"is_simulated": True, "service": msgspec.to_builtins(self.service), "note": note}


def service_of(tier: str, options: Mapping[str, str], meta: Metadata, option: str) -> Service:
    """Return the service of the simulated `tier`.

    It follows from the options, else from the trace's own model, else from defaults (ASSUMED).

    ConfigError, which quotes the text `option` of the tier, for an unknown option, or if there is
    no bandwidth for the tier.
    """
    for name in options:
        if name not in OPTIONS:
            raise ConfigError(f"{option}: unknown option {name!r}; sim takes {', '.join(OPTIONS)}")
    if options.keys() & {"bandwidth", "read_bandwidth", "write_bandwidth"}:
        return _service_from_options(options, option)
    if options:
        raise ConfigError(
            f"{option}: name a bandwidth too, such as sim:bandwidth=25GB,latency=10us"
        )
    service = _service_from_trace(tier, meta) or ASSUMED.get(tier)
    if service is None:
        raise ConfigError(
            f"{option}: the trace models no bandwidths of tier {tier}; name one, such as"
            " sim:bandwidth=7GB,latency=80us"
        )
    return service


def _service_from_options(options: Mapping[str, str], option: str) -> Service:
    common = options.get("bandwidth")
    directions = [options.get(f"{direction}_bandwidth", common) for direction in ("read", "write")]
    if None in directions:
        raise ConfigError(
            f"{option}: name both read_bandwidth and write_bandwidth, or bandwidth for both"
        )
    try:
        rates = [parse_bytes(text) for text in directions if text is not None]
        latency_ns = parse_duration_ns(options.get("latency", "0"))
        concurrency = int(options.get("concurrency", "0"))
    except ValueError:
        raise ConfigError(f"{option}: concurrency is a whole number") from None
    except ConfigError as error:
        raise ConfigError(f"{option}: {error}") from None
    if min(rates) <= 0 or concurrency < 0:
        raise ConfigError(f"{option}: a bandwidth must be > 0, and concurrency >= 0")
    return _service(rates, latency_ns, "--tier", concurrency)


def _service_from_trace(tier: str, meta: Metadata) -> Service | None:
    """Return the service model that the trace was simulated with.

    None if it does not have bandwidths for both directions.
    """
    hierarchy = meta.config.get("hierarchy")
    tiers = hierarchy.get("tiers", []) if isinstance(hierarchy, dict) else []
    knobs: dict[str, Any] = next((entry for entry in tiers if entry.get("name") == tier), {})
    bandwidths = [knobs.get(f"{direction}_bandwidth") or 0 for direction in ("read", "write")]
    rates = [parse_bytes(rate) if isinstance(rate, str) else rate for rate in bandwidths]
    if not all(rates):
        return None
    latency_ns = parse_duration_ns(knobs["latency"]) if knobs.get("latency") else 0
    return _service(rates, latency_ns, "the trace's service model", knobs.get("concurrency") or 0)


# === drive files ======================================================================================================

DRIVE_FILE = "drive.json"
QUANTILES = (0.0, 0.5, 0.95, 0.99, 0.999, 0.9999, 1.0)
"""Quantiles of a cell's I/O times in the model's grid, in ascending order."""
_QUANTILE_FIELDS = ("p50_ns", "p95_ns", "p99_ns", "p99_9_ns", "p99_99_ns", "max_ns")
"""Fields of DriveTimes for the quantiles from 0.5 on."""
_DEPTH_RATIO, _WORK = len(QUANTILES), len(QUANTILES) + 1
"""Values of a grid cell behind its quantiles.

The depth by the number in flight, and the time of an I/O at the cell's highest bandwidth in ns.
"""
_BETWEEN, _BEYOND, _ALONE = 1.0, 1e-3, 1e-6
"""Weights of an estimate for a missing cell: between two known cells, beyond two, beside one."""
_matrix_at = function(
    "thread_interpolate_matrix", StructAt, int, float, float, float, np.dtype(np.float64)
)


class DriveModel:
    """A drive's I/O times at any size, depth and read share, interpolated between its cells."""

    def __init__(self, cells: Sequence[DriveCell]) -> None:
        """Fit the measured cells; some must have reads, some writes."""
        measured = [cell for cell in cells if cell.bytes_per_s]
        shares, sizes, depths = (
            sorted({getattr(cell, name) for cell in measured})
            for name in ("read_share", "io_bytes", "depth")
        )
        # Axes: operation, read share, I/O size, queue depth, value.
        grid = np.full((2, len(shares), len(sizes), len(depths), len(QUANTILES) + 2), np.nan)
        for cell in measured:
            share, size = shares.index(cell.read_share), sizes.index(cell.io_bytes)
            bandwidths = [
                other.bytes_per_s or 0
                for other in measured
                if (other.read_share, other.io_bytes) == (cell.read_share, cell.io_bytes)
            ]
            for op, name in enumerate(OPS):
                if (times := getattr(cell, name)) is not None:
                    depth_ratio = cell.depth / (cell.in_flight or cell.depth)
                    work_ns = cell.io_bytes / max(bandwidths) * NS_PER_S
                    values = [*_log_quantiles(times), np.log(depth_ratio), np.log(work_ns)]
                    grid[op, share, size, depths.index(cell.depth)] = values
        for op_grid in grid:
            measured_shares = [
                index for index, share_grid in enumerate(op_grid) if not np.isnan(share_grid).all()
            ]
            for index in measured_shares:
                _fill(op_grid[index], np.log(sizes), np.log(depths))
            for index in set(range(len(shares))) - set(measured_shares):
                distances = {near: abs(shares[near] - shares[index]) for near in measured_shares}
                op_grid[index] = op_grid[min(distances, key=lambda near: distances[near])]
        axes = {
            "share": np.array(shares, float),
            "size": np.log(sizes),
            "depth": np.log(depths),
            "part": np.array(QUANTILES),
        }
        counts = {f"{name}s": len(axis) for name, axis in axes.items()}
        self.struct = Structure(REPLAY, "Matrix", cell=np.ascontiguousarray(grid), **axes, **counts)

    def at(
        self, io_bytes: float, depth: float, read_share: float
    ) -> tuple[float, dict[str, float]]:
        """Return bytes per second, and the p99 latencies of reads and of writes in ns.

        `depth` I/Os are in flight all the time.
        """
        mean_ns, p99_ns = 0.0, {}
        for op, share in enumerate((read_share, 1 - read_share)):
            if share > 0:
                slots = np.zeros(len(QUANTILES) + 2)
                _matrix_at(self.struct, op, read_share, io_bytes, depth, slots)
                time_ns = _mean(slots[:_DEPTH_RATIO])
                mean_ns += share * time_ns * float(np.exp(slots[_DEPTH_RATIO]))
                p99_ns[OPS[op]] = float(np.exp(slots[QUANTILES.index(0.99)]))
        return io_bytes * depth * NS_PER_S / mean_ns, p99_ns


def simulated(name: str, options: Mapping[str, str], meta: Metadata, option: str) -> SimulatedTier:
    """Return the simulated tier `name`: by a drive file if the options name one, else a service.

    Errors are those of `service_of`.
    """
    if "drive" not in options:
        return SimulatedTier(name, service_of(name, options, meta, option))
    if len(options) > 1:
        raise ConfigError(
            f"{option}: a drive file has all times of a drive; name it alone, as"
            f" sim:{options['drive']}"
        )
    drive = DriveFile.read(Path(options["drive"]))
    rates = [
        max(int(cell.bytes_per_s or 0) for cell in drive.cells if getattr(cell, op)) for op in OPS
    ]
    latency_ns = min((cell.read.mean_ns or 0 for cell in drive.cells if cell.read), default=0)
    source = f"at best: the {len(drive.cells)} cells of a drive file of {drive}"
    service = _service(rates, int(latency_ns), source)
    return SimulatedTier(
        name, service, DriveModel(drive.cells), error=prediction_ranges(drive.cells)
    )


@dataclass(frozen=True, slots=True)
class _HeldOutRatios:
    """Predicted over measured figures of the cells that were held out of a fit."""

    bandwidth: list[float]
    p99: list[float]
    """Of reads and of writes; a cell with too few operations has none."""


def _held_out_ratios(cells: Sequence[DriveCell]) -> _HeldOutRatios | None:
    """Fit all measured `cells` but every third, and predict those.

    None if there are too few cells for a fit.

    The cells held out lie diagonally: each has neighbours of its size, of its depth and of its read
    share among the others.
    """
    measured = [cell for cell in cells if cell.bytes_per_s]
    axes = {
        name: sorted({getattr(cell, name) for cell in measured})
        for name in ("read_share", "io_bytes", "depth")
    }
    out = [
        cell
        for cell in measured
        if sum(axis.index(getattr(cell, name)) for name, axis in axes.items()) % 3 == 1
    ]
    fitted = [cell for cell in measured if cell not in out]
    if not out or not all(any(getattr(cell, op) for cell in fitted) for op in OPS):
        return None
    model, ratios = DriveModel(fitted), _HeldOutRatios([], [])
    for cell in out:
        rate, p99_ns = model.at(cell.io_bytes, cell.depth, cell.read_share)
        ratios.bandwidth.append(rate / (cell.bytes_per_s or 1))
        for op, predicted in p99_ns.items():
            times = getattr(cell, op)
            if times is not None and times.p99_ns:
                ratios.p99.append(predicted / times.p99_ns)
    return ratios


def held_out(cells: Sequence[DriveCell]) -> DriveError | None:
    """Return the prediction errors for held-out cells; None if there are too few for a fit."""
    ratios = _held_out_ratios(cells)
    if ratios is None:
        return None
    rates, tails = ([abs(ratio - 1) for ratio in side] for side in (ratios.bandwidth, ratios.p99))
    return DriveError(
        cells=len(rates),
        bandwidth_median=median(rates),
        bandwidth_greatest=max(rates),
        p99_median=median(tails) if tails else None,
        p99_greatest=max(tails, default=None),
    )


@dataclass(frozen=True, slots=True)
class PredictionRanges:
    """Measured over predicted figures: the ranges that hold 90 % of held-out cells.

    A prediction times these two figures is the range to expect.
    """

    bandwidth: tuple[float, float]
    p99: tuple[float, float] | None
    """Of reads and of writes together; null if no cell had enough operations."""


def prediction_ranges(cells: Sequence[DriveCell]) -> PredictionRanges | None:
    """Return the errors of predictions from `cells`; None if there are too few for a fit."""
    ratios = _held_out_ratios(cells)
    if ratios is None:
        return None
    return PredictionRanges(
        _central_range(ratios.bandwidth), _central_range(ratios.p99) if ratios.p99 else None
    )


def _central_range(predicted_over_measured: Sequence[float]) -> tuple[float, float]:
    """Return the range of measured over predicted that holds 90 % of the ratios."""
    low, high = np.quantile(1 / np.array(predicted_over_measured), (0.05, 0.95))
    return float(low), float(high)


def _mean(logs: np.ndarray) -> float:
    """Return the mean of times with the logarithms `logs` at QUANTILES, linear between them."""
    values, steps = np.exp(logs), np.diff(logs)
    is_flat = steps < 1e-9  # noqa: PLR2004 - of logarithms
    between = np.where(is_flat, values[:-1], np.diff(values) / np.where(is_flat, 1.0, steps))
    return float(between @ np.diff(QUANTILES))


def _log_quantiles(times: DriveTimes) -> np.ndarray:
    """Return the logarithms of a cell's times at QUANTILES.

    The minimum is chosen so that the distribution has the measured mean. A percentile that was not
    measured, for too few operations, is taken to be the maximum.
    """
    quantiles_ns = np.array(
        [getattr(times, name) or times.max_ns or 1 for name in _QUANTILE_FIELDS], float
    )
    logs = np.maximum.accumulate(np.log(np.maximum(quantiles_ns, 1.0)))
    # The mean that the lower half needs, and by it the ratio of the minimum to the median.
    upper_mean = _mean(np.append(logs[:1], logs))
    lower_mean = 2 * (times.mean_ns or 1) - 2 * upper_mean + quantiles_ns[0]
    ratios = np.geomspace(0.01, 0.9999, 200)
    ratio = np.interp(lower_mean / quantiles_ns[0], (1 - ratios) / -np.log(ratios), ratios)
    logs = np.append(logs[0] + np.log(ratio), logs)
    scaled: np.ndarray = logs + np.log((times.mean_ns or 1) / _mean(logs))
    return scaled


def _fill(values: np.ndarray, sizes: np.ndarray, depths: np.ndarray) -> None:
    """Estimate the missing cells (size, depth) of `values` from cells of the same size or depth.

    Along each axis, the estimate lies on the line through the two nearest known cells.
    """
    while (missing := np.isnan(values[..., 0])).any():
        before = values.copy()
        for size, depth in np.argwhere(missing):
            total, weight = np.zeros(values.shape[-1]), 0.0
            for x, line, index in ((sizes, before[:, depth], size), (depths, before[size], depth)):
                present = np.flatnonzero(~np.isnan(line[:, 0]))
                below, above = present[present < index], present[present > index]
                if not len(present):
                    continue
                if len(below) and len(above):
                    near, factor = [below[-1], above[0]], _BETWEEN
                else:
                    near = [*present[:2]] if len(above) else [*present[-2:]]
                    factor = _ALONE if len(near) == 1 else _BEYOND
                position = (
                    (x[index] - x[near[0]]) / (x[near[1]] - x[near[0]]) if len(near) > 1 else 0.0
                )
                total += factor * (line[near[0]] + position * (line[near[-1]] - line[near[0]]))
                weight += factor
            if weight:
                values[size, depth] = total / weight
                values[size, depth, :_DEPTH_RATIO] = np.maximum.accumulate(
                    values[size, depth, :_DEPTH_RATIO]
                )
