"""Synthetic users in an open loop: the turns of the closed loop's users, at times that wait for nobody.

Which conversation the n-th request belongs to, and how long it is, depends on the seed and on how many
conversations go on, not on its time: another process of arrivals asks the same, at other times.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from kvtrace.core.errors import ConfigError
from kvtrace.core.native.library import I8, function
from kvtrace.core.schema import RequestKind
from kvtrace.core.units import format_duration
from kvtrace.native.records import USER
from kvtrace.requests.requests import NONE, Requests
from kvtrace.users.arrivals import ArrivalProcess, Process
from kvtrace.users.synthetic import CONTINUE_PER_MILLE, MAX_TURNS, make_users

LIVE_CONVERSATIONS: Final = 64
MAX_LIVE: Final = 10**7

_TURN = np.dtype([(name, "i8") for name in ("session", "turn", "input", "output", "qos", "kind")])
_PLACE = np.dtype([(name, "i8") for name in ("user", "done", "history")])
"""A place for a conversation: its user (NONE: none yet), turns that are over, and tokens so far."""
_take_turns = function("take_turns", _TURN, int, _PLACE, int, I8, USER, int, int, int, returns=bool)


def make(
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
    none = np.zeros(len(times) + 1, dtype=np.int64)
    return Requests(
        *(times, inputs, outputs, none, none[:0], 0, origin, _notes(arrivals, origin, max_context_tokens)),
        session_id=session,
        turn=turn,
        qos=qos,
        kind=kind,
    )


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
