"""Spans of servers whose own parent was not exported, such as a span of HTTP from client to server.

Such a span and the client's are the same call, if both are of one trace and have as many tokens, and
the server began while the client waited. A call may pass several such servers: behind a gateway's
span, the next one is the server's that began and ended within it.

A server may count other tokens than its client, by another template of chats. Nothing then says that
both are one call: `counted_apart` tells how many may be counted twice.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from heapq import merge
from itertools import chain
from typing import Final

from kvtrace.requests.nested_calls import Span, SpanKey, SpanRole, ancestors, is_of_embedding

_CLIENTS: Final = ("CLIENT", "3")
_SERVERS: Final = ("SERVER", "2")

_Waiting = tuple[int, int, SpanKey]
"""The end of a span in ns, its start below 0, and the span: it waits for a server until its end.

The first in order ends first; of several that end at once it began last."""


def servers_without_parent(
    spans: Mapping[SpanKey, Span], kinds: Mapping[SpanKey, str]
) -> list[SpanKey]:
    """Return the calls at servers that name a parent which is not there."""
    return [
        key
        for key, span in _calls(spans)
        if kinds[key] in _SERVERS and span.parent is not None and span.parent not in spans
    ]


def link_servers(
    servers: Iterable[SpanKey], spans: Mapping[SpanKey, Span], kinds: Mapping[SpanKey, str]
) -> set[SpanKey]:
    """Enter the span around each of `servers` as its parent; return those that have one now.

    A span serves once as such a parent: a server that was tried again is another request.
    """
    have_server = _with_call_below(spans)
    clients: dict[tuple[object, int | None], list[tuple[int, SpanKey]]] = {}
    for key, span in spans.items():
        is_client = kinds[key] in _CLIENTS and isinstance(key, tuple)
        if is_client and key not in have_server and span.input_tokens is not None:
            clients.setdefault(_call(key, span), []).append((span.start_ns, key))
    of_calls: dict[tuple[object, int | None], list[SpanKey]] = {}
    for key in servers:
        of_calls.setdefault(_call(key, spans[key]), []).append(key)
    linked: set[SpanKey] = set()
    for call, keys in of_calls.items():
        linked |= _link_in_order(keys, clients.get(call, []), spans, have_server)
    return linked


def counted_apart(unlinked: Collection[SpanKey], spans: Mapping[SpanKey, Span]) -> int:
    """Return how many of the servers `unlinked` began while another call of their trace was under way."""
    if not unlinked:
        return 0
    apart = 0
    last_end_ns: dict[object, int] = {}
    # Of spans that began at once, the servers in question come last.
    order = sorted((span.start_ns, key in unlinked, key) for key, span in _calls(spans))
    for start_ns, is_unlinked, key in order:
        assert isinstance(key, tuple)
        apart += is_unlinked and start_ns <= last_end_ns.get(key[0], -1)
        last_end_ns[key[0]] = max(last_end_ns.get(key[0], -1), spans[key].end_ns or 0)
    return apart


def _calls(spans: Mapping[SpanKey, Span]) -> Iterable[tuple[SpanKey, Span]]:
    """Return the spans that have an id, and tokens that are not the sum of those below them."""
    return (
        (key, span)
        for key, span in spans.items()
        if isinstance(key, tuple)
        and span.input_tokens is not None
        and span.role is not SpanRole.ROLL_UP
    )


def _call(key: SpanKey, span: Span) -> tuple[object, int | None]:
    """Return what spans of the same call have in common: their trace and the tokens of the prompt."""
    return key[0] if isinstance(key, tuple) else key, span.input_tokens


def _with_call_below(spans: Mapping[SpanKey, Span]) -> set[SpanKey]:
    """Return the spans that have the same call again below them, without an agent or a tool between."""
    found: set[SpanKey] = set()
    for span in spans.values():
        if span.input_tokens is None:
            continue
        is_embedding = is_of_embedding(span, spans)
        for key, outer in ancestors(span, spans):
            if outer.input_tokens is not None and is_embedding == is_of_embedding(outer, spans):
                found.add(key)
            if outer.input_tokens is not None or outer.role is SpanRole.ROLL_UP:
                break
    return found


def _link_in_order(
    servers: list[SpanKey],
    clients: list[tuple[int, SpanKey]],
    spans: Mapping[SpanKey, Span],
    have_server: set[SpanKey],
) -> set[SpanKey]:
    """Link servers of one trace with as many tokens, from the first that began to the last.

    The span around a server is the first to end of those that outlast it. It is a client's, or a hop:
    a server that was linked before. `clients` have the time of their start. Spans of `have_server`
    wait for no server behind them.
    """
    waiting: list[_Waiting] = []
    hops: list[_Waiting] = []
    parents = {span.parent for span in spans.values()}
    linked: set[SpanKey] = set()
    clients = sorted(clients, key=lambda client: client[0], reverse=True)

    def entry(key: SpanKey) -> _Waiting:
        return spans[key].end_ns or 0, -spans[key].start_ns, key

    def is_below(key: SpanKey, server: SpanKey) -> bool:
        # The walk is long in a deep trace, and of most servers no span is a child.
        return server in parents and any(server == a for a, _span in ancestors(spans[key], spans))

    for key in sorted(servers, key=lambda key: (spans[key].start_ns, -(spans[key].end_ns or 0))):
        server = spans[key]
        while clients and clients[-1][0] <= server.start_ns:
            insort(waiting, entry(clients.pop()[1]))
        for queue in (waiting, hops):
            del queue[: bisect_left(queue, (server.start_ns,))]
        # A hop of the very same times is a call beside this one, not around it.
        end_ns, start, _key = entry(key)
        around = chain(
            merge(_from(waiting, (end_ns,)), _from(hops, (end_ns, start + 1))),
            # A client may give up before its server ends.
            iter(waiting),
        )
        outer = next((found for found in around if not is_below(found[-1], key)), None)
        if outer is None:
            continue
        queue = hops if outer[-1] in linked else waiting
        del queue[bisect_left(queue, outer)]
        server.parent = outer[-1]
        linked.add(key)
        if key not in have_server:
            insort(hops, entry(key))
    return linked


def _from(queue: list[_Waiting], least: tuple[int, ...]) -> Iterator[_Waiting]:
    """Yield what waits in `queue` from `least` on."""
    return (queue[place] for place in range(bisect_left(queue, least), len(queue)))
