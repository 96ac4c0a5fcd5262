"""From the text of `--tier NAME=…` to a tier on storage: directories, preallocated files, block devices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvreplay.tiers.extents import ExtentTier
from kvreplay.tiers.files import FileTier
from kvreplay.tiers.sharded import MAX_DRIVES, SeveralDirectories, SeveralSpaces, drive_by_key
from kvtrace.core.errors import ConfigError

if TYPE_CHECKING:
    from kvreplay.tiers.tier import Options, StorageTier

FILE_SUFFIX = ".dat"
"""A path that is not there yet is to be one file if it ends in this, else a directory."""


def paths_of(target: str) -> list[Path]:
    """Return the paths that a target names, with commas between them."""
    whole = Path(target)
    return [whole] if whole.exists() else [Path(part) for part in target.split(",")]


def storage_tier(name: str, target: str, options: Options, trace: Path) -> StorageTier:
    """Return the tier `name` on what `target` names, for objects of `trace`.

    Raises:
        ConfigError: the paths are of different kinds, empty, or too many.

    """
    paths = paths_of(target)
    option = f"--tier {name}={target}"
    if any(str(path) == "." and not target.startswith(".") for path in paths) or len(paths) > MAX_DRIVES:
        raise ConfigError(f"{option}: name up to {MAX_DRIVES} paths with commas between them")
    is_space = [_is_space(path) for path in paths]
    if len(set(is_space)) > 1:
        raise ConfigError(f"{option}: name directories only, or files ({FILE_SUFFIX}) and block devices only")
    if len(paths) == 1:
        return ExtentTier(name, paths[0], options) if is_space[0] else FileTier(name, paths[0], options)
    drive_of = drive_by_key(trace, len(paths))
    if is_space[0]:
        return SeveralSpaces(name, [ExtentTier(f"{name}:{path}", path, options) for path in paths], drive_of)
    return SeveralDirectories(name, [FileTier(f"{name}:{path}", path, options) for path in paths], drive_of)


def _is_space(path: Path) -> bool:
    return path.is_block_device() or path.is_file() or (not path.exists() and path.suffix == FILE_SUFFIX)
