"""The shared library that the C files of the three programs make when kvtrace is installed, and
calls of it.

    reuse = function("reuse_distances", I8, I8, int, I8)
    reuse(things, weights, len(things), distances)

Arrays are refused that are not of the named dtype, or whose items do not lie one after the other. A
call lets other threads of Python run.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from kvtrace.core.errors import DeviceError
from kvtrace.core.native.structs import address

FILE = Path(os.environ.get("KVTRACE_NATIVE") or Path(__file__).parent / "libkvtrace.so")
"""Another one is that of a sanitizer's, in tests."""
_ROOT = Path(__file__).parents[3]
_FOLDERS = ("kvtrace/core/native", "kvtrace/native", "kvreplay/native", "kvdistill/native")
I1, I2, I4, I8 = (np.dtype(f"i{size}") for size in (1, 2, 4, 8))
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NUMBERS = {int: ctypes.c_int64, float: ctypes.c_double, bool: ctypes.c_bool}


@functools.cache
def library() -> ctypes.CDLL:
    """Return the library.

    DeviceError, saying what to do, if it was not built, or its sources changed since.
    """
    try:
        if (_ROOT / "hatch_build.py").exists():  # in a checkout
            built = FILE.stat().st_mtime
            sources = (source for folder in _FOLDERS for source in (_ROOT / folder).rglob("*.[ch]"))
            if any(source.stat().st_mtime > built for source in sources):
                raise DeviceError(f"{FILE} is older than its sources; run make native")
        return ctypes.CDLL(str(FILE), use_errno=True)
    except OSError as error:
        message = (
            f"kvtrace's compiled part cannot be loaded ({error}); install it again: pip install"
            " --force-reinstall"
        )
        raise DeviceError(f"{message} kvtrace") from None


def sources_sha256() -> str:
    """Return of which C files the library was made."""
    found = library().sources_sha256
    found.restype = ctypes.c_char_p
    return str(found().decode())


class function:  # noqa: N801 - reads as what it stands for
    """A function of the library, looked up when it is first called.

    `takes` are int (int64), float, bool, the dtype of an array's items, or StructAt (a Structure,
    or None); so is what it `returns`, but for arrays.
    """

    def __init__(self, name: str, *takes: Any, returns: Any = None) -> None:
        self.name, self._takes, self._returns = name, takes, returns

    @functools.cached_property
    def _call(self) -> Callable[..., Any]:
        found = library()[self.name]
        found.argtypes = [_kind(take) for take in self._takes]
        found.restype = None if self._returns is None else _kind(self._returns)
        return found

    def __call__(self, *arguments: Any) -> Any:
        """Call it."""
        return self._call(*arguments)


def call(name: str, *arguments: Any) -> int:
    """Call a function that takes int64 and addresses, of what is given as one or as an array or a
    Structure.
    """
    # By name: an item of the library is a new object each time, which holds on to itself.
    native = getattr(library(), name)
    native.restype = ctypes.c_int64
    numbers = (int(a) if isinstance(a, int | np.integer) else address(a) for a in arguments)
    return int(native(*map(ctypes.c_int64, numbers)))


def address_of(name: str) -> int:
    """Return where the code of a function of the library is; 0 if it has none of this name."""
    found = getattr(library(), name, None)
    return 0 if found is None else ctypes.cast(found, ctypes.c_void_p).value or 0


class StructAt:
    """The address of something that has one: a Structure."""

    @staticmethod
    def from_param(value: Any) -> ctypes.c_void_p:
        """Return it as ctypes passes it."""
        return ctypes.c_void_p(None if value is None else value.address)


def _kind(of: Any) -> Any:
    if of in _NUMBERS:
        return _NUMBERS[of]
    return of if of is StructAt else np.ctypeslib.ndpointer(of, flags="C_CONTIGUOUS")


@contextmanager
def held_back() -> Iterator[list[int]]:
    """Hold signals back that Python handles, while C runs that calls Python.

    Yield those that came; then handle them.

    A handler that raises where C calls would be lost: the exception has nowhere to go.
    """
    came: list[int] = []
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {
            number: found for number in _SIGNALS if callable(found := signal.getsignal(number))
        }
    for number in before:
        signal.signal(number, lambda got, _frame: came.append(got))
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in came:
        signal.raise_signal(number)
