"""A replay that starts and ends with others: what it asks of whoever brings them together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kvreplay.engine.job import CommonStart


class Together(CommonStart, Protocol):
    """The other replays."""

    @property
    def reason(self) -> str | None:
        """Why all are to end now; null while they are not."""

    def ready(self) -> None:
        """Return when all are prepared to the last step before the first operation.

        Raises:
            KvError: one cannot be: none is to start.

        """


def ended_by(interrupted: Callable[[], str | None], together: Together | None) -> Callable[[], str | None]:
    """Return what names the reason to stop: a signal, or one that ends all."""
    if together is None:
        return interrupted
    return lambda: interrupted() or together.reason


def meet(together: Together | None) -> None:
    """Return when all are prepared; errors as of `Together.ready`."""
    if together is not None:
        together.ready()
