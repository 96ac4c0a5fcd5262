"""Read a study from its TOML file: a list of configurations, each a command line of `gen`.

    [base]                        # options of every configuration
    preset = "lmcache-disk"
    users = 32

    [grid]                        # every combination is simulated; the last varies fastest
    seed = [1, 2, 3]
    tiers.nvme.capacity = ["256GiB", "512GiB", "1TiB"]

    [[configuration]]             # instead of a grid, or for each of these the whole grid
    tiers.nvme.policy = "lru"

    [price]                       # of each tier
    nvme = "0.1/GiB"

Results are stored by the hash of their input, so that a study resumes where it stopped and can be
extended.

A key is `file`, an option of `gen` without its dashes, or a knob as `--set` names it.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import version
from pathlib import Path

import msgspec

from kvtrace import __version__
from kvtrace.core.config import as_setting, as_text, load_toml, nearest, sha256, to_struct
from kvtrace.core.errors import ConfigError, DeviceError, TraceError
from kvtrace.core.files import read_json, write_json
from kvtrace.core.json_types import JsonObject
from kvtrace.core.native.library import sources_sha256
from kvtrace.curves.points import Simulated
from kvtrace.requests.source_files import files_of, sha256_of
from kvtrace.sim.presets.preset import knobs_of

FILE, SEED = "file", "seed"
MOST_CONFIGURATIONS = 100_000

Value = str | int | float | bool


class StudyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of study.toml."""

    base: JsonObject = {}
    """Options and knobs of every configuration."""
    grid: JsonObject = {}
    """Lists of values, every combination of which is simulated."""
    configuration: list[JsonObject] = []
    """Configurations one by one, each with the whole grid if there is one."""
    price: dict[str, str] = {}
    """Price by the name of the tier, such as 0.1/GiB."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One simulation of the study."""

    number: int
    knobs: dict[str, Value]
    """Options and knobs, as given."""
    argv: tuple[str, ...]
    """The arguments of the `gen` that simulates the same."""

    @property
    def command(self) -> str:
        """Return the `gen` command that runs this configuration alone."""
        return shlex.join(["kvtrace", "gen", *self.argv])

    def named(self, keys: Collection[str]) -> str:
        """Return the values of `keys` as text."""
        values = ", ".join(f"{key}={as_text(self.knobs[key])}" for key in keys if key in self.knobs)
        return values or "the only configuration"


@dataclass(frozen=True, slots=True)
class Study:
    """All configurations, in the order of the grid."""

    path: Path
    configurations: list[Configuration]
    price: dict[str, float]
    """Price of a byte by tier; empty without prices."""
    cost_unit: str = ""
    """Unit of prices that are not per byte and tier, such as USD a month."""

    @property
    def cost_name(self) -> str:
        """Return the name of the cost: a price, or without prices the capacity of all tiers."""
        return self.cost_unit or ("price" if self.price else "capacity")

    @property
    def has_prices(self) -> bool:
        """Return whether the cost is money rather than capacity."""
        return self.cost_name != "capacity"

    @property
    def keys(self) -> list[str]:
        """Return the options and knobs of all configurations, in the order of the file."""
        return list(
            dict.fromkeys(
                key for configuration in self.configurations for key in configuration.knobs
            )
        )

    @property
    def axes(self) -> dict[str, list[Value | None]]:
        """Return the options and knobs that differ, with their values in the order of the file.

        A value is null where a configuration does not set it.
        """
        values = {
            key: list(
                dict.fromkeys(configuration.knobs.get(key) for configuration in self.configurations)
            )
            for key in self.keys
        }
        return {key: options for key, options in values.items() if len(options) > 1}

    @property
    def varied(self) -> list[str]:
        """Return the axes without the seed; figures are means over the seeds."""
        return [key for key in self.axes if key != SEED]


