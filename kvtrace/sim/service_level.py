"""A service level: the limits of TTFT and TPOT within which a request counts as served well.

Goodput is the share of requests, or their rate, within both limits (Zhong et al., DistServe, OSDI
2024).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

import numpy as np

from kvtrace.core.arrays import Array
from kvtrace.core.errors import ConfigError
from kvtrace.core.json_types import JsonObject
from kvtrace.core.parameters import named
from kvtrace.core.simulation_stats import Goodput
from kvtrace.core.units import NS_PER_S, format_duration, parse_duration_ns, parse_share

SHARE: Final = 0.99
"""The share of requests that must be within the limits, unless another is given."""
_EXAMPLE: Final = "ttft=2s,tpot=50ms"


@dataclass(frozen=True, slots=True)
class ServiceLevel:
    """The limits of a service level objective (SLO); None for no limit."""

    ttft_ns: int | None = None
    """Largest time to first token."""
    tpot_ns: int | None = None
    """Largest time per output token: from the first token to the last, over the tokens between."""
    share: float = SHARE
    """The share of requests that must be within the limits."""

    def describe(self) -> str:
        """Return the limits as text, such as "TTFT 2 s and TPOT 50 ms"."""
        limits = {"TTFT": self.ttft_ns, "TPOT": self.tpot_ns}
        return " and ".join(
            f"{name} {format_duration(limit)}" for name, limit in limits.items() if limit
        )

    def to_dict(self) -> JsonObject:
        """Return the service level as `--json` prints it."""
        return asdict(self)

    def goodput(self, ttft_ns: Array, tpot_ns: Array, span_ns: int) -> Goodput:
        """Return the goodput of requests with these times, -1 where a request has none.

        A request without a TTFT never got its first token, and is not served well. One without a
        TPOT has an answer of one token, whose only limit is that of TTFT. The requests were served
        over `span_ns`.
        """
        is_good = ttft_ns >= 0
        if self.ttft_ns is not None:
            is_good &= ttft_ns <= self.ttft_ns
        if self.tpot_ns is not None:
            is_good &= tpot_ns <= self.tpot_ns
        good = int(np.count_nonzero(is_good))
        return Goodput(
            ttft_limit_ns=self.ttft_ns,
            tpot_limit_ns=self.tpot_ns,
            requests=good,
            share=good / len(is_good) if len(is_good) else None,
            requests_per_s=good * NS_PER_S / span_ns if span_ns else None,
        )


def parse_service_level(text: str) -> ServiceLevel:
    """Return the service level of a text such as "ttft=2s,tpot=50ms,share=95%".

    ConfigError if a part is unknown, repeated or not above 0, or if there is no limit.
    """
    limits: dict[str, int] = {}
    share: float | None = None
    for part in text.split(","):
        name, separator, value = (field.strip() for field in part.partition("="))
        if not separator or name not in ("ttft", "tpot", "share"):
            raise ConfigError(
                f"{named('slo', text)}: {part.strip()!r} is unknown; write for example {_EXAMPLE},"
                " and share=95% for another share of requests"
            )
        if name in limits or (name == "share" and share is not None):
            raise ConfigError(f"{named('slo', text)}: {name} is there twice")
        if name == "share":
            share = parse_share(value, "slo")
            if not 0 < share <= 1:
                raise ConfigError(f"{named('slo', text)}: share must be > 0, and at most 100%")
            continue
        limits[name] = parse_duration_ns(value)
        if not limits[name]:
            raise ConfigError(f"{named('slo', text)}: {name} must be > 0")
    if not limits:
        raise ConfigError(f"{named('slo', text)}: give a limit, such as {_EXAMPLE}")
    return ServiceLevel(limits.get("ttft"), limits.get("tpot"), SHARE if share is None else share)
