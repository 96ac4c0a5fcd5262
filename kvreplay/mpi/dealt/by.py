"""What a trace is dealt by: what stays together on one rank."""

from __future__ import annotations

from enum import StrEnum

from kvtrace.core.errors import ConfigError


class Deal(StrEnum):
    """What `--deal` takes: what stays together."""

    NODE = "node"
    USER = "user"
    OBJECT = "object"


def parse_deal(text: str | None) -> Deal | None:
    """Return what `--deal` names; ConfigError for what cannot be dealt."""
    if text is None or text in tuple(Deal):
        return None if text is None else Deal(text)
    raise ConfigError(f"--deal {text}: choose {', '.join(Deal)}")
