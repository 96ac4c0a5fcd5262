"""Synthetic users in an open loop: arrivals evenly spaced, Poisson, bursty (gamma) or diurnal, that wait for nobody.

Every process that is drawn has its rate exactly, in expectation, over any window: it begins in the midst of an
interval, as if it had always run. (Begun with an arrival, bursty ones would have more.)

The turns are those of the closed loop's users. Which conversation the n-th request belongs to, and how long it is,
depends on the seed and on how many conversations go on, not on its time: another process of arrivals asks the same, at
other times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kvtrace.core.errors import ConfigError
from kvtrace.core.native.library import I8, function
from kvtrace.core.schema import RequestKind
from kvtrace.core.units import DURATIONS_NS, NS_PER_S, format_duration
from kvtrace.native.records import USER, WORLD
from kvtrace.requests.requests import MAX_NS, NONE, Ints, Requests, without_blocks
from kvtrace.requests.synthetic import CONTINUE_PER_MILLE, MAX_TURNS, make_users

Floats = NDArray[np.float64]

US: Final = 1_000
US_PER_S: Final = NS_PER_S // US
MAX_REQUESTS: Final = 10**8
MIN_BURSTINESS: Final = 0.01
MAX_BURSTINESS: Final = 100.0
# Fixed, so that a longer window begins with the same arrivals.
_BLOCK = 1 << 16


class Process(StrEnum):
    """How arrivals are spread in time."""

    POISSON = "poisson"
    GAMMA = "gamma"
    CONSTANT = "constant"
    DIURNAL = "diurnal"


@dataclass(frozen=True, slots=True)
class ArrivalProcess:
    """A process of arrivals; `day_ns` and `amplitude` are of DIURNAL only."""

    rate_per_s: float
    """The mean; of DIURNAL, over a whole day."""
    process: Process = Process.POISSON
    burstiness: float | None = None
    """GAMMA: the intervals' standard deviation over their mean; 1 is Poisson, more is burstier."""
    day_ns: int = DURATIONS_NS["d"]
    amplitude: float = 0.5
    """How far the rate swings from its mean, as a share of it."""

    def __post_init__(self) -> None:
        """Raise ConfigError for parameters out of range, or of another process."""
        if not 0 < self.rate_per_s < math.inf:
            raise ConfigError(f"request rate(={self.rate_per_s:g}) must be > 0 a second")
        if self.process is Process.GAMMA:
            if self.burstiness is None:
                raise ConfigError("gamma arrivals need a burstiness, the intervals' coefficient of variation")
            if not MIN_BURSTINESS <= self.burstiness <= MAX_BURSTINESS:
                raise ConfigError(
                    f"burstiness(={self.burstiness:g}) must be from {MIN_BURSTINESS:g} to {MAX_BURSTINESS:g}"
                )
        elif self.burstiness is not None:
            raise ConfigError(f"burstiness(={self.burstiness:g}) is of gamma arrivals; {self.process} have none to set")
        if not 0 <= self.amplitude <= 1:
            raise ConfigError(f"amplitude(={self.amplitude:g}) must be from 0 to 1")
        if self.day_ns < US:
            raise ConfigError(f"day(={self.day_ns} ns) must be at least 1 µs")

    def expected(self, until_ns: int) -> float:
        """Return how many arrivals are expected before `until_ns`."""
        length = until_ns / NS_PER_S
        if self.process is Process.DIURNAL:
            day = self.day_ns / NS_PER_S
            half = float(sine_of_turns(np.array([until_ns % self.day_ns / self.day_ns / 2]))[0])
            length += self.amplitude * day / math.pi * half * half
        return self.rate_per_s * length

    def times_ns(self, seed: int, until_ns: int, limit: int | None = None) -> Ints:
        """Return when requests arrive, ns, in order, from 0 to before `until_ns`, the first `limit` of them.

        Times are whole microseconds. A longer window or a larger limit begins with the same arrivals.

        Raises:
            ConfigError: there would be more than MAX_REQUESTS, or `until_ns` is beyond the clock.

        """
        if until_ns > MAX_NS:
            raise ConfigError(f"{format_duration(until_ns)} is longer than a trace's clock")
        count = min(self.expected(until_ns), MAX_REQUESTS + 1 if limit is None else limit)
        if count > MAX_REQUESTS:
            raise ConfigError(
                f"{self.rate_per_s:g} requests a second for {format_duration(until_ns)} are more than "
                f"{MAX_REQUESTS} requests: lower one of the two, or set a maximum of requests"
            )
        if self.process is Process.CONSTANT:
            even_us = np.rint(np.arange(math.ceil(count)) * US_PER_S / self.rate_per_s).astype(np.int64)
            return even_us[even_us * US < until_ns] * US
        found: list[Ints] = []
        total = 0
        for times_us in self._drawn(np.random.Generator(np.random.PCG64([seed, 2]))):
            kept = times_us[times_us * US < until_ns]
            found.append(np.floor(kept).astype(np.int64) * US)
            total += len(kept)
            if len(kept) < len(times_us) or (limit is not None and total >= limit):
                break
        return np.concatenate(found)[:limit]

    def as_origin(self) -> dict[str, Any]:
        """Return what the metadata records of the process; null for parameters that it does not have."""
        is_diurnal = self.process is Process.DIURNAL
        return {
            "arrivals": str(self.process),
            "request_rate_per_s": self.rate_per_s,
            "burstiness_cv": self.burstiness,
            "day_ns": self.day_ns if is_diurnal else None,
            "day_amplitude": self.amplitude if is_diurnal else None,
        }

    def describe(self) -> str:
        """Return a description of the process that continues "requests arrive"."""
        rate = f"{self.rate_per_s:g} a second"
        if self.process is Process.DIURNAL:
            low, high = (f"{self.rate_per_s * (1 + way * self.amplitude):g}" for way in (-1, 1))
            return (
                f"at random (Poisson) at a rate that is a sine over a day of {format_duration(self.day_ns)}: {rate} "
                f"on average and at the start, {high} a quarter of a day later, {low} after three quarters"
            )
        if self.process is Process.GAMMA:
            return f"{rate} with gamma intervals, coefficient of variation {self.burstiness:g} (1 is Poisson)"
        return f"evenly, {rate} from 0" if self.process is Process.CONSTANT else f"at random (Poisson), {rate}"

    def _drawn(self, rng: np.random.Generator) -> Iterator[Floats]:
        """Yield times, µs, block after block, without end."""
        shape = 1.0 if self.burstiness is None else 1 / (self.burstiness * self.burstiness)
        peak = 1 + self.amplitude if self.process is Process.DIURNAL else 1.0
        scale_us = US_PER_S / (self.rate_per_s * peak * shape)
        # What is left, at a random moment, of the interval it falls in: long ones are met more often.
        now_us = rng.random() * rng.standard_gamma(shape + 1) * scale_us
        while True:
            gaps = rng.standard_gamma(shape, _BLOCK)
            times_us = now_us + np.concatenate([np.zeros(1), np.cumsum(gaps * scale_us)])
            now_us = times_us[-1]
            times_us = times_us[:-1]
            if self.process is Process.DIURNAL:
                chances = 1 + self.amplitude * sine_of_turns(times_us * US / self.day_ns)
                times_us = times_us[rng.random(_BLOCK) * peak < chances]
            yield times_us


