"""Handling of the signals that ask a program to end, from its first line on.

Each program imports this module before all others, because the other imports take longer than a
user or a batch system may wait. The program answers according to its state:

    while it imports          it exits at once: it has made nothing yet
    while a command runs      KeyboardInterrupt in the main thread, so that all files are closed and removed
    in a replay               `handled_signals` notes the signals, and the measurements are written
    in a library's C code     no exception can be raised; after GRACE_S a thread removes temporary
                              files and ends the process
    where the exception       raised again: at once if Python reports the loss, as in a destructor
    is lost                   or the callback of a weak reference; after GRACE_S during an import.
                              Otherwise the process ends after CLOSING_S

In each case the exit code is 130, and stderr has one line.
"""

from __future__ import annotations

import _thread
import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

INTERRUPTED = 130
"""The exit code of a program that a signal ended."""
GRACE_S, _CHECKS = 0.8, 40
"""The time that the main thread has to answer a signal, and the number of checks in this time."""
CLOSING_S = 4.0
"""The time that the main thread has to close and remove its files after KeyboardInterrupt."""
_HUNG_UP = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL else []
ENDING = (signal.SIGINT, signal.SIGTERM, *_HUNG_UP)
"""Signals that ask a program to end. SIGHUP is one unless nohup has it ignored."""
_Handler = Callable[[int, object], object] | signal.Handlers


class _Watch:
    """The state of the main thread, for the thread that watches it."""

    program = ""
    """The name of this program; empty if it runs within another program."""
    is_answered = False
    """True if KeyboardInterrupt was raised in the main thread, which is closing its files."""
    is_lost = threading.Event()
    """Set when Python reports that it has ignored KeyboardInterrupt."""
    holders = 0
    """Number of active `handled_signals` blocks."""
    stops: list[Callable[[], object]] = []  # noqa: RUF012 - one for the process, as all of this
    """What ends the calls of libraries that would outlast an exception."""


def leave_on_signals(program: str, module: str) -> None:
    """Let signals end the process at once, if `module`, the caller, was started as `program`.

    A process that ignores SIGINT, as a shell's background jobs do, continues to ignore it.
    """
    if module != "__main__" and os.path.basename(sys.argv[0]) != program:  # noqa: PTH119 - pathlib takes 10 ms
        return
    _Watch.program = program
    # Registered first, so called last. Python then removes its handlers, and a signal would kill
    # the process.
    atexit.register(_set_all, signal.SIG_IGN)
    _set_all(lambda _number, _frame: _leave())


def _set_all(handler: _Handler) -> None:
    """Set `handler` for all ending signals that this process does not ignore."""
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def own_program() -> str:
    """Return the name of the program of ours that this process is; empty if it is another."""
    return _Watch.program


def was_interrupted() -> bool:
    """Return whether a signal raised KeyboardInterrupt, which a library may turn into its own error."""
    return _Watch.is_answered


def _leave() -> None:
    """Remove temporary files, print that the program was interrupted, and end it at once."""
    if "kvtrace.core.temporary" in sys.modules:
        sys.modules["kvtrace.core.temporary"].remove_live()
    with suppress(OSError):
        os.write(2, f"{_Watch.program}: error: interrupted\n".encode())
    os._exit(INTERRUPTED)


@contextmanager
def raised_signals() -> Iterator[None]:
    """Let signals raise KeyboardInterrupt in the main thread while the block lasts.

    In a program of our own, a thread ends the process if the main thread does not answer, and a
    signal after the block ends the process at once.
    """
    _Watch.is_answered = False
    _Watch.is_lost.clear()

    def interrupt(_number: int, _frame: object) -> None:
        _Watch.is_answered = True
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in ENDING}
    _set_all(interrupt)
    if _Watch.program:
        sys.unraisablehook = _note_lost
        _start_watching()
    try:
        yield
    finally:
        if _Watch.program:
            sys.unraisablehook = sys.__unraisablehook__
            _set_all(lambda _number, _frame: _leave())
        else:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def handled_signals(note: Callable[[int, object], None]) -> Iterator[None]:
    """Let `note` handle signals while the block lasts, with no time limit.

    A background job of a shell, which ignores SIGINT otherwise, answers it here: `kill -INT` is how
    a script ends a replay and keeps what it measured.
    """
    before = {number: signal.signal(number, note) for number in ENDING}
    _Watch.holders += 1
    try:
        yield
    finally:
        _Watch.holders -= 1
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def stopped_by_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop`, from another thread, at a signal while the block lasts.

    For a library whose C code calls the handler of a signal, but keeps the exception until its own
    work is done, as DuckDB may as it begins a query: `stop` ends that work.
    """
    _Watch.stops.append(stop)
    try:
        yield
    finally:
        _Watch.stops.remove(stop)


def _start_watching() -> None:
    """Start a thread that receives each signal at once, independently of the main thread."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    # A forked process shares the pipe, but its signals must not end this process.
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
    threading.Thread(target=_watch, args=(read_end,), name="signals", daemon=True).start()


def _note_lost(unraisable: sys.UnraisableHookArgs) -> None:
    """Note that Python has ignored KeyboardInterrupt; report other ignored exceptions as usual."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        _Watch.is_lost.set()
    else:
        sys.__unraisablehook__(unraisable)


def _raise_if_lost(number: signal.Signals) -> None:
    """While the main thread closes its files, raise the exception again each time that it is lost."""
    pause = threading.Event()
    looks_left = round(CLOSING_S / GRACE_S)
    while looks_left:
        if not _Watch.is_lost.wait(GRACE_S):
            looks_left -= 1
            if not _main_thread_imports():
                continue
        # The main thread leaves the place that ignored the exception first; an exception raised
        # there would be ignored, too.
        pause.wait(GRACE_S / _CHECKS)
        _Watch.is_lost.clear()
        _thread.interrupt_main(number)


def _main_thread_imports() -> bool:
    """Return whether the main thread imports a module.

    Nothing is imported to close files, so if it still does, a library ignored the exception:
    modules in C do so where they try whether another module is there.
    """
    main = threading.main_thread().ident
    frame = None if main is None else sys._current_frames().get(main)  # noqa: SLF001 - documented
    while frame is not None and frame.f_code.co_filename != _IMPORT_FILE:
        frame = frame.f_back
    return frame is not None


_IMPORT_FILE = "<frozen importlib._bootstrap>"


def _watch(read_end: int) -> None:
    """End the process if the main thread does not answer a signal, read from `read_end`."""
    pause = threading.Event()
    while True:
        number = os.read(read_end, 1)
        if number[0] not in ENDING:
            continue
        checks = 0
        while checks < _CHECKS and not (_Watch.is_answered or _Watch.holders):
            pause.wait(GRACE_S / _CHECKS)
            checks += 1
        if not _Watch.holders:
            for stop in tuple(_Watch.stops):
                with suppress(Exception):
                    stop()
        if _Watch.is_answered:
            _raise_if_lost(signal.Signals(number[0]))
        if not _Watch.holders:
            _leave()
