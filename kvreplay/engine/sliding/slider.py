"""The thread that keeps a plan's rows loaded ahead of a run, hands on those behind it, and gives their memory back."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from kvreplay.engine.sliding.behind import TIMES, Behind, follow, forget, join
from kvreplay.plan.held.column import column, give_back, hand_on
from kvreplay.plan.loader import BATCH_ROWS, WINDOW_ROWS, Loader
from kvtrace.core.compiled import compile_announced

if TYPE_CHECKING:
    from kvreplay.engine.tables import Tables

AHEAD_ROWS = WINDOW_ROWS // 2
"""Rows that are loaded before their turn, at most."""
PART_ROWS = BATCH_ROWS // 2
"""Rows that are handed on together, at most: what is made of them lives for a moment, but takes 200 bytes each."""
_PAUSE_S = 0.005
_KINDS = ("stage", "object")


class SlidingRecord(Protocol):
    """What was measured of a plan's rows: `job.Record`, or what a journal kept of one."""

    def begin(self, first: int, last: int) -> None:
        """Note what was done of the rows from `first` to before `last`, which were just laid: nothing, of a run."""

    def columns(self) -> list[Any]:
        """Return the arrays."""


class Slider:
    """Loads the rows of one run, and forgets those that are over.

    Rows are forgotten in their order: `given` to whoever asked for them, then to the kernel, by a thread beside the one
    that loads. One that takes long holds up those after it, until the window is full; then nothing more is loaded
    before it has ended.
    """

    def __init__(
        self,
        loader: Loader,
        record: SlidingRecord,
        hand: Callable[[int, int], None],
        *,
        is_kept: bool = False,
        is_known: bool = False,
    ) -> None:
        """Slide what `loader` lays and the `record`; `hand` takes the rows that are over (the first, the one after).

        If rows are to be kept, none is forgotten, and `hand` takes them all at the end. If it `is_known` what was done,
        the record may tell of rows that are not laid yet.
        """
        self._is_known = is_known
        self._loader, self._record, self._hand, self._is_kept = loader, record, hand, is_kept
        self._room = loader.rows + BATCH_ROWS if is_kept else WINDOW_ROWS
        self.loaded = np.array([loader.laid])
        """One number, which compiled code sees: how many rows are there."""
        self._behind = Behind(
            **{name: getattr(loader.laying, name) for name in ("requests", "objects")},
            **{
                f"{kind}_{name}": getattr(loader.laying, f"{kind}_{name}")
                for kind in _KINDS
                for name in ("number", "ended")
            },
        )
        self._behind.state["free_group"] = -1
        self._columns: list[Any] = []
        self._tables: Tables | None = None
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._pending: tuple[int, int] | None = None
        self._given = self._forgotten = 0
        self._giving: Future[None] | None = None

    def take(self, tables: Tables, columns: list[Any], due_ns: Any) -> list[Any]:
        """Slide `columns` of a schedule, too; return two that say when the group of a row was opened, or None twice."""
        self._tables, self._columns = tables, columns
        if due_ns is None:
            return [None, None]
        rows = self._loader.rows
        since = [column(rows, np.int64) for _ in _KINDS]
        self._columns = [*columns, *since]
        behind = self._behind
        behind.due = due_ns
        behind.stage_since, behind.object_since = since
        behind.stage_times = column(len(behind.requests), TIMES)
        behind.object_times = column(len(behind.objects), TIMES)
        return since

    def start(self) -> None:
        """Begin: the schedule is made, nothing was submitted."""
        with compile_announced():
            join(self._behind, self._address, 0, 0)
            follow(self._behind, self._address)
            forget(self._behind, self._address, 0, 1)
        self._thread = threading.Thread(target=self._slide, name="slider", daemon=True)
        self._thread.start()

    @property
    def _address(self) -> int:
        if self._tables is None:
            raise RuntimeError("a slider needs a schedule")
        return self._tables.address

    def _slide(self) -> None:
        try:
            with ThreadPoolExecutor(1, thread_name_prefix="slider-behind") as behind:
                while not self._is_over.is_set():
                    low = follow(self._behind, self._address)
                    moved = self._forget(low, behind)
                    if not self._load(low) and not moved:
                        self._is_over.wait(_PAUSE_S)
                self._end_giving()
        except BaseException as error:  # noqa: BLE001 - raised again by `stop`
            self._error = error

    def _end_giving(self) -> None:
        """Wait for what is handed on.

        Raises:
            KvError: what became of it.

        """
        if self._giving is not None:
            self._giving.result()
            self._giving = None

    def _forget(self, low: int, behind: ThreadPoolExecutor) -> bool:
        """Forget rows that are over, as soon as all that can refer to them have looked; return whether there were any.

        Rows laid from now on know of those before `low` what they need; those laid before have to be entered first.
        """
        if self._is_kept:
            return False
        if self._pending is None and low >= self._forgotten + BATCH_ROWS // 2:
            self._pending = low, self._loader.laid
        if self._pending is None or self._cursor < self._pending[1]:
            return False
        if self._giving is not None and not self._giving.done():
            return False
        self._end_giving()
        until, self._pending = self._pending[0], None
        forget(self._behind, self._address, until, self._loader.laid)
        self._forgotten = until
        self._giving = behind.submit(self._give, until)
        return True

    @property
    def _cursor(self) -> int:
        return 0 if self._tables is None else int(self._tables.job.cursor)

    def _load(self, low: int) -> bool:
        """Load more rows if there is room; return whether it was done."""
        loader = self._loader
        laid = loader.laid
        has_room = laid + BATCH_ROWS <= self._given + self._room and laid < self._cursor + AHEAD_ROWS
        if loader.is_whole or not has_room:
            return False
        loader.load(laid + 1, low)
        self._record.begin(laid, loader.laid)
        join(self._behind, self._address, laid, loader.laid)
        self.loaded[0] = loader.laid
        return True

    def _give(self, until: int) -> None:
        """Hand on the rows before `until` that were not, some at a time, and give their memory back."""
        for first in range(self._given, until, PART_ROWS):
            self._hand(first, min(until, first + PART_ROWS))
        if not self._is_kept:
            # What is loaded meanwhile lies before the rows that follow these by so many.
            by = self._room + mmap.PAGESIZE
            for of in self._loader.columns:
                hand_on(of, self._given, until, by, is_emptied=False)
            for of in self._columns:
                hand_on(of, self._given, until, by, is_emptied=True)
            for of in self._record.columns():
                if self._is_known:
                    give_back(of, self._given, until)
                else:
                    hand_on(of, self._given, until, by, is_emptied=False)
            self._loader.let_go()
        self._given = until

    def stop(self) -> None:
        """Load nothing more for the engine, which is over.

        Raises:
            KvError: the trace could not be read on.

        """
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            raise self._error

    def ended_by(self, interrupted: Callable[[], str | None]) -> Callable[[], str | None]:
        """Return what names the reason to stop: that of `interrupted`, or that no more rows will come."""
        return lambda: interrupted() or (None if self._error is None else "the trace")

    def finish(self, rows: int) -> None:
        """Hand on the rows that were not yet, up to `rows`, of which nothing more will be done."""
        while True:
            if not self._is_kept or self._loader.laid >= rows:
                self._give(min(rows, self._loader.laid))
            if self._loader.laid >= rows:
                break
            first = self._loader.laid
            self._loader.load(first + 1, first)
            self._record.begin(first, self._loader.laid)
        self._loader.close()