def sine_of_turns(turns: Floats) -> Floats:
    """Return sin(2π `turns`) to 1e-11, from sums and products alone: the same on every machine and C library."""
    folded = np.abs((turns - 0.25) % 1.0 - 0.5) - 0.25
    angle = folded * math.tau
    square, sine = angle * angle, np.zeros_like(angle)
    for power in range(17, 0, -2):
        sine = sine * square + (-1) ** (power // 2) / math.factorial(power)
    return sine * angle


LIVE_CONVERSATIONS: Final = 64
MAX_LIVE: Final = 10**7

_TURN, _PLACE = WORLD.dtype("Turn"), WORLD.dtype("Place")
_take_turns = function("take_turns", _TURN, int, _PLACE, int, I8, USER, int, int, int, returns=bool)


def make_open_loop(
    arrivals: ArrivalProcess,
    until_ns: int,
    max_context_tokens: int,
    seed: int,
    *,
    live_conversations: int = LIVE_CONVERSATIONS,
    max_requests: int | None = None,
    user_kind: RequestKind | None = None,
) -> Requests:
    """Return the requests that arrive before `until_ns`, each the next turn of one of `live_conversations`.

    The conversation is any with the same chance; one that ends makes way for one of a new user. All users are of
    `user_kind`, or mixed.

    Raises:
        ConfigError: a count that cannot be, or nothing arrives.

    """
    if not 1 <= live_conversations <= MAX_LIVE:
        raise ConfigError(f"live conversations(={live_conversations}) must be from 1 to {MAX_LIVE}")
    times = arrivals.times_ns(seed, until_ns, max_requests)
    if not len(times):
        raise ConfigError(
            f"no request arrives within {format_duration(until_ns)} at {arrivals.rate_per_s:g} a second with seed "
            f"{seed}: raise the duration or the rate"
        )
    turns = _turns(len(times), live_conversations, max_context_tokens, seed, user_kind)
    over = int(np.count_nonzero(turns["input"] + turns["output"] > max_context_tokens))
    is_even = arrivals.process is Process.CONSTANT
    origin = {
        "kind": "open-loop",
        "requests": len(times),
        "block_tokens": 0,
        **arrivals.as_origin(),
        "expected_requests": arrivals.expected(until_ns),
        "duration_ns": until_ns,
        "max_requests": max_requests,
        "live_conversations": live_conversations,
        "conversations": int(turns["session"].max()) + 1,
        "over_context": over,
        "generator": None if is_even else f"PCG64, numpy {np.__version__}",
    }
    session, turn, inputs, outputs, qos, kind = (np.ascontiguousarray(turns[name]) for name in _TURN.names or ())
    notes = _notes(arrivals, origin, max_context_tokens)
    more = {"session_id": session, "turn": turn, "qos": qos, "kind": kind}
    return without_blocks(times, inputs, outputs, origin, notes, **more)


def _turns(count: int, live: int, max_context_tokens: int, seed: int, kind: RequestKind | None) -> Any:
    """Return `count` turns; conversations are numbered as they begin."""
    turns, places = np.empty(count, _TURN), np.zeros(live, _PLACE)
    places["user"] = NONE
    progress = np.zeros(2, dtype=np.int64)
    users, _ = make_users(min(count, live) + count // 4 + 1, seed, kind=kind)
    while not _take_turns(*(turns, count, places, live, progress, users, len(users)), seed, max_context_tokens):
        more, _ = make_users(2 * len(users), seed, kind=kind)
        more[: len(users)] = users
        users = more
    return turns


def _notes(arrivals: ArrivalProcess, origin: dict[str, Any], max_context_tokens: int) -> tuple[str, ...]:
    live, generator = origin["live_conversations"], origin["generator"]
    pause = f"{live / arrivals.rate_per_s:g} s"
    cut = (
        "cut to whole microseconds, so that the last digits of C libraries do not show; they are drawn with "
        f"{generator}, and another numpy may draw others"
    )
    notes = (
        (
            f"open loop: requests arrive {arrivals.describe()}, whatever the system does: a turn may come before the "
            "answer to the one before it"
        ),
        (
            f"each request is the next turn of one of {live} conversations, any with the same chance: {pause} "
            "on average between turns of one; none has begun at the start"
        ),
        (
            f"a conversation ends after each turn with a chance of {1000 - CONTINUE_PER_MILLE} in 1000, after "
            f"{MAX_TURNS} turns, or when the next would not fit {max_context_tokens} tokens of context; then "
            "a new user begins one"
        ),
        "the source has no block ids: prompts share a prefix within their conversation only",
        f"times are {'rounded to whole microseconds' if generator is None else cut}",
    )
    if not origin["over_context"]:
        return notes
    return (*notes, f"{origin['over_context']} first turns do not fit {max_context_tokens} tokens of context")
