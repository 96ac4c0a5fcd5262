"""How objects are named as files: directories of our own, or as serving engines name theirs.

How they write is theirs only with vLLM's (`files.VllmFiles`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from kvtrace.core.errors import DeviceError

_BITS, _DIGIT_BITS, _DIGITS = 64, 4, 16
_MASK = (1 << _BITS) - 1
# SplitMix64's multiplier: odd, so that no two ids meet, and neighbours part in their first digits.
SPREAD = 0xBF58476D1CE4E5B9
_SUBDIRECTORIES = 256
_VLLM_ROOT = "kvreplay_000000000000_r0"
DIRECTORY_NAME = re.compile(r"[0-9a-f]{2,3}|[0-9a-f]{2}_g0|" + _VLLM_ROOT)
"""Names of the directories that a layout makes."""
FILE_NAME = re.compile(r"[0-9a-f]{16}\.kv|[0-9a-f]{64}\.bin(_[0-9]+\.tmp)?|kvreplay@1@0@[0-9a-f]{16}@bfloat16\.pt")


class FileLayout(StrEnum):
    """What `--layout` takes."""

    HASHED = "hashed"
    FLAT = "flat"
    VLLM = "vllm"
    LMCACHE = "lmcache"


MEANINGS = {
    FileLayout.HASHED: "256 subdirectories by a hash of the object: 3f/000000000000002a.kv",
    FileLayout.FLAT: "one directory: 000000000000002a.kv",
    FileLayout.VLLM: "as vLLM's file tier: <model>_<digest>_r<rank>/<hhh>/<hh>_g<group>/<hash, 64 digits>.bin; "
    "and written as it does, measured: access, makedirs, a new temporary file, one write, close, rename",
    FileLayout.LMCACHE: "as LMCache's disk backend, one directory: <model>@<world size>@<worker>@<hash>@<dtype>.pt",
}


@dataclass(frozen=True, slots=True)
class Digits:
    """Some of the 16 hexadecimal digits of an object's id, or of its hash."""

    of_hash: bool
    first: int = 0
    count: int = _DIGITS

    @property
    def shift(self) -> int:
        """How many bits follow the last one."""
        return _BITS - _DIGIT_BITS * (self.first + self.count)


_ID, _HASH = Digits(of_hash=False), Digits(of_hash=True)
_NAMES: dict[FileLayout, tuple[str | Digits, ...]] = {
    FileLayout.HASHED: (Digits(True, 0, 2), "/", _ID, ".kv"),
    FileLayout.FLAT: (_ID, ".kv"),
    FileLayout.VLLM: (
        *(f"{_VLLM_ROOT}/", Digits(True, 0, 3), "/", Digits(True, 3, 2), "_g0/"),
        *(_HASH, "0" * 32, _ID, ".bin"),
    ),
    FileLayout.LMCACHE: ("kvreplay@1@0@", _HASH, "@bfloat16.pt"),
}


def mixed(object_id: int) -> int:
    """Return 64 bits for an object id in which any digit tells ids apart, as in a hash."""
    product = (object_id + 1) * SPREAD & _MASK
    return product ^ (product >> 32)


def path_function(layout: FileLayout, root: str) -> Callable[[int], str]:
    """Return the function that gives an object's path below `root`."""
    parts = _NAMES[layout]
    name = "".join(part if isinstance(part, str) else f"{{:0{part.count}x}}" for part in parts)
    digits = [(p.of_hash, p.shift, (1 << _DIGIT_BITS * p.count) - 1) for p in parts if isinstance(p, Digits)]

    def path(object_id: int) -> str:
        numbers = object_id, mixed(object_id)
        return f"{root}/{name.format(*[numbers[of_hash] >> shift & mask for of_hash, shift, mask in digits])}"

    return path


def name_template(layout: FileLayout) -> tuple[bytes, list[tuple[int, int, bool]]]:
    """Return an object's path below the root with zeros for its digits, and of each: where, its shift, if of the hash.

    The form for compiled code.
    """
    text, digits = "", []
    for part in _NAMES[layout]:
        if isinstance(part, str):
            text += part
            continue
        for at in range(part.count):
            digits.append((len(text), part.shift + _DIGIT_BITS * (part.count - 1 - at), part.of_hash))
            text += "0"
    return text.encode(), digits


def _make_directory(path: str) -> None:
    """Make a directory of ours; one that a file of another program kept from being removed is taken as it is."""
    try:
        os.mkdir(path)  # noqa: PTH102 - beside the paths of objects
    except FileExistsError:
        if os.path.islink(path) or not os.path.isdir(path):  # noqa: PTH112, PTH114 - beside the paths of objects
            raise DeviceError(f"{path} is in the way and not ours; move it elsewhere") from None


def make_directories(layout: FileLayout, root: str) -> None:
    """Make the directories of a layout below `root`, which exists, if they are few; else writes make them."""
    if layout is FileLayout.HASHED:
        for index in range(_SUBDIRECTORIES):
            _make_directory(f"{root}/{index:02x}")
