"""The shared library that the C files of this folder make when kvtrace is installed."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

from kvtrace.core.errors import DeviceError

FILE = Path(os.environ.get("KVREPLAY_NATIVE") or Path(__file__).parent / "libreplay.so")
"""Another one is that of a sanitizer's, in tests."""


@functools.cache
def library() -> ctypes.CDLL:
    """Return the library; DeviceError, saying what to do, if it was not built, or its sources changed since."""
    try:
        if any(source.stat().st_mtime > FILE.stat().st_mtime for source in Path(__file__).parent.glob("*.[ch]")):
            raise DeviceError(f"{FILE} is older than its sources; run make native")
        return ctypes.CDLL(str(FILE), use_errno=True)
    except OSError as error:
        message = f"the replay engine cannot be loaded ({error}); install kvtrace again: pip install --force-reinstall"
        raise DeviceError(f"{message} kvtrace") from None
