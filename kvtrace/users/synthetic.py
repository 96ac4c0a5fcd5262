"""Synthetic users in a closed loop: chatbot, coding and document users who take turns in conversations.

The templates are those of the MLPerf Storage KV-cache benchmark. A user's next turn waits for the answer to
the last one and then for a think time. Every number is drawn from (seed, user, how many were drawn before),
so one user's turns never depend on another's.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from kvtrace.core.compiled import inner, njit
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

USER = np.dtype([(name, "i8") for name in ("kind", "qos", "context", "output", "think_ns", "draws", "extra_draws")])
"""A user: context and output tokens of its longest turn, its usual think time, and how many numbers it has drawn.

What a user asks is drawn by `draws`, and which system prompt, documents and entries go with it by `extra_draws`, so
that the one is the same with and without the other.
"""

# Who draws: users 0, 1, …; an open loop's lot is -1; then come the documents' lengths, and each user's extra draws.
LIBRARY: Final = -2
EXTRA: Final = -3
# Of the first rank of a Zipf distribution with exponent 1; that of rank r is this over r.
ZIPF_WEIGHT: Final = 1 << 32


@inner
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
def draw_all(found: Any, seed: int, user: int, low: int, high: int) -> None:
    """Fill `found` with the first draws of `user`."""
    for number in range(len(found)):
        found[number] = draw(seed, user, number, low, high)


@inner
def next_draw(me: Any, seed: int, user: int, low: int, high: int) -> int:
    """Return the next draw of `user`, whose record is `me`."""
    me.draws += 1
    return draw(seed, user, me.draws - 1, low, high)


@inner
def next_extra(me: Any, seed: int, user: int, low: int, high: int) -> int:
    """Return the next extra draw of `user`, whose record is `me`."""
    me.extra_draws += 1
    return draw(seed, EXTRA - user, me.extra_draws - 1, low, high)


@inner
def pick(cumulated: Any, me: Any, seed: int, user: int) -> int:
    """Return an index drawn by `user` with the chances whose whole weights `cumulated` sums up."""
    lot = next_extra(me, seed, user, 0, cumulated[len(cumulated) - 1] - 1)
    low, high = 0, len(cumulated) - 1
    while low < high:
        middle = (low + high) >> 1
        if cumulated[middle] > lot:
            high = middle
        else:
            low = middle + 1
    return low


@inner
def pick_distinct(chosen: Any, first: int, most: int, count: int, is_zipf: int, me: Any, seed: int, user: int) -> int:
    """Fill `chosen` from `first` on with at most `most` distinct indices below `count`; return how many they are.

    They are drawn with the weights of Zipf's distribution, or with the same chance each.
    """
    wanted = min(most, count)
    total = 0
    for i in range(count):
        total += ZIPF_WEIGHT // (i + 1) if is_zipf else 1
    for k in range(wanted):
        lot = next_extra(me, seed, user, 0, total - 1)
        i, weight = -1, 0
        while lot >= 0:
            i += 1
            is_taken = False
            for before in range(k):
                is_taken = is_taken or chosen[first + before] == i
            if not is_taken:
                weight = ZIPF_WEIGHT // (i + 1) if is_zipf else 1
                lot -= weight
        chosen[first + k] = i
        total -= weight
    return wanted


@njit
def _make(users: Any, starts: Any, templates: Any, qos: Any, seed: int) -> None:
    for user in range(len(users)):
        me = users[user]
        template = templates[next_draw(me, seed, user, 0, len(templates) - 1)]
        share = next_draw(me, seed, user, 0, 999)
        chosen = 0
        while share >= qos[chosen, 1]:
            chosen += 1
        me.kind, me.qos = template[6], qos[chosen, 0]
        me.context = next_draw(me, seed, user, template[0], template[1])
        me.output = next_draw(me, seed, user, template[2], template[3])
        me.think_ns = next_draw(me, seed, user, template[4], template[5])
        starts[user] = next_draw(me, seed, user, 0, me.think_ns)


def make_users(
    count: int, seed: int, *, kind: RequestKind | None = None, mean_think_ns: int | None = None
) -> tuple[Any, Any]:
    """Return `count` users, USER records, and when each first asks, int64 ns; all from `seed`.

    Without `kind` each is of any with the same chance; `mean_think_ns` replaces the think times of the kinds.
    """
    users, starts = np.zeros(count, USER), np.zeros(count, dtype=np.int64)
    chosen = TEMPLATES if kind is None else {kind: TEMPLATES[kind]}
    templates = np.array(
        [[*values, enum_code(REQUESTS, "kind", name)] for name, values in chosen.items()], dtype=np.int64
    )
    if mean_think_ns is not None:
        # Every kind's shortest and longest are a third and five thirds of their mean.
        templates[:, 4:6] = mean_think_ns // 3, 5 * mean_think_ns // 3
    qos = np.array([[enum_code(REQUESTS, "qos", name), upto] for name, upto in QOS_SHARES], dtype=np.int64)
    _make(users, starts, templates, qos, seed)
    return users, starts


@inner
def next_turn(
    me: Any, seed: int, user: int, turn: int, history_tokens: int, max_context_tokens: int
) -> tuple[bool, int, int]:
    """Return what `user`, whose record is `me`, asks after `turn` turns and `history_tokens` of its conversation.

    That is whether it begins a new one, and new and output tokens. Sizes are uniform from a quarter of the user's own
    value up to it. A conversation ends by chance, after MAX_TURNS, or when the next turn would not fit the context.
    """
    new_tokens = next_draw(me, seed, user, max(1, me.context // 4), me.context)
    output_tokens = next_draw(me, seed, user, max(1, me.output // 4), me.output)
    goes_on = next_draw(me, seed, user, 0, 999) < CONTINUE_PER_MILLE
    fits = history_tokens + new_tokens + output_tokens <= max_context_tokens
    return turn == 0 or not goes_on or turn >= MAX_TURNS or not fits, new_tokens, output_tokens


@inner
def think_ns(me: Any, seed: int, user: int) -> int:
    """Return how long `user` thinks this time: the user's own value, 20 % less to 20 % more."""
    return next_draw(me, seed, user, me.think_ns * 8 // 10, me.think_ns * 12 // 10)
