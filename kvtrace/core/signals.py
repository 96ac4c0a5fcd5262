"""How the programs answer a signal that asks them to end, from their first line on.

Each program imports this module before all others, because importing those takes longer than a
user, or a batch system, may wait with a signal:

    while it imports          it leaves at once: nothing has been made yet
    while a command runs      KeyboardInterrupt in the main thread, so that all is closed and removed
    in a replay               `noted_signals` notes them, and what was measured is kept
    in a library's C code     no exception can be raised there; after GRACE_S a thread removes
                              temporary files and leaves

In each case the exit code is 130, and stderr has one line.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

INTERRUPTED = 130
"""The exit code of a program that a signal ended."""
GRACE_S, _LOOKS = 0.8, 40
"""How long the main thread may take before it answers, and how often that is looked at."""
_HUNG_UP = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL else []
ENDING = (signal.SIGINT, signal.SIGTERM, *_HUNG_UP)
"""Signals that ask a program to end.

SIGHUP but where nohup has it ignored.
"""
_Handler = Callable[[int, object], object] | signal.Handlers


class _Watch:
    """What the watching thread knows of the main thread."""

    program = ""
    """The program that this process is; empty where a program runs within another."""
    is_answered = False
    """Whether KeyboardInterrupt was raised in the main thread, so that all is being closed."""
    holders = 0
    """How many blocks note signals by themselves."""


def leave_on_signals(program: str, module: str) -> None:
    """Let signals end the process at once, if `module`, which calls this, is started as `program`.

    A process that ignores SIGINT, as a shell starts jobs in the background, goes on to do so.
    """
    if module != "__main__" and os.path.basename(sys.argv[0]) != program:  # noqa: PTH119 - pathlib takes 10 ms
        return
    _Watch.program = program
    # Registered first, so called last. Python then gives its handlers up, and a signal would kill.
    atexit.register(_set_all, signal.SIG_IGN)
    _set_all(lambda _number, _frame: _leave())


def _set_all(handler: _Handler) -> None:
    """Let `handler` take all signals that this process does not ignore."""
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def was_interrupted() -> bool:
    """Return whether a signal raised KeyboardInterrupt, which a library may turn into its own error."""
    return _Watch.is_answered


def _leave() -> None:
    """Remove temporary files, say that the program was interrupted, and end it at once."""
    if "kvtrace.core.temporary" in sys.modules:
        sys.modules["kvtrace.core.temporary"].remove_live()
    with suppress(OSError):
        os.write(2, f"{_Watch.program}: error: interrupted\n".encode())
    os._exit(INTERRUPTED)


@contextmanager
def raised_signals() -> Iterator[None]:
    """Let signals raise KeyboardInterrupt in the main thread while the block lasts.

    In a program of its own, a thread ends it if the main thread does not answer, and a signal that
    comes behind the block ends it at once.
    """
    _Watch.is_answered = False

    def interrupt(_number: int, _frame: object) -> None:
        _Watch.is_answered = True
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in ENDING}
    _set_all(interrupt)
    if _Watch.program:
        _start_watching()
    try:
        yield
    finally:
        if _Watch.program:
            _set_all(lambda _number, _frame: _leave())
        else:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def handled_signals(note: Callable[[int, object], None]) -> Iterator[None]:
    """Let `note` handle signals while the block lasts, however long it takes to end."""
    before = {number: signal.signal(number, note) for number in ENDING}
    _Watch.holders += 1
    try:
        yield
    finally:
        _Watch.holders -= 1
        for number, handler in before.items():
            signal.signal(number, handler)


def _start_watching() -> None:
    """Start a thread that is told of each signal as it comes, whatever the main thread does."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    # A forked process shares the pipe: its signals are none of ours.
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
    threading.Thread(target=_watch, args=(read_end,), name="signals", daemon=True).start()


def _watch(read_end: int) -> None:
    """End the process if the main thread does not answer a signal that comes through `read_end`."""
    pause = threading.Event()
    while True:
        number = os.read(read_end, 1)
        if number[0] not in ENDING:
            continue
        looks = 0
        while looks < _LOOKS and not (_Watch.is_answered or _Watch.holders):
            pause.wait(GRACE_S / _LOOKS)
            looks += 1
        if _Watch.is_answered:
            return
        if not _Watch.holders:
            _leave()
