"""Synthetic users in a closed loop: chatbot, coding and document users who take turns in conversations.

The templates are those of the MLPerf Storage KV-cache benchmark. A user's next turn waits for the answer to
the last one and then for a think time. Every number is drawn from (seed, user, how many were drawn before),
so one user's turns never depend on another's.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from kvtrace.core.native.library import I8, function
from kvtrace.core.schema import REQUESTS, Qos, RequestKind, enum_code
from kvtrace.native.records import USER, WORLD

MS: Final = 1_000_000
CONTINUE_PER_MILLE: Final = WORLD.constants["CONTINUE_PER_MILLE"]
MAX_TURNS: Final = WORLD.constants["MAX_TURNS"]

# kind: context tokens from, to; output tokens from, to; think time from, to
TEMPLATES: Final = {
    RequestKind.CHATBOT: (512, 4096, 50, 200, 100 * MS, 500 * MS),
    RequestKind.CODING: (4096, 25000, 100, 500, 200 * MS, 1000 * MS),
    RequestKind.DOCUMENT: (4096, 16384, 200, 800, 300 * MS, 1500 * MS),
}
# cumulated per mille
QOS_SHARES: Final = ((Qos.INTERACTIVE, 150), (Qos.RESPONSIVE, 500), (Qos.BATCH, 1000))

# Who draws the documents' lengths; see users.c.
LIBRARY: Final = -2
# Of the first rank of a Zipf distribution with exponent 1; that of rank r is this over r.
ZIPF_WEIGHT: Final = 1 << 32


_draw_all = function("draw_all", I8, int, int, int, int, int)
_make_users = function("make_users", USER, I8, int, I8, int, I8, int)


def draw_all(found: Any, seed: int, user: int, low: int, high: int) -> None:
    """Fill `found` with the first draws of `user`: integers from `low` to `high`, both included."""
    _draw_all(found, len(found), seed, user, low, high)


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
    _make_users(users, starts, count, templates, len(templates), qos, seed)
    return users, starts
