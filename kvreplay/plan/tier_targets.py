"""The text of `--tier NAME=TARGET`: a word with options, such as sim:latency=10us, or paths."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kvtrace.core.errors import ConfigError

STORAGE = "nvme"
"""The tier that stands for the storage under test in the presets."""
NAMED = ("ram", "gpu", "sim", "null")
"""Targets that are not paths; a directory of such a name is written ./ram."""


def named(target: str) -> tuple[str, dict[str, str]] | None:
    """Split a target that is one of NAMED from its options (`sim:latency=10us,bandwidth=7GB`).

    Return None for a path. The file of `sim:drive.json` becomes the option `drive`.
    """
    name, _, options_text = target.partition(":")
    if name not in NAMED:
        return None
    if name == "sim" and options_text.endswith(".json") and ",drive=" not in options_text:
        return name, {"drive": options_text.removeprefix("drive=")}
    options = {}
    for option in filter(None, options_text.split(",")):
        key, equals, value = option.partition("=")
        if not (key and equals and value):
            raise ConfigError(
                f"{target}: write its options like this: sim:bandwidth=7GB,latency=80us"
            )
        options[key] = value
    if options and name in ("ram", "null"):
        raise ConfigError(f"{target}: {name} takes no options")
    return name, options


FILE_SUFFIX = ".dat"
"""A path that does not exist yet stands for one file if it ends in this, else for a directory."""


def tier_indices(
    names: list[str], targets: dict[str, str], path: Path
) -> Iterator[tuple[int, str]]:
    """Yield (tier index, target) for each of `targets`.

    ConfigError for a name that the trace lacks.
    """
    if not targets:
        raise ConfigError(
            f"no --tier given; name a target for one of {', '.join(names)}, such as --tier"
            f" {names[-1]}=DIR"
        )
    for name, target in targets.items():
        if name not in names:
            raise ConfigError(
                f"--tier {name}={target}: {path} has no tier {name!r}; it has {', '.join(names)}"
            )
        yield names.index(name), target


def paths_of(target: str) -> list[Path]:
    """Split a target into its comma-separated paths."""
    path = Path(target)
    return [path] if path.exists() else [Path(path_text) for path_text in target.split(",")]
