"""Every request source by name: what it is, which options it takes, how to know its files, and how to read them.

It imports no source before one is read, so that a command's help can name them all.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.tables import SUFFIXES

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.requests.requests import Requests
    from kvtrace.requests.shaping import Shape

SOURCES: Final[dict[str, tuple[str, ...]]] = {
    "mooncake": ("time_unit", "block_tokens"),
    "bailian": ("block_tokens",),
    "burstgpt": (),
    "azure": (),
    "sharegpt": ("request_rate_per_s", "live_conversations", "max_conversations", "tokenizer"),
    "agentic": ("conversation_rate_per_s",),
    "requests": (),
}
"""The options that each source takes."""
DRAWING: Final = ("sharegpt", "agentic")
"""The sources that draw what their files do not say."""
FLAGS: Final = {
    "time_unit": "--time-unit", "block_tokens": "--block-tokens", "request_rate_per_s": "--request-rate",
    "live_conversations": "--live-conversations", "max_conversations": "--max-conversations",
    "tokenizer": "--tokenizer", "conversation_rate_per_s": "--conversation-rate",
}  # fmt: skip
_HEAD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Options:
    """What the user said of a source; None where the source's own default holds."""

    time_unit: str | None = None
    block_tokens: int | None = None
    request_rate_per_s: float | None = None
    live_conversations: int | None = None
    max_conversations: int | None = None
    tokenizer: str | None = None
    conversation_rate_per_s: float | None = None

    def given(self) -> dict[str, str | int | float]:
        """Return what was said."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}


def read(kind: str, path: Path, options: Options, wanted: Shape, seed: int) -> Requests:
    """Return the requests of `path`, a source of `kind`, shaped as `wanted`; all that is drawn comes from `seed`.

    Raises:
        ConfigError: an unknown kind, or an option that this kind does not take.
        TraceError: the file is not what it should be.

    """
    import numpy as np

    from kvtrace.requests.shaping import shape

    if kind not in SOURCES:
        raise ConfigError(f"unknown source {kind!r}; known are {', '.join(SOURCES)}")
    given = options.given()
    for name in given:
        if name not in SOURCES[kind]:
            takers = ", ".join(source for source, names in SOURCES.items() if name in names)
            raise ConfigError(f"{FLAGS[name]} is for --source {takers}; {kind} has no use for it")
    module = importlib.import_module(f"kvtrace.requests.{'own_table' if kind == 'requests' else kind}")
    drawn = (np.random.default_rng(seed),) if kind in DRAWING else ()
    requests: Requests = module.read(path, *drawn, **given)
    return shape(requests, wanted, np.random.default_rng([seed, 1]))


def detect(path: Path) -> str:
    """Return the one source that `path` can be, by its name and its first bytes.

    Raises:
        TraceError: there is no such file.
        ConfigError: it could be none, or the wrong one.

    """
    found = _of_directory(path) if path.is_dir() else _of_file(path)
    if found is None:
        raise ConfigError(f"cannot tell what {path} is: say so with --source, one of {', '.join(SOURCES)}")
    return found


def _of_directory(path: Path) -> str | None:
    has_json, has_csv = any(path.glob("*.json")), any(path.glob("*.csv"))
    if has_json == has_csv:
        return None
    first = min(path.glob("*.json" if has_json else "*.csv"))
    kind = _of_file(first)
    return kind if kind == ("agentic" if has_json else "burstgpt") else None


def _of_file(path: Path) -> str | None:
    if path.name.endswith(SUFFIXES):
        return "requests"
    if not path.exists() and any(c in path.name for c in "*?["):
        first = min(path.parent.glob(path.name), default=None)
        return "burstgpt" if first is not None and _of_file(first) == "burstgpt" else None
    if not path.is_file():
        raise TraceError("no such file", path=path)
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip()
    line = head.split(b"\n", 1)[0]
    if head.startswith(b"["):
        return "sharegpt" if b'"conversations"' in head else None
    if head.startswith(b"{"):
        return _of_object(head, line)
    names = {name.strip() for name in line.decode(errors="replace").split(",")}
    if {"TIMESTAMP", "ContextTokens", "GeneratedTokens"} <= names:
        return "azure"
    return "burstgpt" if {"Timestamp", "Request tokens", "Response tokens"} <= names else None


def _of_object(head: bytes, line: bytes) -> str | None:
    if b'"block_size"' in head and b'"requests"' in head:
        return "agentic"
    if b'"timestamp"' not in line or b'"hash_ids"' not in line:
        return None
    return "bailian" if b'"chat_id"' in line else "mooncake"
