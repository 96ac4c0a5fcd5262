"""Make a tier from the text of `--tier NAME=TARGET`.

A target is memory, a GPU, a model, an object store, directories, files or block devices.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from kvreplay.plan.replay_config import Config
from kvreplay.plan.target_safety import check_target
from kvreplay.plan.tier_targets import FILE_SUFFIX, named, paths_of, tier_indices
from kvreplay.tiers.claims import check_device, check_file
from kvreplay.tiers.extents import ExtentTier
from kvreplay.tiers.files import FileTier
from kvreplay.tiers.gpu import GdsTier, GpuTier, gpu_options
from kvreplay.tiers.modelled import SimulatedTier, simulated
from kvreplay.tiers.objects import ObjectTier
from kvreplay.tiers.ram import RamTier
from kvreplay.tiers.s3_clients.address import Address, is_object_store
from kvreplay.tiers.s3_clients.make_client import ClientName
from kvreplay.tiers.s3_clients.store_client import Balance, StoreClient
from kvreplay.tiers.tier import MAX_DRIVES, FileLayout, SeveralDrives, StorageOptions, Tier, spread
from kvtrace.core.errors import ConfigError
from kvtrace.core.metadata import Metadata
from kvtrace.core.parameters import entry
from kvtrace.core.parameters import named as named_parameter


# Long: one branch for each kind of tier.
def make_tiers(config: Config, meta: Metadata, trace: Path, output: Path) -> list[Tier | None]:
    """Return the tiers of the trace with the metadata `meta`, in order; None without a target."""
    names = [tier.name for tier in meta.tiers]
    tiers: list[Tier | None] = [None] * len(names)
    tier_by_path: dict[Path, str] = {}
    for index, target in tier_indices(names, config.tiers, trace):
        name = names[index]
        option = entry("tiers", name, target)
        kind, options = named(target) or (None, {})
        if kind == "ram":
            tiers[index] = RamTier(name, config.io_bytes, is_verified=config.is_verified)
        elif kind == "gpu":
            number, is_within = gpu_options(options, option, is_verified=config.is_verified)
            is_verified = config.is_verified
            tiers[index] = GpuTier(
                name, number, config.io_bytes, is_within=is_within, is_verified=is_verified
            )
        elif kind == "null":
            tiers[index] = SimulatedTier(name)
        elif kind == "sim":
            tiers[index] = simulated(name, options, meta, option)
        elif is_object_store(target):
            tiers[index] = _object_tier(config, name, target)
        else:
            for path in map(Path.resolve, paths_of(target)):
                if path in tier_by_path:
                    raise ConfigError(
                        f"{option}: tier {tier_by_path[path]} has this target already; name another"
                    )
                if path == output.resolve() or path in output.resolve().parents:
                    raise ConfigError(
                        f"-o {output} is inside the target of tier {name}; name a directory"
                        " outside it"
                    )
                tier_by_path[path] = name
            tiers[index] = storage_tier(config, name, target, trace)
    _check_storage_options(config, tiers)
    return tiers


def _object_tier(config: Config, name: str, target: str) -> ObjectTier:
    """Return the tier `name` on the object store of `target`.

    ConfigError if the target is invalid, or the client library does not take it.
    """
    option = entry("tiers", name, target)
    address = Address.of(option, target, config.endpoints)
    client_name = ClientName(config.s3_client)
    if address.scheme != "s3" and client_name is not ClientName.S3DLIO:
        raise ConfigError(
            f"{option}: {named_parameter('s3_client', client_name)} takes s3:// targets only; leave"
            f" it out for {address.scheme}://, which s3dlio takes"
        )
    client = StoreClient(
        address,
        Balance(config.balance),
        config.retries,
        config.request_timeout_s,
        client_name,
    )
    return ObjectTier(
        name,
        f"{address.scheme}://{address.path}",
        client,
        is_verified=config.is_verified,
        is_kept=config.is_kept,
        is_shared=config.is_destroying,
    )


def check_targets(config: Config) -> None:
    """Check the targets on storage before anything is created, read or measured.

    Opening a tier checks again. A directory may contain the folders of other ranks. A target with
    a placeholder for the rank's number is left to the rank.

    ConfigError as in `storage_tier`. DeviceError if a target is missing or may not be used.
    """
    for name, target in config.tiers.items():
        if named(target) is not None or is_object_store(target) or "{" in target:
            continue
        for path in _paths_alike(name, target):
            if path.is_block_device():
                check_device(
                    path, is_destroying=config.is_destroying, overwritten=config.overwritten
                )
            elif _is_space(path):
                check_file(path)
            else:
                check_target(path, is_shared=True)


def _check_storage_options(config: Config, tiers: list[Tier | None]) -> None:
    """Raise ConfigError if an option of storage has no tier that it applies to."""
    drives = [drive for tier in tiers if tier is not None for drive in tier.drives]
    if config.is_discarding and not any(isinstance(d, ExtentTier) and d.is_device for d in drives):
        raise ConfigError(
            f"{named_parameter('is_discarding')} is for block devices, and no"
            f" {named_parameter('tiers')} names one; leave it out"
        )
    if config.advice != "none" and not all(isinstance(d, FileTier) for d in drives):
        raise ConfigError(
            f"{named_parameter('advice', config.advice)} is for directory targets; name only"
            " directories, or leave it out"
        )
    if config.layout != FileLayout.HASHED and not any(isinstance(d, FileTier) for d in drives):
        raise ConfigError(
            f"{named_parameter('layout', config.layout)} names files, but no"
            f" {named_parameter('tiers')} names a directory; leave it out"
        )


def storage_tier(config: Config, name: str, target: str, trace: Path) -> Tier:
    """Return the tier `name` on the paths of `target`, for objects of `trace`.

    ConfigError if the paths are of different kinds, empty or too many, or if --gds cannot use them.
    """
    paths = _paths_alike(name, target)
    is_space = _is_space(paths[0])
    option_values = {
        option_field.name: getattr(config, option_field.name)
        for option_field in fields(StorageOptions)
    }
    storage_options = StorageOptions(**option_values | {"layout": FileLayout(config.layout)})
    if config.is_gds and (is_space or len(paths) > 1):
        raise ConfigError(
            f"{entry('tiers', name, target)}: {named_parameter('is_gds')} reads and writes files;"
            " name one directory"
        )
    if config.is_gds:
        return GdsTier(name, paths[0], storage_options, is_verified=config.is_verified)
    kind = ExtentTier if is_space else FileTier
    if len(paths) == 1:
        return kind(name, paths[0], storage_options)
    drive_of, rule = spread(trace, len(paths))
    return SeveralDrives(
        name, [kind(f"{name}:{path}", path, storage_options) for path in paths], drive_of, rule
    )


def _paths_alike(name: str, target: str) -> list[Path]:
    paths, option = paths_of(target), entry("tiers", name, target)
    if (
        any(str(path) == "." and not target.startswith(".") for path in paths)
        or len(paths) > MAX_DRIVES
    ):
        raise ConfigError(f"{option}: name up to {MAX_DRIVES} paths, separated by commas")
    if len({_is_space(path) for path in paths}) > 1:
        raise ConfigError(
            f"{option}: name directories only, or files ({FILE_SUFFIX}) and block devices only"
        )
    return paths


def _is_space(path: Path) -> bool:
    return (
        path.is_block_device()
        or path.is_file()
        or (not path.exists() and path.suffix == FILE_SUFFIX)
    )
