"""What a user may ask of a replay, checked before anything is touched, and the tiers that it names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kvreplay.config.warmup import parse_warmup
from kvreplay.data.buffers import buffer_bytes
from kvreplay.data.shaping import check_ratios
from kvreplay.engine.choose import EngineName, check_name
from kvreplay.plan import pacing
from kvreplay.plan.plan import tier_indices
from kvreplay.result.mlperf import Criteria
from kvreplay.run.precondition import Precondition
from kvreplay.tiers.device import CudaDevice
from kvreplay.tiers.extents import ExtentTier
from kvreplay.tiers.files import FileTier
from kvreplay.tiers.gds import GdsTier
from kvreplay.tiers.gpu import GpuTier, gpu_options
from kvreplay.tiers.layout import Layout
from kvreplay.tiers.modelled import SimulatedTier, service_of
from kvreplay.tiers.open import paths_of, storage_tier
from kvreplay.tiers.ram import RamTier, available_bytes
from kvreplay.tiers.tier import Options, StorageTier, Tier
from kvtrace.core.errors import ConfigError
from kvtrace.core.units import format_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.core.metadata import Metadata

PAGE_BYTES = 4096
MAX_QUEUE_DEPTH = 1024
MAX_SEED = 2**64 - 1
NAMED = ("ram", "gpu", "sim", "null")
"""Targets that are no path; a directory of such a name is written ./ram."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What determines a replay, besides the trace."""

    tiers: dict[str, str]
    """Target by tier name: paths with commas between them, or one of NAMED with options after a colon."""
    speed: float | None = None
    is_as_fast_as_possible: bool = False
    queue_depth: int = 8
    io_bytes: int = 1 << 20
    limit: str | None = None
    seed: int | None = None
    """For the data; null takes the trace's, or 0."""
    is_buffered: bool = False
    fsync: str = "never"
    is_kept: bool = False
    on_error: str = "stop"
    engine: str = EngineName.AUTO.value
    is_verified: bool = False
    """Stamp what is written and check what is read."""
    warmup: str | None = None
    """The start that figures leave out: rows or time."""
    precondition: str | None = None
    """Write drives full before anything is measured: `twice`, or until `steady`."""
    is_gds: bool = False
    """Move files' data straight to and from GPU memory."""
    layout: str = Layout.HASHED.value
    """How files are named."""
    is_destroying: bool = False
    """Whether block devices may be overwritten."""
    is_discarding: bool = False
    """Whether deletes discard on block devices."""
    criteria: Criteria = Criteria()
    """Thresholds of the health criteria and of the classes of service."""
    requests: str | None = None
    """The trace's requests table, for classes of service and the time to the first token."""
    dedup_ratio: float = 1.0
    """Blocks of 4 KiB written for each distinct one."""
    compress_ratio: float = 1.0
    """By which zstd shrinks each 4 KiB block."""
    is_probed: bool = False
    """Probe the calls and block requests of the measured part."""
    is_histograms_only: bool = False
    """Keep no event of each block request."""


def check(config: Config) -> pacing.Pacer:
    """Return the pacer of `config`; ConfigError, naming the option, for a value that cannot be used."""
    if not 1 <= config.queue_depth <= MAX_QUEUE_DEPTH:
        raise ConfigError(f"--queue-depth {config.queue_depth}: give 1 to {MAX_QUEUE_DEPTH}")
    if config.io_bytes < PAGE_BYTES or config.io_bytes % PAGE_BYTES:
        raise ConfigError(f"--io-bytes {config.io_bytes}: give a multiple of 4096")
    need, available = buffer_bytes(config.queue_depth, config.io_bytes), available_bytes()
    if available is not None and need > available // 2:
        raise ConfigError(
            f"--queue-depth {config.queue_depth} of --io-bytes {config.io_bytes} takes {format_bytes(need)} "
            f"of buffers, more than half of the {format_bytes(available)} available; lower one of them"
        )
    check_name(config.engine)
    for option, value, allowed in (
        ("--fsync", config.fsync, ("never", "close")),
        ("--on-error", config.on_error, ("stop", "continue")),
        ("--layout", config.layout, tuple(Layout)),
    ):
        if value not in allowed:
            raise ConfigError(f"{option} {value}: choose {' or '.join(allowed)}")
    if config.seed is not None and not 0 <= config.seed <= MAX_SEED:
        raise ConfigError(f"--seed {config.seed}: give 0 to {MAX_SEED}")
    parse_warmup(config.warmup)
    if config.is_histograms_only and not config.is_probed:
        raise ConfigError("--histograms-only says how to probe; add --probes")
    if config.precondition not in (None, *Precondition):
        raise ConfigError(f"--precondition {config.precondition}: choose {' or '.join(Precondition)}")
    _check_storage(config)
    check_ratios(config.dedup_ratio, config.compress_ratio, is_verified=config.is_verified)
    return pacing.choose(speed=config.speed, as_fast_as_possible=config.is_as_fast_as_possible)


