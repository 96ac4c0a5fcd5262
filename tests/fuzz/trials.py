"""What a case is: something to do, and how it may break a promise."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


class Broken(AssertionError):
    """A promise that does not hold."""


@dataclass
class Reading:
    """A reader, called in this process: it must return something sound, or raise a KvError."""

    call: Callable[[], object]


@dataclass
class Command:
    """A command line, run in this process; `outputs` must not be there if it fails."""

    argv: list[str]
    outputs: list[str] = field(default_factory=list)
    is_json: bool = False


Trial = Reading | Command
Target = Callable[[random.Random, Path], Trial]


def need(is_so: object, what: str) -> None:
    if not is_so:
        raise Broken(what)
