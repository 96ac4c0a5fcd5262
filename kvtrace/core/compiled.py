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
import re
import signal
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numba
import numba.extending
import numpy as np
from numba.core import caching, compiler, event, types
from numba.core.codegen import JITCodeLibrary
from numba.core.registry import cpu_target
from numba.np.arrayobj import populate_array

from kvtrace import __version__
from kvtrace.core.app import PROGRAM, log
from kvtrace.core.errors import KvError
from kvtrace.core.files import write_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ROOT = Path(__file__).parents[2]
_PROGRAMS = ("kvtrace", "kvdistill")
_SECONDS = {"kvtrace": 8, "kvdistill": 3}
"""That each program's longest command compiles on an idle core of 2024; see bench/bench_startup.py."""
_IMPORT = re.compile(rb"^(?:from|import) (kv[\w.]+)(?: import (.*))?", re.MULTILINE)


def _sources() -> list[Path]:
    """Return the files with compiled code, and all that they import, which they may take constants from."""
    names = {}
    for path in (p for program in _PROGRAMS for p in (_ROOT / program).rglob("*.py")):
        names[".".join(path.relative_to(_ROOT).with_suffix("").parts)] = path
    imported = {name: _IMPORT.findall(path.read_bytes()) for name, path in names.items()}
    waiting = [name for name, found in imported.items() if any(of == __name__.encode() for of, _ in found)]
    wanted: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in wanted:
            wanted.add(name)
            for of, what in imported[name]:
                module = of.decode()
                within = [f"{module}.{part.strip()}" for part in what.decode().split(",")]
                waiting += [n for n in (module, *within) if n in names]
    return [names[name] for name in sorted(wanted)]


def _cache_directory() -> Path | None:
    """Return the directory, made; None if it cannot be, and everything is compiled in each run.

    To read all sources takes 20 ms of a start, so their hash is kept under what can be seen of them without.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvtrace"
    seen = hashlib.sha256(numba.__version__.encode())
    for path, modified_ns, size in sorted(_seen()):
        seen.update(f"{path} {modified_ns} {size}\n".encode())
    known = base / f"sources-{seen.hexdigest()[:16]}"
    try:
        base.mkdir(parents=True, exist_ok=True)
        if not known.exists():
            write_text(known, _digest())
        directory = base / known.read_text(encoding="utf-8")
        directory.mkdir(exist_ok=True)
    except (OSError, KvError):
        return None
    return directory if os.access(directory, os.W_OK) else None


def _digest() -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    for path in _sources():
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _seen() -> Iterator[tuple[str, int, int]]:
    """Yield the path of each source file of the programs, when it was last changed, and its bytes."""
    folders = [str(_ROOT / program) for program in _PROGRAMS if (_ROOT / program).is_dir()]
    for folder in folders:
        for entry in os.scandir(folder):
            if entry.is_dir() and entry.name != "__pycache__":
                folders.append(entry.path)
            elif entry.name.endswith(".py"):
                found = entry.stat()
                yield entry.path, found.st_mtime_ns, found.st_size


CACHE = _cache_directory()
if CACHE is not None:
    numba.config.CACHE_DIR = str(CACHE)
_IS_KEPT = CACHE is not None


@functools.cache
def _load_numba() -> None:
    """Have numba load what compiling needs, but for scipy: 0.15 s, where it is installed.

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


class _Kept(caching.FunctionCache):
    """What earlier runs compiled of a function, found without loading what only compiling needs: 0.2 s of a start."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)


class _KeptWhole(_Kept):
    """The same of a function that makes arrays: it needs what is loaded with the rest."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        _load_numba()
        return super().load_overload(sig, target_context)


def _compiled(kept: type[_Kept] = _Kept, **options: bool) -> Callable[[Any], Any]:
    make = numba.njit(cache=_IS_KEPT, **options)

    def decorate(function: Any) -> Any:
        dispatcher = make(function)
        if _IS_KEPT:
            dispatcher._cache = kept(function)
        return dispatcher

    return decorate


njit = _compiled(nogil=True, _nrt=False)
"""Compile a function when it is first called, and keep the result on the disk. It can make no array.

Without numba's runtime no references are counted, which around calls with as many arrays as ours took more than
half of all time; whoever calls from Python holds the arrays.
"""

