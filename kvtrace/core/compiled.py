"""How we compile: numba's `njit` without the interpreter's lock, cached for the next run.

numba notices a change only in the file that holds a function, not in what that function calls elsewhere, and
would go on running old code. So the cache lies in a directory named by the hash of all compiled sources.

Arrays go to compiled code by address where they are many: to pass thirty takes longer than to submit an I/O, to look
one up by its address takes nothing.
"""

from __future__ import annotations

import functools
import hashlib
import os
import signal
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numba
import numba.extending
import numpy as np
from numba.core import event, types
from numba.core.registry import cpu_target
from numba.np.arrayobj import populate_array

from kvtrace.core.app import log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ROOT = Path(__file__).parents[2]
_PROGRAMS = ("kvtrace", "kvreplay", "kvdistill")
_CONSTANTS = (
    "kvtrace/core/compiled.py", "kvtrace/core/schema.py", "kvtrace/sim/records.py", "kvtrace/sim/world.py",
    "kvreplay/plan/plan.py", "kvreplay/engine/ring.py", "kvreplay/tiers/tier.py", "kvreplay/engine/job.py",
)  # fmt: skip
"""What the compiled files take constants from."""


def _sources() -> list[Path]:
    every = sorted(path for program in _PROGRAMS for path in (_ROOT / program).rglob("*.py"))
    users = [p for p in every if b"\nfrom kvtrace.core.compiled import" in p.read_bytes()]
    return users + [_ROOT / name for name in _CONSTANTS]


def _cache_directory() -> Path | None:
    """Return the directory, made; None if it cannot be, and everything is compiled in each run."""
    digest = hashlib.sha256(numba.__version__.encode())
    for path in _sources():
        digest.update(path.read_bytes())
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    directory = Path(base) / "kvtrace" / digest.hexdigest()[:16]
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return directory if os.access(directory, os.W_OK) else None


CACHE = _cache_directory()
if CACHE is not None:
    numba.config.CACHE_DIR = str(CACHE)
_IS_KEPT = CACHE is not None


def _load_numba() -> None:
    """Have numba load what it needs at the first call, but for scipy: 0.15 s of each start, where it is installed.

    It is for linear algebra, which we compile none of.
    """
    is_hidden = "scipy.linalg" not in sys.modules
    if is_hidden:
        sys.modules["scipy.linalg"] = None  # type: ignore[assignment]  # as if it were not installed
    try:
        cpu_target.typing_context.refresh()
        cpu_target.target_context.refresh()
    finally:
        if is_hidden:
            del sys.modules["scipy.linalg"]


_load_numba()

njit = numba.njit(cache=_IS_KEPT, nogil=True, _nrt=False)
"""Compile a function when it is first called, and keep the result on the disk. It can make no array.

Without numba's runtime no references are counted, which around calls with as many arrays as ours took more than
half of all time; whoever calls from Python holds the arrays.
"""

allocating = numba.njit(cache=_IS_KEPT, nogil=True)
"""The same for a function that makes arrays, or takes memory as one."""

holding = numba.njit(cache=_IS_KEPT, _nrt=False)
"""As `njit`, for a function shorter than it would take a thread to get the interpreter's lock back."""

inner = numba.njit(_nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""As `njit`, for a function that only compiled code calls: half the time to compile, kept with its callers."""

inlined = numba.njit(inline="always")
"""The same for a few lines in a hot loop: copied into each caller, which a call with this many arrays is not worth."""

intrinsic = numba.extending.intrinsic
"""A function that says, by the types of its arguments, what to compile in its place."""


def record_at(dtype: np.dtype[Any]) -> Any:
    """Return a compiled function: (address) to the record of `dtype` there, its fields read and set in place."""
    record = numba.from_dtype(dtype)

    @intrinsic
    def at(typing: Any, address: Any) -> Any:  # noqa: ARG001 - the form that numba asks for
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001 - the same
            return builder.inttoptr(arguments[0], context.get_value_type(record))

        return record(types.int64), code

    return at


def array_at(dtype: Any) -> Any:
    """Return a compiled function: (address) to the array of `dtype` there, which knows no length: do not slice it."""
    found = types.Array(numba.from_dtype(np.dtype(dtype)), 1, "C")
    item_bytes = np.dtype(dtype).itemsize

    @intrinsic
    def at(typing: Any, address: Any) -> Any:  # noqa: ARG001 - the form that numba asks for
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001 - the same
            array = context.make_array(found)(context, builder)
            data = builder.inttoptr(arguments[0], context.get_data_type(found.dtype).as_pointer())
            count, step = (context.get_constant(types.intp, n) for n in (2**62 // item_bytes, item_bytes))
            populate_array(array, data=data, shape=[count], strides=[step], itemsize=step, meminfo=None)
            return array._getvalue()  # noqa: SLF001 - numba's form

        return found(types.int64), code

    return at


int64s, int32s, uint32s, int8s = (array_at(kind) for kind in (np.int64, np.int32, np.uint32, np.int8))


def fields_of(array: Any) -> Any:
    """Return the first record of a structured array as an object whose attributes are its fields, shared with it.

    One is read in a tenth of the time that `array[0]["name"]` takes.
    """
    return _structure(array.dtype).from_buffer(array)


@functools.cache
def _structure(dtype: np.dtype[Any]) -> Any:
    return np.ctypeslib.as_ctypes_type(dtype)


class _Uninterrupted(event.Listener):  # type: ignore[misc]
    """Holds Ctrl-C back while code is compiled or loaded, and lets it through then.

    LLVM calls back into Python: an exception raised there is lost, and the run goes on, or the process crashes.
    """

    def __init__(self) -> None:
        self._depth, self._is_held = 0, False
        self._before: Any = None

    def on_start(self, _event: event.Event) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        if not self._depth:
            self._is_held = False
            self._before = signal.signal(signal.SIGINT, self._hold) or signal.SIG_DFL
        self._depth += 1

    def on_end(self, _event: event.Event) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self._depth -= 1
        if not self._depth:
            signal.signal(signal.SIGINT, self._before)
            if self._is_held:
                signal.raise_signal(signal.SIGINT)

    def _hold(self, *_: object) -> None:
        self._is_held = True


# Held by numba from before it looks for what an earlier run left until that is loaded, or compiled.
event.register("numba:compiler_lock", _Uninterrupted())


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
def compile_announced() -> Iterator[None]:
    """Tell the person watching, once, if the block has to compile: what it calls first may be compiled alone."""
    with announcing(_say_compiling):
        yield


@functools.cache
def _say_compiling() -> None:
    kept = "happens once" if _IS_KEPT else "cannot be kept (the cache directory is not writable)"
    log(f"compiling: this takes up to a minute and {kept}")


@contextmanager
def announcing(say: Callable[[], None]) -> Iterator[None]:
    """Call `say` once if anything has to be compiled in the block, and is not found where an earlier run left it."""
    with event.install_listener("numba:compile", _Once(say)):
        yield
