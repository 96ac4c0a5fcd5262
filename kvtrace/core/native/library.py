"""Calls of the shared library, which contains the C code of the three programs.

    reuse = function("reuse_distances", I8, I8, int, I8)
    reuse(things, weights, len(things), distances)

An array is refused unless it has the declared dtype and is contiguous. Other Python threads run
during a call. The library is built when kvtrace is installed.
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
"""Tests set another one, which is built with a sanitizer."""
_ROOT = Path(__file__).parents[3]
_FOLDERS = ("kvtrace/core/native", "kvtrace/native", "kvreplay/native", "kvdistill/native")
I1, I2, I4, I8 = (np.dtype(f"i{size}") for size in (1, 2, 4, 8))
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NUMBERS = {int: ctypes.c_int64, float: ctypes.c_double, bool: ctypes.c_bool}


@functools.cache
def library() -> ctypes.CDLL:
    """Return the library.

    DeviceError, with the command to run, if it was not built or is older than its sources.
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
    """Return the SHA-256 of the C files from which the library was built."""
    native = library().sources_sha256
    native.restype = ctypes.c_char_p
    return str(native().decode())


class function:  # noqa: N801 - an instance is called like a function
    """A function of the library, looked up when it is first called.

    `takes` are the types of its arguments: int (int64), float, bool, the dtype of an array, or
    StructAt (a Structure or None). `returns` is one of them, but no array.
    """

    def __init__(self, name: str, *takes: Any, returns: Any = None) -> None:
        self.name, self._takes, self._returns = name, takes, returns

    @functools.cached_property
    def _call(self) -> Callable[..., Any]:
        native = library()[self.name]
        native.argtypes = [_ctypes_type(argument) for argument in self._takes]
        native.restype = None if self._returns is None else _ctypes_type(self._returns)
        return native

    def __call__(self, *arguments: Any) -> Any:
        """Call the C function."""
        return self._call(*arguments)


def call(name: str, *arguments: Any) -> int:
    """Call the function `name`, with arguments and a result of int64.

    An array or a Structure is passed as its address, and None as 0.
    """
    # Not library()[name], which creates a new object each time, with a reference to itself.
    native = getattr(library(), name)
    native.restype = ctypes.c_int64
    integers = [
        int(argument) if isinstance(argument, int | np.integer) else address(argument)
        for argument in arguments
    ]
    return int(native(*map(ctypes.c_int64, integers)))


def address_of(name: str) -> int:
    """Return the address of the function `name` in the library; 0 if there is none."""
    native = getattr(library(), name, None)
    if native is None:
        return 0
    return ctypes.cast(native, ctypes.c_void_p).value or 0


class StructAt:
    """The type of an argument that is a pointer to a Structure, or null."""

    @staticmethod
    def from_param(value: Any) -> ctypes.c_void_p:
        """Return the address of a Structure as ctypes passes it."""
        return ctypes.c_void_p(None if value is None else value.address)


def _ctypes_type(argument: Any) -> Any:
    """Return the ctypes type for one of the types that `function` accepts."""
    if argument in _NUMBERS:
        return _NUMBERS[argument]
    if argument is StructAt:
        return argument
    return np.ctypeslib.ndpointer(argument, flags="C_CONTIGUOUS")


@contextmanager
def defer_signals() -> Iterator[list[int]]:
    """Defer signals with a Python handler while C code runs that calls back into Python.

    Yield a list of the signals that have arrived. They are raised when the block ends.

    A handler may raise an exception. C code between the handler and the caller would lose it.
    """
    arrived: list[int] = []
    handlers: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for ending_signal in _SIGNALS:
            handler = signal.getsignal(ending_signal)
            if callable(handler):
                handlers[ending_signal] = handler
    for number in handlers:
        signal.signal(number, lambda received, _frame: arrived.append(received))
    try:
        yield arrived
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for number in arrived:
        signal.raise_signal(number)
