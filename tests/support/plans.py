"""Synthetic users said again in plain Python for the oracle.

What each draws, asks, and when it asks again.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from fleets import draw
from oracle import Oracle, Plan

from kvtrace.requests.users import CONTINUE_PER_MILLE, MAX_TURNS, TEMPLATES, ServingMode
from kvtrace.sim.presets.preset import Entry

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvtrace.sim.fleet import Incident
    from kvtrace.sim.presets.preset import Preset

MOST = 40
"""Requests of all users together."""


class User:
    def __init__(self, number: int, seed: int) -> None:
        self.number, self.seed = number, seed
        self.drawn = self.drawn_extra = 0
        kind = list(TEMPLATES.values())[self.draw(0, len(TEMPLATES) - 1)]
        self.draw(0, 999)  # its class of service
        self.context, self.output, self.think_ns = (self.draw(*kind[k : k + 2]) for k in (0, 2, 4))
        self.start = self.draw(0, self.think_ns)
        self.session = self.turns = self.history = 0
        self.own: list[int] = []
        """Objects of its conversation, but for what all share."""
        self.generated = (0, 0)
        """Which of them its last turn generated."""

    def draw(self, low: int, high: int) -> int:
        self.drawn += 1
        return draw(self.seed, self.number, self.drawn - 1, low, high)

    def draw_entry(self, count: int) -> int:
        self.drawn_extra += 1
        return draw(self.seed, -3 - self.number, self.drawn_extra - 1, 0, count - 1)

    def turn(self) -> tuple[int, int, bool]:
        """Return new and output tokens of its next turn, and whether that begins a conversation."""
        new, output = (self.draw(max(1, most // 4), most) for most in (self.context, self.output))
        goes_on = self.draw(0, 999) < CONTINUE_PER_MILLE
        return new, output, self.turns == 0 or not goes_on or self.turns >= MAX_TURNS


class Users:
    """All users, under a workload in which everybody has the same, and with a context that holds
    every conversation.

    That is: no system prompt or one that all have, and no document or one of one chunk, which all
    retrieve.
    """

    def __init__(self, oracle: Oracle, users: int, seed: int) -> None:
        self.oracle, self.sessions = oracle, 0
        self.users = [User(number, seed) for number in range(users)]
        self.log: list[tuple[int, int, int, int]] = []
        """When each request came, its session, input and output tokens."""
        w = oracle.preset.workload
        self.is_decode = w.mode is ServingMode.DECODE_ONLY
        self.prompt_tokens = w.prompt_tokens[0] if w.prompt_share else 0
        self.prompt = self.items(1, self.prompt_tokens)[0] if w.prompt_share else []
        has_documents = bool(w.rag_share and w.rag_document_tokens)
        self.retrieved = w.rag_document_tokens[0] if has_documents and w.rag_document_tokens else 0
        self.documents = self.items(1, self.retrieved) if has_documents else []
        self.entries = (
            self.items(users * w.decode_entries, w.decode_entry_tokens) if self.is_decode else []
        )
        oracle.populated = self.documents + self.entries
        oracle.name(list(oracle.sizes))

    def begin(self) -> None:
        """Let each ask at its time."""
        oracle = self.oracle
        for user in self.users:
            oracle.numbers[user.number] = oracle.in_flight[user.number] = -1
            heapq.heappush(oracle.due, (user.start, user.number, self.steps(user)))

    def items(self, count: int, tokens: int) -> list[list[int]]:
        """Number the objects of so many items."""
        oracle, found = self.oracle, []
        for _ in range(count):
            is_chunk, first, chunk = (
                oracle.preset.entry is Entry.CHUNK,
                len(oracle.sizes),
                oracle.preset.chunk_tokens,
            )
            keys = list(range(first, first + (tokens // chunk if is_chunk else 1)))
            oracle.sizes |= dict.fromkeys(
                keys, oracle.chunk_bytes(chunk) if is_chunk else tokens * oracle.bytes_per_token
            )
            found.append(keys)
        return found

    def plan(self, user: User) -> Plan:
        """Return what the user asks now."""
        oracle, preset = self.oracle, self.oracle.preset
        new, output, is_new = user.turn()
        if self.is_decode:
            user.session = user.number * preset.workload.decode_entries + user.draw_entry(
                preset.workload.decode_entries
            )
            entry, tokens = self.entries[user.session], preset.workload.decode_entry_tokens
            return Plan(oracle.now, tokens, 0, output, entry, len(entry), session=user.session)
        if is_new:
            user.session, user.own, user.turns, user.history = (
                self.sessions,
                [],
                0,
                self.prompt_tokens,
            )
            self.sessions += 1
            user.generated = (0, 0)
        asked, known = user.history + new, len(self.prompt) + len(user.own)
        wanted, size = len(user.own) + 1, new * oracle.bytes_per_token
        if preset.entry is Entry.CHUNK:
            wanted, size = (
                asked // preset.chunk_tokens - len(self.prompt),
                oracle.chunk_bytes(preset.chunk_tokens),
            )
        while len(user.own) < wanted:
            user.own.append(len(oracle.sizes))
            oracle.sizes[user.own[-1]] = size
        user.history = asked + output
        documents = [key for keys in self.documents for key in keys]
        return Plan(
            oracle.now, asked + self.retrieved, new, output, [*self.prompt, *user.own], known, len(self.prompt),
            documents, session=user.session, retrieved=self.retrieved,
            generated=(len(self.prompt) + user.generated[0], len(self.prompt) + user.generated[1]),
        )  # fmt: skip

    def steps(self, user: User) -> Iterator[int | tuple[int]]:
        """Yield how long the user waits, through all of its requests."""
        oracle = self.oracle
        while len(oracle.plans) < MOST:
            plan, n = self.plan(user), len(oracle.plans)
            oracle.plans.append(plan)
            self.log.append((oracle.now, plan.session, plan.tokens, plan.output))
            oracle.numbers[user.number] = oracle.in_flight[user.number] = n
            yield from self.finish(user, oracle.request(plan, n), n)

    def finish(
        self, user: User, request: Iterator[int | tuple[int]], n: int
    ) -> Iterator[int | tuple[int]]:
        yield from request
        answers = self.oracle.plans[n].answers
        user.generated = (len(user.own), len(user.own) + len(answers))
        user.own += answers
        self.oracle.here.end(n)
        del self.oracle.sent[n]
        user.turns += 1
        yield max(1, user.draw(user.think_ns * 8 // 10, user.think_ns * 12 // 10))

    def again(
        self, place: int, request: Iterator[int | tuple[int]], n: int
    ) -> Iterator[int | tuple[int]]:
        """As steps, of a user whose request begins again."""
        yield from self.finish(self.users[place], request, n)
        yield from self.steps(self.users[place])


def oracle_of(
    preset: Preset, users: int, seed: int, bytes_per_token: int, ranks: int, layers: int = 1,
    incidents: Sequence[Incident] = (),
) -> Oracle:  # fmt: skip
    """Return the oracle of so many users."""
    oracle = Oracle(
        preset, None, bytes_per_token, ranks, layers=layers, seed=seed, incidents=incidents
    )
    oracle.users = Users(oracle, users, seed)
    return oracle
