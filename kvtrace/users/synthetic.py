"""Synthetic users in a closed loop: chatbot, coding and document users who take turns in conversations.

The templates are those of the MLPerf Storage KV-cache benchmark. A user's next turn waits for the answer to
the last one and then for a think time. Every number is drawn from (seed, user, how many were drawn before),
so one user's turns never depend on another's.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from kvtrace.core.compiled import njit
from kvtrace.core.schema import REQUESTS, Qos, RequestKind, enum_code

MS: Final = 1_000_000
CONTINUE_PER_MILLE: Final = 800
MAX_TURNS: Final = 50

# kind: context tokens from, to; output tokens from, to; think time from, to
TEMPLATES: Final = {
    RequestKind.CHATBOT: (512, 4096, 50, 200, 100 * MS, 500 * MS),
    RequestKind.CODING: (4096, 25000, 100, 500, 200 * MS, 1000 * MS),
    RequestKind.DOCUMENT: (4096, 16384, 200, 800, 300 * MS, 1500 * MS),
}
# cumulated per mille
QOS_SHARES: Final = ((Qos.INTERACTIVE, 150), (Qos.RESPONSIVE, 500), (Qos.BATCH, 1000))

# A user's fields, columns of an int64 matrix. What a user asks is drawn by DRAWS, and which system prompt, documents
# and entries go with it by EXTRA_DRAWS, so that the one is the same with and without the other.
KIND, QOS, CONTEXT, OUTPUT, THINK_NS, DRAWS, EXTRA_DRAWS, FIELDS = range(8)

# Who draws: users 0, 1, …; an open loop's lot is -1; then come the documents' lengths, and each user's extra draws.
LIBRARY: Final = -2
EXTRA: Final = -3
# Of the first rank of a Zipf distribution with exponent 1; that of rank r is this over r.
ZIPF_WEIGHT: Final = 1 << 32


class Turn(NamedTuple):
    """What a user asks next."""

    is_new_conversation: Any
    new_tokens: Any
    output_tokens: Any


@njit
def draw(seed: int, user: int, number: int, low: int, high: int) -> int:
    """Return the `number`-th draw of `user`: an integer from `low` to `high`, both included (splitmix64)."""
    x = (
        np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15)
        + np.uint64(user) * np.uint64(0xD1B54A32D192ED03)
        + np.uint64(number) * np.uint64(0x8CB92BA72F3D8DD7)
        + np.uint64(0x2545F4914F6CDD1D)
    )
    for _ in range(2):
        x ^= x >> np.uint64(30)
        x *= np.uint64(0xBF58476D1CE4E5B9)
        x ^= x >> np.uint64(27)
        x *= np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    offset: int = np.int64(x % np.uint64(high - low + 1))  # type: ignore[assignment]
    return low + offset


@njit
def next_draw(users: Any, seed: int, user: int, low: int, high: int) -> int:
    """Return the next draw of `user`."""
    number = users[user, DRAWS]
    users[user, DRAWS] = number + 1
    return draw(seed, user, number, low, high)


@njit
def next_extra(users: Any, seed: int, user: int, low: int, high: int) -> int:
    """Return the next extra draw of `user`."""
    number = users[user, EXTRA_DRAWS]
    users[user, EXTRA_DRAWS] = number + 1
    return draw(seed, EXTRA - user, number, low, high)


@njit
def pick(cumulated: Any, users: Any, seed: int, user: int) -> int:
    """Return an index drawn by `user` with the chances whose whole weights `cumulated` sums up."""
    lot = next_extra(users, seed, user, 0, cumulated[len(cumulated) - 1] - 1)
    low, high = 0, len(cumulated) - 1
    while low < high:
        middle = (low + high) >> 1
        if cumulated[middle] > lot:
            high = middle
        else:
            low = middle + 1
    return low


@njit
def pick_distinct(chosen: Any, count: int, is_zipf: int, users: Any, seed: int, user: int) -> int:
    """Fill `chosen` with distinct indices below `count`, Zipf or with the same chance; return how many they are."""
    wanted = min(len(chosen), count)
    total = 0
    for i in range(count):
        total += ZIPF_WEIGHT // (i + 1) if is_zipf else 1
    for k in range(wanted):
        lot = next_extra(users, seed, user, 0, total - 1)
        i, weight = -1, 0
        while lot >= 0:
            i += 1
            is_taken = False
            for before in range(k):
                is_taken = is_taken or chosen[before] == i
            if not is_taken:
                weight = ZIPF_WEIGHT // (i + 1) if is_zipf else 1
                lot -= weight
        chosen[k] = i
        total -= weight
    return wanted


@njit
def _make(users: Any, starts: Any, templates: Any, qos: Any, seed: int) -> None:
    for user in range(len(users)):
        kind = next_draw(users, seed, user, 0, len(templates) - 1)
        share = next_draw(users, seed, user, 0, 999)
        chosen = 0
        while share >= qos[chosen, 1]:
            chosen += 1
        template = templates[kind]
        users[user, KIND] = template[6]
        users[user, QOS] = qos[chosen, 0]
        users[user, CONTEXT] = next_draw(users, seed, user, template[0], template[1])
        users[user, OUTPUT] = next_draw(users, seed, user, template[2], template[3])
        users[user, THINK_NS] = next_draw(users, seed, user, template[4], template[5])
        starts[user] = next_draw(users, seed, user, 0, users[user, THINK_NS])


def make_users(count: int, seed: int) -> tuple[Any, Any]:
    """Return `count` users, int64[count, FIELDS], and when each first asks, ns; all from `seed`."""
    users, starts = np.zeros((count, FIELDS), dtype=np.int64), np.zeros(count, dtype=np.int64)
    templates = np.array(
        [[*values, enum_code(REQUESTS, "kind", kind)] for kind, values in TEMPLATES.items()], dtype=np.int64
    )
    qos = np.array([[enum_code(REQUESTS, "qos", name), upto] for name, upto in QOS_SHARES], dtype=np.int64)
    _make(users, starts, templates, qos, seed)
    return users, starts


@njit
def next_turn(users: Any, seed: int, user: int, turn: int, history_tokens: int, max_context_tokens: int) -> Turn:
    """Return what `user` asks after `turn` turns and `history_tokens` tokens of the present conversation.

    Sizes are uniform from a quarter of the user's own value up to it. A conversation ends by chance, after
    MAX_TURNS, or when the next turn would not fit the model's context.
    """
    new_tokens = next_draw(users, seed, user, max(1, users[user, CONTEXT] // 4), users[user, CONTEXT])
    output_tokens = next_draw(users, seed, user, max(1, users[user, OUTPUT] // 4), users[user, OUTPUT])
    goes_on = next_draw(users, seed, user, 0, 999) < CONTINUE_PER_MILLE
    fits = history_tokens + new_tokens + output_tokens <= max_context_tokens
    is_new = turn == 0 or not goes_on or turn >= MAX_TURNS or not fits
    return Turn(is_new, new_tokens, output_tokens)


@njit
def think_ns(users: Any, seed: int, user: int) -> int:
    """Return how long `user` thinks this time: the user's own value, 20 % less to 20 % more."""
    usual = users[user, THINK_NS]
    return next_draw(users, seed, user, usual * 8 // 10, usual * 12 // 10)
