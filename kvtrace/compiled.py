"""How we compile: numba's `njit` without the interpreter's lock, cached for the next run.

numba notices a change only in the file that holds a function, not in what that function calls elsewhere, and
would go on running old code. So the cache lies in a directory named by the hash of all compiled sources.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numba
import numba.extending
from numba.core import event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_HERE = Path(__file__).parent
_SOURCES = sorted(p for p in _HERE.rglob("*.py") if "\nfrom kvtrace.compiled import" in p.read_text(encoding="utf-8"))


def _cache_directory() -> Path:
    digest = hashlib.sha256(numba.__version__.encode())
    for path in [*_SOURCES, *(_HERE / name for name in ("compiled.py", "state.py", "world.py", "core/schema.py"))]:
        digest.update(path.read_bytes())
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kvtrace" / digest.hexdigest()[:16]


CACHE = _cache_directory()
numba.config.CACHE_DIR = str(CACHE)

njit = numba.njit(cache=True, nogil=True, _nrt=False)
"""Compile a function when it is first called, and keep the result on the disk. It can make no array.

Without numba's runtime no references are counted, which around calls with as many arrays as ours took more than
half of all time; whoever calls from Python holds the arrays.
"""

allocating = numba.njit(cache=True, nogil=True)
"""The same for a function that makes arrays."""

inlined = numba.njit(inline="always")
"""The same for a few lines in a hot loop: copied into each caller, which a call with this many arrays is not worth."""

intrinsic = numba.extending.intrinsic
"""A function that says, by the types of its arguments, what to compile in its place."""


class _Once(event.Listener):  # type: ignore[misc]
    """Calls `say` when the first function starts to be compiled."""

    def __init__(self, say: Callable[[], None]) -> None:
        self._say, self._is_said = say, False

    def on_start(self, _event: event.Event) -> None:
        if not self._is_said:
            self._is_said = True
            self._say()

    def on_end(self, _event: event.Event) -> None:
        pass


@contextmanager
def announcing(say: Callable[[], None]) -> Iterator[None]:
    """Call `say` once if anything has to be compiled in the block, and is not found where an earlier run left it."""
    with event.install_listener("numba:compile", _Once(say)):
        yield
