"""Targets of several replays that share the user's target: each gets a folder or file below it."""

from __future__ import annotations

from collections.abc import Sequence

from kvreplay.plan.target_safety import check_target
from kvreplay.plan.tier_targets import FILE_SUFFIX, named, paths_of
from kvtrace.core.errors import ConfigError, DeviceError
from kvtrace.core.parameters import entry
from kvtrace.core.run.run_file import RANK_FOLDER

RANK, LOCAL = "{rank}", "{local}"
"""Placeholders in a target: the rank's number, and its number among the ranks of its host."""


def rank_target(name: str, target: str, rank: int, hosts: Sequence[str]) -> str:
    """Return the target of `rank` for the tier `name`, and create its folder.

    `hosts` are the hosts of all ranks.

    ConfigError if ranks of one host would share a block device. DeviceError if a directory is
    missing or may not be written to.
    """
    if named(target) is not None:
        return target
    local = hosts[:rank].count(hosts[rank])
    if RANK in target or LOCAL in target:
        return target.replace(RANK, str(rank)).replace(LOCAL, str(local))
    if "://" in target:
        return f"{target.rstrip('/')}/{RANK_FOLDER.format(rank)}"
    targets = []
    for path in paths_of(target):
        if path.is_block_device():
            if hosts.count(hosts[rank]) > 1:
                raise ConfigError(
                    f"{entry('tiers', name, target)}: {hosts.count(hosts[rank])} ranks of"
                    f" {hosts[rank]}"
                    f" would share {path}; name a device or partition for each, such as"
                    f" /dev/nvme{LOCAL}n1"
                )
            targets.append(path)
        elif path.is_file() or path.suffix == FILE_SUFFIX:
            targets.append(path.with_name(f"{path.stem}.{RANK_FOLDER.format(rank)}{path.suffix}"))
        else:
            check_target(path, is_shared=True)
            folder = path / RANK_FOLDER.format(rank)
            try:
                folder.mkdir(exist_ok=True)
            except OSError as error:
                raise DeviceError(f"{folder}: {error.strerror}") from None
            targets.append(folder)
    return ",".join(map(str, targets))


def remove_rank_folders(targets: Sequence[str]) -> None:
    """Remove the folders of a rank that are empty."""
    for target in targets:
        if named(target) is None and "://" not in target:
            for path in paths_of(target):
                if (
                    path.name.startswith(RANK_FOLDER.format(0)[:5])
                    and path.is_dir()
                    and not any(path.iterdir())
                ):
                    path.rmdir()