def read_study(
    source: Path | Mapping[str, object],
    options: Collection[str],
    default_preset: str,
    price: Callable[[str, str], float],
) -> Study:
    """Return the study of a TOML file, or of a mapping with the same tables.

    `options` are those of `gen`, and `price` reads the price of a tier.

    ConfigError names the file (or `study`) and the key that is invalid.
    """
    path = source if isinstance(source, Path) else Path("study")
    tree = load_toml(source) if isinstance(source, Path) else dict(source)
    study_file = to_struct(tree, StudyFile, str(path))
    base = _flat(path, "base", study_file.base)
    axes = _flat(path, "grid", study_file.grid)
    listed_configurations = [
        _flat(path, f"configuration {number}", item)
        for number, item in enumerate(study_file.configuration, 1)
    ] or [{}]
    for key, values in axes.items():
        if not isinstance(values, list) or not values:
            example = "..." if isinstance(values, list) else as_text(values)
            example = f'"{example}"' if isinstance(values, str) else example
            raise ConfigError(f"{path}: grid: {key}: write a list of values, such as [{example}]")
        for item in values:
            _check_value(path, "grid", key, item)
    for where, settings_of_table in (
        ("base", base),
        *(
            (f"configuration {number}", item)
            for number, item in enumerate(listed_configurations, 1)
        ),
    ):
        for key, value in settings_of_table.items():
            _check_value(path, where, key, value)
            if key in axes:
                raise ConfigError(
                    f"{path}: {where}: {key} is in the grid too; leave one of the two out"
                )
    count = len(listed_configurations) * math.prod(len(values) for values in axes.values())
    if count > MOST_CONFIGURATIONS:
        raise ConfigError(
            f"{path}: {count:,} configurations; at most {MOST_CONFIGURATIONS:,} make a study"
        )
    combinations = [
        dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())
    ]
    knobs = [
        base | settings | combination
        for settings in listed_configurations
        for combination in combinations
    ]
    presets = {str(item.get("preset", default_preset)) for item in knobs}
    _check_names(path, {"base": base, "grid": axes} | {f"configuration {number}": item for number, item in enumerate(listed_configurations, 1)},
                 options, presets)  # fmt: skip
    prices = {tier: price(tier, text) for tier, text in study_file.price.items()}
    tiers = {
        name.split(".")[1]
        for preset in presets
        for name in _knob_names(path, preset)
        if name.startswith("tiers.")
    }
    for tier in prices.keys() - tiers if prices else ():
        raise ConfigError(
            f"{path}: price: {tier} is not a tier of its presets; theirs are"
            f" {', '.join(sorted(tiers))}"
        )
    return Study(
        path,
        [
            Configuration(number, settings, argv_of(settings, options))
            for number, settings in enumerate(knobs)
        ],
        prices,
    )


def _flat(path: Path, where: str, tree: JsonObject, prefix: str = "") -> JsonObject:
    """Return `tree` with its nested tables as dotted keys, and options by their flags."""
    flat: JsonObject = {}
    for name, value in tree.items():
        key = f"{prefix}{name}"
        inner = _flat(path, where, value, f"{key}.") if isinstance(value, dict) else {key: value}
        for dotted_key, setting in inner.items():
            if dotted_key in flat:
                raise ConfigError(f"{path}: {where}: {dotted_key} is given twice")
            flat[dotted_key] = setting
    return flat


_TOO_LARGE = 10**300


def _check_value(path: Path, where: str, key: str, value: object) -> None:
    if isinstance(value, str) or (isinstance(value, int | float) and abs(value) < _TOO_LARGE):
        return
    if isinstance(value, list) and where != "grid":
        raise ConfigError(f"{path}: {where}: {key} has a list of values; write it under [grid]")
    raise ConfigError(
        f"{path}: {where}: {key}: {value} is neither text, a number, nor true or false"
    )


def _check_names(
    path: Path,
    tables: dict[str, JsonObject],
    options: Collection[str],
    presets: Collection[str],
) -> None:
    """Raise ConfigError at the first key that is neither an option nor a knob of a preset."""
    names = {FILE, *options}
    for table, settings in tables.items():
        for key in settings:
            if key in names or key.replace("_", "-") in options:
                continue
            knobs = set().union(*(_knob_names(path, preset) for preset in presets))
            if key not in knobs:
                preset_text = (
                    f"preset {next(iter(presets))}" if len(presets) == 1 else "any of its presets"
                )
                raise ConfigError(
                    f"{path}: {table}: {key} is no option of gen, nor a knob of"
                    f" {preset_text}{nearest(key, names | knobs)}"
                )


