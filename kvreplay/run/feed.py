"""The thread beside a run that lays rows ahead of it, and hands on those behind it: memory holds a window of rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kvreplay.plan.loader import Loader
from kvreplay.result.part import RunPart

PART_ROWS = 1 << 15
"""Rows that are handed on together, at most."""
_PAUSE_S = 0.002


class Feed:
    """Lays the rows of one run, and hands on those that are over, in their order.

    One that takes long holds up those after it, until the window is full; then nothing more is laid before it ends.
    """

    def __init__(
        self,
        loader: Loader,
        hand: Callable[[RunPart], None],
        *,
        is_open_loop: bool,
        laid: Callable[[int, Any], None] | None = None,
    ) -> None:
        """Feed from `loader`, which has begun; `hand` takes the rows that are over.

        `laid` takes rows as they are laid, and the number of the first: a journal knows what was done of them.
        """
        self._loader, self._hand, self._is_open_loop, self._laid = loader, hand, is_open_loop, laid
        self._rows = loader.rows
        self._given = 0
        self._error: BaseException | None = None

    @property
    def trouble(self) -> str | None:
        """What ended the reading of the trace; None while it goes on."""
        return None if self._error is None else "the trace"

    def fill(self) -> None:
        """Lay as many rows as have room."""
        first = self._loader.laid
        self._loader.load()
        if self._laid is not None:
            self._tell(first)

    def _tell(self, first: int) -> None:
        while first < self._loader.laid:
            rows = self._rows.within(first, self._loader.laid)
            assert self._laid is not None, "only then is it told"
            self._laid(first, rows)
            first += len(rows)

    @contextmanager
    def running(self, wake: Callable[[], None]) -> Iterator[None]:
        """Feed a run for as long as the context lasts; KvError of the trace at its end."""
        is_over = threading.Event()

        def work() -> None:
            try:
                while not is_over.is_set():
                    has_given, laid = self._give(int(self._rows.struct.ended), PART_ROWS), self._loader.laid
                    self.fill()
                    if self._loader.laid > laid:
                        wake()
                    elif not has_given:
                        is_over.wait(_PAUSE_S)
            except BaseException as error:  # noqa: BLE001 - raised again below
                self._error = error

        thread = threading.Thread(target=work, name="kvreplay-feed", daemon=True)
        if not self._loader.is_whole:
            thread.start()
        try:
            yield
        finally:
            is_over.set()
            if thread.ident is not None:
                thread.join()
        if self._error is not None:
            raise self._error

    def _give(self, until: int, least: int) -> bool:
        """Hand on the rows before `until` that were not, if they are `least`; return whether it was done."""
        if until - self._given < least:
            return False
        while self._given < until:
            rows = self._rows.within(self._given, min(until, self._given + PART_ROWS))
            self._hand(RunPart(self._given, rows, self._is_open_loop))
            self._given += len(rows)
            self._rows.struct.given = self._given
        self._loader.forget(self._given)
        return True

    def finish(self, total: int) -> None:
        """Hand on the rows that were not yet, up to `total`, of which nothing more will be done."""
        while self._given < total:
            self._give(min(total, self._loader.laid), 1)
            if self._given < total:
                self.fill()
        self._loader.close()
