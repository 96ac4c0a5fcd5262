"""Synthetic users in a closed loop: chatbot, coding and document users who take turns in conversations.

The templates are those of the MLPerf Storage KV-cache benchmark. A user's next turn waits for the answer to
the last one and then for a think time. Every number is drawn from (seed, user, how many were drawn before),
so one user's turns never depend on another's.

Or users ask on without waiting for answers, served by class, as the MLPerf benchmark's program has it: each at its own
pace. What is asked waits, by class of service and then by time, for one of as many servers as there are users; a server
is busy for as long as its answer takes to generate. Where more is asked than is served, the lower classes hardly are.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from kvtrace.core.errors import ConfigError
from kvtrace.core.native.library import I8, function
from kvtrace.core.schema import REQUESTS, Qos, RequestKind, enum_code
from kvtrace.core.units import format_duration
from kvtrace.native.records import USER, WORLD
from kvtrace.requests.requests import Requests

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
    """Draw the first numbers of `user` into `found`: integers from `low` to `high`, both included."""
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


_ASKED = WORLD.dtype("Question")
# In the order in which they are served.
_CLASSES: Final = (Qos.INTERACTIVE, Qos.RESPONSIVE, Qos.BATCH)
_ROOM: Final = 1 << 12
_MOST_ASKED: Final = 10**7

_ask = function("ask_overlapping", _ASKED, int, USER, I8, int, int, int, int, returns=int)
_serve = function("serve_by_class", I8, I8, _ASKED, int, I8, I8, I8, int, I8, int, int, int, returns=int)


def make_overlapping(
    count: int,
    until_ns: int,
    max_context_tokens: int,
    seed: int,
    *,
    decode_ns_per_token: int,
    max_requests: int | None = None,
    kind: RequestKind | None = None,
    mean_think_ns: int | None = None,
) -> Requests:
    """Return the requests of `count` users that as many servers begin before `until_ns`, each when it is begun.

    Raises:
        ConfigError: they ask too often for a table, or not at all.

    """
    users, starts = make_users(count, seed, kind=kind, mean_think_ns=mean_think_ns)
    ranks = np.array(
        [_CLASSES.index(name) for name in sorted(_CLASSES, key=lambda name: enum_code(REQUESTS, "qos", name))]
    )
    asked = np.empty(_ROOM, _ASKED)
    while (rows := _ask(asked, len(asked), users.copy(), starts, count, seed, until_ns, max_context_tokens)) > len(
        asked
    ):
        if rows > _MOST_ASKED:
            raise ConfigError(f"{count} users ask more than {_MOST_ASKED:,} times: shorten --duration or take fewer")
        asked = np.empty(2 * len(asked), _ASKED)
    asked = asked[:rows]
    asked["rank"] = ranks[users["qos"][asked["user"]]]
    asked = asked[np.argsort(asked["time_ns"], kind="stable")]
    queues = np.argsort(asked["rank"], kind="stable")
    ends = np.cumsum(np.bincount(asked["rank"], minlength=len(_CLASSES)))
    heads = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    begun, times = np.empty(rows, np.int64), np.empty(rows, np.int64)
    servers = np.zeros(count, np.int64)
    served = _serve(
        *(begun, times, asked, rows, queues, heads, ends, len(ends), servers, count), until_ns, decode_ns_per_token
    )
    served = min(served, max_requests or served)
    if not served:
        raise ConfigError(f"nobody asks within {format_duration(until_ns)} with seed {seed}: raise the duration")
    return _requests(asked[begun[:served]], times[:served], users, rows, decode_ns_per_token)


def _requests(served: Any, times: Any, users: Any, asked: int, decode_ns_per_token: int) -> Requests:
    """Return `served`, in the order in which they were begun, as requests; conversations are numbered as they begin."""
    wide = served["user"] * (1 << 32) + served["conversation"]
    _, first, inverse = np.unique(wide, return_index=True, return_inverse=True)
    session = np.argsort(np.argsort(first))[inverse]
    by_class = {str(name): int(np.count_nonzero(served["rank"] == rank)) for rank, name in enumerate(_CLASSES)}
    origin: dict[str, Any] = {
        "kind": "overlapping",
        "users": len(users),
        "requests": len(served),
        "block_tokens": 0,
        "asked": asked,
        "served_by_class": by_class,
        "served_users": len(np.unique(served["user"])),
    }
    shares = ", ".join(f"{number} {name}" for name, number in by_class.items())
    notes = (
        (
            f"users do not wait for answers: they ask {asked} times, and {len(served)} requests of "
            f"{origin['served_users']} of {len(users)} users are served ({shares}), each from when it is begun"
        ),
        (
            f"a server is held for {decode_ns_per_token / 1e6:g} ms a token of its answer: what storage and prompts "
            "take, and what is decoded beside it, does not delay who is served next"
        ),
        "the source has no block ids: prompts share a prefix within their conversation only",
    )
    none = np.zeros(len(served) + 1, dtype=np.int64)
    inputs, outputs = (np.ascontiguousarray(served[name]) for name in ("input", "output"))
    return Requests(
        *(times, inputs, outputs, none, none[:0], 0, origin, notes),
        session_id=session,
        turn=np.ascontiguousarray(served["turn"]),
        qos=np.ascontiguousarray(users["qos"][served["user"]]),
        kind=np.ascontiguousarray(users["kind"][served["user"]]),
    )
