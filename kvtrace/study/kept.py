"""What is simulated is kept by what was asked for, so that a study goes on where it stopped, and grows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache, lru_cache
from importlib.metadata import version
from pathlib import Path

from kvtrace import __version__
from kvtrace.core.config import sha256
from kvtrace.core.errors import DeviceError, TraceError
from kvtrace.core.files import read_json, write_json
from kvtrace.core.native.library import sources_sha256
from kvtrace.curves.points import Simulated
from kvtrace.requests.requests import sha256_of
from kvtrace.study.configuration import FILE, Configuration, Value

FOLDER = "simulated"
_ROOT = Path(__file__).parents[1]
_DIGITS = 32


class Results:
    """A folder of results, a file each."""

    def __init__(self, folder: Path) -> None:
        """Keep results below `folder`; it is made."""
        self._folder = folder / FOLDER
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DeviceError(f"{self._folder}: {error.strerror or error}") from None

    def has(self, key: str) -> bool:
        """Return whether something whole is kept under `key`."""
        return self.load(key) is not None

    def load(self, key: str) -> Simulated | None:
        """Return what was kept under `key`; None if nothing was, or it is damaged: it is then simulated again."""
        path = self._folder / f"{key}.json"
        if not path.exists():
            return None
        try:
            return read_json(path, Simulated)
        except TraceError:
            return None

    def store(self, key: str, found: Simulated) -> None:
        """Keep `found` under `key`."""
        write_json(self._folder / f"{key}.json", found)


def key_of(configuration: Configuration) -> str:
    """Return the hash of all that the result depends on: what is asked for, the bytes of its files, and the program."""
    knobs = sorted(configuration.knobs.items())
    asked = {"knobs": knobs, "files": [files_sha256(path) for path in _files(configuration.knobs)]}
    return sha256({**asked, "program": program_sha256()})[:_DIGITS]


def _files(knobs: dict[str, Value]) -> Iterator[Path]:
    """Yield the files that the values of `knobs` name."""
    preset, model = (Path(str(knobs.get(key, ""))) for key in ("preset", "model"))
    if FILE in knobs:
        yield Path(str(knobs[FILE]))
    if preset.suffix == ".toml":
        yield preset
    if model.suffix == ".json" or (model.name and (model / "config.json").is_file()):
        yield model if model.suffix == ".json" else model / "config.json"


def files_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, or of those in a directory or that a pattern matches; empty if there are none."""
    listed = path.iterdir() if path.is_dir() else [path] if path.is_file() else path.parent.glob(path.name)
    found = sorted(one.absolute() for one in listed if one.is_file())
    return _sha256(tuple((one, one.stat().st_mtime_ns, one.stat().st_size) for one in found)) if found else ""


@lru_cache
def _sha256(files: tuple[tuple[Path, int, int], ...]) -> str:
    """Return the SHA-256 of `files`, once for each state of them."""
    return sha256_of(*(path for path, _modified_ns, _size in files))


@cache
def program_sha256() -> str:
    """Return the SHA-256 of all that makes a result: our sources, and the libraries that draw and compile."""
    digest = hashlib.sha256(f"{__version__} {version('numpy')} {sources_sha256()}".encode())
    for path in sorted(path for kind in ("*.py", "*.toml") for path in _ROOT.rglob(kind)):
        digest.update(path.read_bytes())
    return digest.hexdigest()