def _check_storage(config: Config) -> None:
    has_storage = not all(named(target) for target in config.tiers.values())
    wanted = {"--precondition writes drives full": config.precondition, "--gds moves files": config.is_gds}
    for said, is_asked in wanted.items():
        if is_asked and not has_storage:
            raise ConfigError(f"{said}, but no --tier names storage; leave it out")


def named(target: str) -> tuple[str, dict[str, str]] | None:
    """Return which of NAMED a target is, and its options (`sim:latency=10us,bandwidth=7GB`); None for a path."""
    name, _, rest = target.partition(":")
    if name not in NAMED:
        return None
    options = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not (key and equals and value):
            raise ConfigError(f"{target}: write its options like this: sim:bandwidth=7GB,latency=80us")
        options[key] = value
    if options and name in ("ram", "null"):
        raise ConfigError(f"{target}: {name} takes no options")
    return name, options


def make_tiers(config: Config, meta: Metadata, trace: Path, output: Path) -> list[Tier | None]:
    """Return the tiers of the trace, whose metadata is `meta`, in order; None for those without a target."""
    names = [tier.name for tier in meta.tiers]
    tiers: list[Tier | None] = [None] * len(names)
    taken: dict[Path, str] = {}
    for index, target in tier_indices(names, config.tiers, trace):
        name = names[index]
        kind, options = named(target) or (None, {})
        if kind == "ram":
            tiers[index] = RamTier(name, config.io_bytes, is_verified=config.is_verified)
        elif kind == "gpu":
            number, is_within = gpu_options(options, f"--tier {name}={target}", is_verified=config.is_verified)
            tiers[index] = GpuTier(name, number, config.io_bytes, CudaDevice, is_within=is_within,
                                   is_verified=config.is_verified)  # fmt: skip
        elif kind == "null":
            tiers[index] = SimulatedTier(name)
        elif kind == "sim":
            tiers[index] = SimulatedTier(name, service_of(name, options, meta, f"--tier {name}={target}"))
        else:
            for path in paths_of(target):
                _check_apart(name, target, path.resolve(), taken, output)
                taken[path.resolve()] = name
            how = Options(
                is_direct=not config.is_buffered, fsync=config.fsync, is_kept=config.is_kept,
                is_destroying=config.is_destroying, is_discarding=config.is_discarding, layout=Layout(config.layout),
            )  # fmt: skip
            tier = storage_tier(name, target, how, trace)
            tiers[index] = _by_gds(config, tier, f"--tier {name}={target}") if config.is_gds else tier
    _check_meant(config, tiers)
    return tiers


def _by_gds(config: Config, tier: StorageTier, said: str) -> Tier:
    if not isinstance(tier, FileTier):
        raise ConfigError(f"{said}: --gds reads and writes files; name one directory")
    return GdsTier(tier, CudaDevice, is_synced=config.fsync == "close", is_verified=config.is_verified)


def _check_apart(name: str, target: str, path: Path, taken: dict[Path, str], output: Path) -> None:
    if path in taken:
        raise ConfigError(f"--tier {name}={target}: tier {taken[path]} has this target already; name another")
    if path == output.resolve() or path in output.resolve().parents:
        raise ConfigError(f"-o {output} lies in the target of tier {name}; write the run elsewhere")


def _check_meant(config: Config, tiers: list[Tier | None]) -> None:
    drives = [d for t in tiers if isinstance(t, StorageTier) for d in t.drives]
    if config.is_discarding and not any(isinstance(d, ExtentTier) and d.is_device for d in drives):
        raise ConfigError("--discard is for block devices, and no --tier names one; leave it out")
    if config.layout != Layout.HASHED and not any(isinstance(d, FileTier) for d in drives):
        raise ConfigError(f"--layout {config.layout} names files, but no --tier names a directory; leave it out")
