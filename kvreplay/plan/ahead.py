"""Reading ahead: what takes time to read is read by a thread, while another works on what was read before."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from queue import Queue
from typing import TypeVar

T = TypeVar("T")
_AHEAD = 2
"""Items that are read before they are wanted, at most."""


def ahead(items: Iterator[T]) -> Generator[T]:
    """Yield `items`, a few of which a thread takes ahead; what they raise is raised in their place."""
    ready: Queue[tuple[T | None, BaseException | None]] = Queue(_AHEAD)
    is_left = threading.Event()

    def read() -> None:
        try:
            for item in items:
                ready.put((item, None))
                if is_left.is_set():
                    return
            ready.put((None, None))
        except BaseException as error:  # noqa: BLE001 - raised again by the reader
            ready.put((None, error))

    thread = threading.Thread(target=read, name="read-ahead", daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if error is not None:
                raise error
            if item is None:
                return
            yield item
    finally:
        is_left.set()
        while thread.is_alive():
            # It may wait for room.
            while not ready.empty():
                ready.get()
            thread.join(0.01)
