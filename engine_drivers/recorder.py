"""The interface of a driver program.

Requests in, file operations out, as lines of JSON; what programs share.

Times are of the monotonic clock. Python's audit hook counts the opens and removals of files
besides, so that a file operation of the engine that no driver timed does not go unnoticed.
"""

import hashlib
import importlib.metadata
import json
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

POOL_BYTES = 64 << 20
_HEAD_BYTES = 16


@dataclass(frozen=True)
class Settings:
    """What an engine is to be driven with."""

    requests: str
    """Lines of JSON: [tokens, [block id, ...]]."""
    events: str
    """Where to say what happened."""
    directory: str
    """Empty, for the engine's files."""
    block_tokens: int
    """Tokens that a block id of a request stands for."""
    layers: int
    kv_heads: int
    head_dim: int
    cpu_bytes: int
    disk_bytes: int
    """0: no bound."""
    is_direct: bool = False

    @property
    def token_bytes(self) -> int:
        """KV bytes of a token: keys and values, of two bytes an element."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_dim


@dataclass(frozen=True)
class Prompt:
    """One request."""

    number: int
    tokens: int
    blocks: list[int]
    block_tokens: int

    def token_ids(self) -> list[int]:
        """Return tokens such that prompts share exactly the prefixes that their block ids share."""
        of_one = self.block_tokens
        return [block * of_one + place for block in self.blocks for place in range(of_one)][
            : self.tokens
        ]


@dataclass(frozen=True)
class Operation:
    """A file operation under way."""

    op: str
    name: str
    request: int | None
    length: int
    start_ns: int


class Notebook:
    """Collects what happens, and writes it down after each request."""

    def __init__(self, settings: Settings) -> None:
        """Record for `settings`."""
        self.settings = settings
        self.request: int | None = None
        self.seen = {"read": 0, "write": 0, "delete": 0}
        """Opens and removals that Python itself saw."""
        self.failure: str | None = None
        self._lines: list[object] = []
        self._out = Path(settings.events).open("a", encoding="utf-8")  # noqa: SIM115 - open as long as this
        self._prefix = settings.directory.rstrip("/") + "/"
        self._lock = threading.Lock()

    def facts(self, **known: object) -> None:
        """Say what the engine is."""
        self._lines.append(["facts", known])
        self.flush()

    def prompts(self) -> Iterator[Prompt]:
        """Yield the requests, and note when each began and ended."""
        with Path(self.settings.requests).open(encoding="utf-8") as lines:
            for number, line in enumerate(lines):
                tokens, blocks = json.loads(line)
                self.request = number
                start = time.monotonic_ns()
                yield Prompt(number, tokens, blocks, self.settings.block_tokens)
                self._lines.append(["request", number, start, time.monotonic_ns()])
                self.flush()
                if self.failure is not None:
                    raise RuntimeError(self.failure)
        self.request = None

    def hit(self, tokens: int) -> None:
        """Say how many tokens of the present request the engine found."""
        self._lines.append(["hit", self.request, tokens])

    def begin(self, op: str, path: str, length: int) -> Operation:
        """Return an operation of `length` bytes on the file at `path` that begins now."""
        name = path.removeprefix(self._prefix)
        return Operation(op, name, self.request, length, time.monotonic_ns())

    def end_of(self, begun: Operation, error: BaseException | None) -> None:
        """Record that `begun` is done, or failed."""
        end, said = (
            time.monotonic_ns(),
            None if error is None else f"{type(error).__name__}: {error}",
        )
        if said is not None:
            self.failure = f"{begun.op} of {begun.name}: {said}"
        self._lines.append(
            ["op", begun.op, begun.name, begun.request, begun.start_ns, end, begun.length, said]
        )

    @contextmanager
    def timed(self, op: str, path: str, length: int) -> Iterator[None]:
        """Record what runs within as `op` of `length` bytes on the file at `path`."""
        begun = self.begin(op, path, length)
        try:
            yield
        except BaseException as error:
            self.end_of(begun, error)
            raise
        self.end_of(begun, None)

    def time_removals(self) -> None:
        """Record each os.remove and os.unlink below the directory from now on, by the sizes that
        files had.
        """
        for name in ("remove", "unlink"):
            setattr(os, name, self._removing(getattr(os, name)))

    def _removing(self, remove: Callable[..., None]) -> Callable[..., None]:
        def removed(path: object, **options: object) -> None:
            if not (isinstance(path, str) and path.startswith(self._prefix)):
                remove(path, **options)
                return
            length = os.stat(path).st_size if os.path.exists(path) else 0  # noqa: PTH110, PTH116 - the engine's form
            with self.timed("delete", path, length):
                remove(path, **options)

        return removed

    def watch(self) -> None:
        """Count the opens and removals of files below the directory from now on."""

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            if (
                event == "open"
                and isinstance(arguments[0], str)
                and arguments[0].startswith(self._prefix)
            ):
                flags = arguments[2] if isinstance(arguments[2], int) else 0
                with self._lock:
                    self.seen["write" if flags & (os.O_WRONLY | os.O_RDWR) else "read"] += 1
            elif event == "os.remove" and str(arguments[0]).startswith(self._prefix):
                with self._lock:
                    self.seen["delete"] += 1

        sys.addaudithook(hook)

    def end(self) -> None:
        """Write down that all requests were served."""
        self._lines.append(["end", self.seen])
        self.flush()

    def flush(self) -> None:
        """Write down what was recorded so far."""
        lines, self._lines = self._lines, []
        self._out.write("".join(json.dumps(line) + "\n" for line in lines))
        self._out.flush()


class Contents:
    """Random bytes for what engines write.

    Cut at random places from a pool, so that hardly a block repeats.
    """

    def __init__(self, longest: int) -> None:
        """Make a pool from which `longest` bytes can be cut at many places."""
        self._places = random.Random(0)  # noqa: S311 - need not be secret
        self._pool = memoryview(bytearray(self._places.randbytes(POOL_BYTES + longest)))

    def cut(self, length: int) -> memoryview:
        """Return `length` bytes."""
        at = self._places.randrange(POOL_BYTES)
        return self._pool[at : at + length]


def page_keys(prompt: Prompt, page_tokens: int, name: str) -> list[str]:
    """Return the names of a prompt's whole pages.

    `name` formats the hash of its prefix of blocks and a page number.
    """
    digest, keys = hashlib.sha256(), []
    pages = -(-prompt.block_tokens // page_tokens)
    for block in prompt.blocks:
        digest.update(str(block).encode())
        keys += [name.format(digest.hexdigest(), page) for page in range(pages)]
    return keys[: prompt.tokens // page_tokens]


def version_of(*packages: str) -> str | None:
    """Return the version of the first of `packages` that is installed; None if none is."""
    for package in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package)
    return None


def run(drive: Callable[[Notebook], None], settings: str) -> int:
    """Drive an engine with the settings in the file `settings`; return the code to exit with."""
    recorder = Notebook(Settings(**json.loads(Path(settings).read_text(encoding="utf-8"))))
    try:
        drive(recorder)
        recorder.end()
    except BaseException:  # noqa: BLE001 - whatever it was, it goes into the log
        traceback.print_exc()
        recorder.flush()
        return 1
    return 0