allocating = _compiled(_KeptWhole, nogil=True)
"""The same for a function that makes arrays, or takes memory as one."""


class _Unset:
    """numba's code generator, but for the environment: only code that runs by itself has one."""

    def __init__(self, codegen: Any) -> None:
        self._codegen = codegen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codegen, name)

    def set_env(self, *_: object) -> None:
        pass


class _Library(JITCodeLibrary):
    """The code of a function that only compiled code calls: LLVM optimizes it where it is called, and only there."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        return 0

    @property
    def codegen(self) -> Any:
        return _Unset(self._codegen)


class _Inner(compiler.Compiler):
    def define_pipelines(self) -> Any:
        self.state.library = _Library(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        self.state.library.enable_object_caching()
        return super().define_pipelines()


def callback(signature: Any) -> Any:
    """Return a decorator that compiles a function of `signature` at once, so that compiled code may call its address.

    Compiled functions can so be told which function to call, without that function being compiled into them.
    """
    return numba.cfunc(signature, cache=_IS_KEPT, _nrt=False, error_model="numpy")


def inner(function: Any, **options: bool) -> Any:
    """Compile a function into those compiled functions that call it, once, whatever integers it is given."""
    options |= {"_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    dispatcher = numba.njit(pipeline_class=_Inner, error_model="numpy", **options)(function)
    template = dispatcher.get_call_template

    def one_signature(args: Any, kws: Any) -> Any:
        return template([_widened(a) for a in args], {name: _widened(a) for name, a in kws.items()})

    def refuse(*_: Any, **__: Any) -> None:
        raise TypeError("this function is only there for compiled code")

    dispatcher.get_call_template = one_signature
    # It has no code of its own that Python could call.
    dispatcher._insert, dispatcher._compile_for_args = lambda *_, **__: None, refuse
    return dispatcher


forced = functools.partial(inner, forceinline=True)
"""The same for a few lines in a hot loop, which must not cost a call."""


def _widened(kind: Any) -> Any:
    """Return the type that stands for `kind`: of integers int64, so that a literal makes no second signature."""
    kind = numba.types.unliteral(kind)
    return numba.types.int64 if isinstance(kind, numba.types.Integer) and kind != numba.types.uint64 else kind


intrinsic = numba.extending.intrinsic
"""A function that says, by the types of its arguments, what to compile in its place."""


def array_at(dtype: Any) -> Any:
    """Return a compiled function: (address) to the array of `dtype` there, which knows no length: do not slice it."""
    found = types.Array(numba.from_dtype(np.dtype(dtype)), 1, "C")
    item_bytes = np.dtype(dtype).itemsize

    @intrinsic
    def at(typing: Any, address: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array = context.make_array(found)(context, builder)
            data = builder.inttoptr(arguments[0], context.get_data_type(found.dtype).as_pointer())
            count, step = (context.get_constant(types.intp, n) for n in (2**62 // item_bytes, item_bytes))
            populate_array(array, data=data, shape=[count], strides=[step], itemsize=step, meminfo=None)
            return array._getvalue()

        return found(types.int64), code

    return at


int64s = array_at(np.int64)


class _Uninterrupted(event.Listener):
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


class _Once(event.Listener):
    """Calls `say` when the first function starts to be compiled."""

    def __init__(self, say: Callable[[], None]) -> None:
        self._say, self._is_said = say, False

    def on_start(self, _event: event.Event) -> None:
        if not self._is_said:
            self._is_said = True
            self._say()

    def on_end(self, _event: event.Event) -> None:
        pass


event.register("numba:compile", _Once(_load_numba))


@contextmanager
def compile_announced() -> Iterator[None]:
    """Tell the person watching, once, if the block has to compile: what it calls first may be compiled alone."""
    with announcing(_say_compiling):
        yield


@functools.cache
def _say_compiling() -> None:
    program = PROGRAM.get()
    kept = "once a version" if _IS_KEPT else "each time, for the cache directory is not writable"
    log(f"compiling: {program} {__version__} for this machine, about {_SECONDS[program]} s, {kept}")


@contextmanager
def announcing(say: Callable[[], None]) -> Iterator[None]:
    """Call `say` once if anything has to be compiled in the block, and is not found where an earlier run left it."""
    with event.install_listener("numba:compile", _Once(say)):
        yield
