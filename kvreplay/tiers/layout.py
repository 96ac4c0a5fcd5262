"""How objects are named as files: directories of our own, or as serving engines name theirs.

Names and directories are the engines'; how they write is not: no temporary name and rename, no metadata file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from enum import StrEnum

from kvtrace.core.errors import DeviceError

_MASK = (1 << 64) - 1
# SplitMix64's multiplier: odd, so that no two ids meet, and neighbours part in their first digits.
_SPREAD = 0xBF58476D1CE4E5B9
_SUBDIRECTORIES = 256
_VLLM_ROOT = "kvreplay_000000000000_r0"
DIRECTORY_NAME = re.compile(r"[0-9a-f]{2,3}|[0-9a-f]{2}_g0|" + _VLLM_ROOT)
"""Names of the directories that a layout makes."""
FILE_NAME = re.compile(r"[0-9a-f]{16}\.kv|[0-9a-f]{64}\.bin|kvreplay@1@0@[0-9a-f]{16}@bfloat16\.pt")


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
    "directories are made before the write, not measured",
    FileLayout.LMCACHE: "as LMCache's disk backend, one directory: <model>@<world size>@<worker>@<hash>@<dtype>.pt",
}


def mixed(object_id: int) -> int:
    """Return 64 bits for an object id in which any digit tells ids apart, as in a hash."""
    product = (object_id + 1) * _SPREAD & _MASK
    return product ^ (product >> 32)


def path_function(layout: FileLayout, root: str) -> Callable[[int], str]:
    """Return the function that gives an object's path below `root`."""
    if layout is FileLayout.FLAT:
        return lambda object_id: f"{root}/{object_id:016x}.kv"
    if layout is FileLayout.LMCACHE:
        return lambda object_id: f"{root}/kvreplay@1@0@{mixed(object_id):016x}@bfloat16.pt"
    if layout is FileLayout.VLLM:

        def vllm(object_id: int) -> str:
            name = f"{mixed(object_id):016x}{object_id:048x}"
            return f"{root}/{_VLLM_ROOT}/{name[:3]}/{name[3:5]}_g0/{name}.bin"

        return vllm
    prefixes = [f"{root}/{index:02x}/" for index in range(_SUBDIRECTORIES)]
    return lambda object_id: f"{prefixes[mixed(object_id) >> 56]}{object_id:016x}.kv"


def _make_directory(path: str) -> None:
    """Make a directory of ours; one that a file of another program kept from being removed is taken as it is."""
    try:
        os.mkdir(path)  # noqa: PTH102 - beside the paths of objects
    except FileExistsError:
        if os.path.islink(path) or not os.path.isdir(path):  # noqa: PTH112, PTH114 - beside the paths of objects
            raise DeviceError(f"{path} is in the way and not ours; move it elsewhere") from None


class Directories:
    """The directories of a layout below `root`: made at once where they are few, else when an object needs one."""

    def __init__(self, layout: FileLayout, root: str) -> None:
        """Make those that are few; `root` exists."""
        self._is_deep = layout is FileLayout.VLLM
        self._made: set[str] = set()
        if layout is FileLayout.HASHED:
            for index in range(_SUBDIRECTORIES):
                _make_directory(f"{root}/{index:02x}")

    def make_for(self, path: str) -> None:
        """Make the directory that `path` is to lie in."""
        if self._is_deep and (parent := path[: path.rindex("/")]) not in self._made:
            os.makedirs(parent, exist_ok=True)  # noqa: PTH103 - beside the paths of objects
            self._made.add(parent)
