"""End a program with one line before the kernel kills it without a word.

A command that can tell beforehand how much memory it will need checks that, and refuses to begin.
The guard is for what nobody foresaw. A program that has become large starts a thread in C
(`native/memory_guard.c`), which looks at the memory that is left; small ones pay nothing for it.
Temporary files of a program that it ends are removed by the next one (see `temporary.py`).
"""

from __future__ import annotations

import threading
from contextlib import suppress

from kvtrace.core.errors import DeviceError
from kvtrace.core.memory import memory_limits, resident_bytes
from kvtrace.core.signals import own_program

_LOOK_S = 0.1
"""The time between two looks at the size of a small program."""
_KEYS = 3
"""How many prefixes of lines a limit has in the C code; unused ones are empty."""
_LARGE_SHARE = 0.1
"""The share of the least limit from which on a program is guarded."""


def guard_memory() -> None:
    """Guard this process once it is large, if it is one of our programs."""
    if own_program():
        threading.Thread(target=_guard_when_large, name="memory", daemon=True).start()


def _guard_when_large() -> None:
    """Wait until this process is large, then start the guard."""
    limits = list(memory_limits())
    if not limits:
        return
    large_bytes = _LARGE_SHARE * min(limit.limit_bytes for limit in limits)
    pause = threading.Event()
    while (resident_bytes() or 0) < large_bytes:
        pause.wait(_LOOK_S)
    # Imported here, because they take as long as a small command.
    import ctypes

    from kvtrace.core.native.library import library

    with suppress(DeviceError):  # A command that needs the library says that it was not built.
        native = library()
        for limit in limits:
            padding = [b""] * (_KEYS - len(limit.keys))
            native.memory_guard_add(
                ctypes.c_int64(limit.limit_bytes),
                str(limit.used or "").encode(),
                str(limit.stat).encode(),
                (ctypes.c_char_p * _KEYS)(*(key.encode() for key in limit.keys), *padding),
                str(limit.kernel_used or "").encode(),
                ctypes.c_int64(limit.swap_bytes),
                str(limit.swap_used or "").encode(),
            )
        native.memory_guard_start(_REASON.format(own_program()).encode())


_REASON = (
    "{}: error: out of memory: hardly any is left on the machine, or in this control group; give it"
    " more memory, or less at a time: a shorter time, fewer users, nodes or rows, part of the file\n"
)