@cache
def _knob_names(path: Path, preset: str) -> frozenset[str]:
    try:
        return frozenset(knob.name for knob in knobs_of(preset))
    except ConfigError as error:
        raise ConfigError(f"{path}: preset: {error}") from None


def argv_of(knobs: Mapping[str, Value], options: Collection[str]) -> tuple[str, ...]:
    """Return `knobs` as arguments: the file, options, then knobs of the preset."""
    flags = {key: f"--{flag}" for key in knobs if (flag := key.replace("_", "-")) in options}
    file = [as_text(knobs[FILE])] if FILE in knobs else []
    option_arguments = [
        argument for key, flag in flags.items() for argument in (flag, as_text(knobs[key]))
    ]
    settings = [key for key in knobs if key not in flags and key != FILE]
    return (
        *file,
        *option_arguments,
        *(argument for key in settings for argument in ("--set", as_setting(key, knobs[key]))),
    )


FOLDER = "simulated"
_ROOT = Path(__file__).parents[1]


class _StoredResult(msgspec.Struct, frozen=True):
    """A stored result with its hash; a changed result is not used."""

    sha256: str
    result: Simulated
    trace: tuple[str, int] | None = None
    """Name and mtime_ns of the trace written with the result, which may be replaced later."""


class Results:
    """Stored results, one JSON file each, by key."""

    def __init__(self, folder: Path) -> None:
        """Keep results below `folder`; it is made."""
        self._folder = folder / FOLDER
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DeviceError(f"{self._folder}: {error.strerror or error}") from None

    def load(self, key: str, trace: Path | None) -> Simulated | None:
        """Return the result stored under `key`.

        None if there is none, or if it or its `trace` changed since; simulate it again then.
        """
        try:
            stored = read_json(self._folder / f"{key}.json", _StoredResult)
        except TraceError:
            return None
        is_whole = stored.sha256 == sha256(stored.result) and (
            trace is None or stored.trace == _state(trace)
        )
        return stored.result if is_whole else None

    def store(self, key: str, result: Simulated, trace: Path | None) -> None:
        """Store `result` under `key`, and which `trace` was written with it."""
        write_json(
            self._folder / f"{key}.json", _StoredResult(sha256(result), result, _state(trace))
        )


def _state(trace: Path | None) -> tuple[str, int] | None:
    return (trace.name, trace.stat().st_mtime_ns) if trace is not None and trace.exists() else None


def key_of(configuration: Configuration) -> str:
    """Return the hash of everything that determines the result.

    That is the arguments, the bytes of the files, and the program.
    """
    inputs = {
        "argv": configuration.argv,
        "files": [files_sha256(path) for path in _files(configuration.knobs)],
    }
    return sha256({**inputs, "program": program_sha256()})[:32]


def _files(knobs: dict[str, Value]) -> Iterator[Path]:
    preset, model = (Path(str(knobs.get(key, ""))) for key in ("preset", "model"))
    if FILE in knobs:
        yield Path(str(knobs[FILE]))
    if preset.suffix == ".toml":
        yield preset
    if model.suffix == ".json" or (model.name and (model / "config.json").is_file()):
        yield model if model.suffix == ".json" else model / "config.json"


def files_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, of the files of a directory, or of those matching a pattern.

    TraceError if there is none.
    """
    files = [file.absolute() for file in files_of(path, "*") if file.is_file()]
    states = [(file, file.stat()) for file in files]
    return _sha256(tuple((file, stat.st_mtime_ns, stat.st_size) for file, stat in states))


@lru_cache
def _sha256(files: tuple[tuple[Path, int, int], ...]) -> str:
    """Return the SHA-256 of `files`, once for each state of them."""
    return sha256_of(*(path for path, _modified_ns, _size in files))


@cache
def program_sha256() -> str:
    """Return the SHA-256 of the program: its sources, and the libraries that draw and compile."""
    digest = hashlib.sha256(f"{__version__} {version('numpy')} {sources_sha256()}".encode())
    for path in sorted(path for kind in ("*.py", "*.toml") for path in _ROOT.rglob(kind)):
        digest.update(path.read_bytes())
    return digest.hexdigest()
