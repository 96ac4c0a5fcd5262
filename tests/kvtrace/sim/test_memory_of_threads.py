"""The memory of simulations in several threads is counted together."""

from __future__ import annotations

import sys
import threading

import numpy as np

from kvtrace.sim.simulation import GrowableTables


class Owner:
    """A structure with two tables."""

    def __init__(self) -> None:
        self.slots = np.empty(0, np.int64)
        self.actors = np.empty(0, np.int64)


def test_tables_grow_in_many_threads_at_once() -> None:
    failed: list[BaseException] = []

    def grow() -> None:
        try:
            for _ in range(300):
                tables, owner = GrowableTables(), Owner()
                for name in ("slots", "actors"):
                    tables.extend(owner, name, 10)
        except BaseException as error:  # noqa: BLE001 - shown by the assertion
            failed.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=grow) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failed
