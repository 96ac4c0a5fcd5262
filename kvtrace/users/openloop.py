"""Synthetic users in an open loop: the turns of the closed loop's users, at times that wait for nobody.

Which conversation the n-th request belongs to, and how long it is, depends on the seed and on how many
conversations go on, not on its time: another process of arrivals asks the same, at other times.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from kvtrace.core.compiled import njit
from kvtrace.core.errors import ConfigError
from kvtrace.core.schema import RequestKind
from kvtrace.core.units import format_duration
from kvtrace.requests.requests import NONE, Requests
from kvtrace.users.arrivals import ArrivalProcess, Process
from kvtrace.users.synthetic import CONTINUE_PER_MILLE, MAX_TURNS, draw, make_users, next_turn

LIVE_CONVERSATIONS: Final = 64
MAX_LIVE: Final = 10**7

_TURN = np.dtype([(name, "i8") for name in ("session", "turn", "input", "output", "qos", "kind")])
_PLACE = np.dtype([(name, "i8") for name in ("user", "done", "history")])
"""A place for a conversation: its user (NONE: none yet), turns that are over, and tokens so far."""
# The user number whose draws say which conversation goes on: no user has it.
_LOT = -1


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
    while not _take_turns(turns, places, progress, users, seed, max_context_tokens):
        more, _ = make_users(2 * len(users), seed, kind=kind)
        more[: len(users)] = users
        users = more
    return turns


@njit
def _take_turns(turns: Any, places: Any, progress: Any, users: Any, seed: int, max_context_tokens: int) -> bool:
    """Make turns from `progress` (rows, users) on; return whether all are made, or `users` may not suffice."""
    row, next_user = progress[0], progress[1]
    while row < len(turns) and next_user < len(users):
        place, new_tokens, output_tokens = places[draw(seed, _LOT, row, 0, len(places) - 1)], 0, 0
        is_new = place.user == NONE
        if not is_new:
            user = place.user
            is_new, new_tokens, output_tokens = next_turn(
                users[user], seed, user, place.done, place.history, max_context_tokens
            )
        if is_new:
            place.user, place.done, place.history = next_user, 0, 0
            _, new_tokens, output_tokens = next_turn(users[next_user], seed, next_user, 0, 0, max_context_tokens)
            next_user += 1
        made, me = turns[row], users[place.user]
        made.session, made.turn = place.user, place.done
        made.input, made.output = place.history + new_tokens, output_tokens
        made.qos, made.kind = me.qos, me.kind
        place.done += 1
        place.history += new_tokens + output_tokens
        row += 1
    progress[0], progress[1] = row, next_user
    is_done: bool = row == len(turns)
    return is_done


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
