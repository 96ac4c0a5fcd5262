"""The thread that lays rows ahead of a run and hands on those behind it.

So memory holds a window of the trace's rows, however long the trace is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

from kvreplay.plan.window import Loader
from kvreplay.result.recording import RunPart

PART_ROWS = 1 << 15
"""Rows that are handed on together, at most."""


_PAUSE_S = 0.002


class Feed:
    """Lays the rows of one run, and hands on completed ones, in order.

    A row that takes long holds up those after it until the window is full; then nothing more is
    laid before it ends.
    """

    def __init__(
        self,
        loader: Loader,
        hand: Callable[[RunPart], None],
        laid: Callable[[int, np.ndarray], None] | None = None,
    ) -> None:
        """Feed from `loader`, which has begun; `hand` takes completed rows.

        `laid` takes rows as they are laid, and the number of the first, so that a journal can apply
        the results that it recorded.
        """
        self._loader, self._hand, self._laid = loader, hand, laid
        self._rows = loader.rows
        self._given = 0
        self._work: Future[None] | None = None

    @property
    def trouble(self) -> str | None:
        """The error that ended the reading of the trace; None while it goes on."""
        return "the trace" if self._work and self._work.done() and self._work.exception() else None

    def fill(self) -> None:
        """Lay as many rows as fit the ring."""
        first = self._loader.laid
        self._loader.load()
        while self._laid is not None and first < self._loader.laid:
            rows = self._rows.within(first, self._loader.laid)
            self._laid(first, rows)
            first += len(rows)

    @contextmanager
    def running(self, wake: Callable[[], None]) -> Iterator[None]:
        """Feed a run for as long as the context lasts; KvError of the trace at its end."""
        is_over = threading.Event()

        def work() -> None:
            while not is_over.is_set():
                # In whole parts: how far a replay in simulated time sees ahead does not depend on
                # when this thread looks.
                ended_rows = int(self._rows.struct.ended) // PART_ROWS * PART_ROWS
                has_given, laid = self._give(ended_rows, PART_ROWS), self._loader.laid
                self.fill()
                if self._loader.laid > laid:
                    wake()
                elif not has_given:
                    is_over.wait(_PAUSE_S)

        with ThreadPoolExecutor(1, "kvreplay-feed") as pool:
            if not self._loader.is_whole:
                self._work = pool.submit(work)
            try:
                yield
            finally:
                is_over.set()
        if self._work is not None:
            self._work.result()

    def _give(self, until: int, min_rows: int) -> bool:
        """Hand on rows up to `until`, if at least `min_rows` of them are new.

        Return whether it was done.
        """
        if until - self._given < min_rows:
            return False
        while self._given < until:
            rows = self._rows.within(self._given, min(until, self._given + PART_ROWS))
            self._hand(RunPart(self._given, rows))
            self._given += len(rows)
            self._rows.struct.given = self._given
        self._loader.forget(self._given)
        return True

    def finish(self, total: int) -> None:
        """Hand on the remaining rows up to `total`; nothing more will be done to them."""
        while self._given < total:
            self._give(min(total, self._loader.laid), 1)
            if self._given < total:
                self.fill()
        self._loader.close()
