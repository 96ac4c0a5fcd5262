"""What answers take of GPU memory, said again in plain Python for the oracle."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvtrace.sim.presets.preset import Match, Placement
from kvtrace.sim.presets.tier import Recency

if TYPE_CHECKING:
    from oracle import Oracle, Plan

GPU_BLOCK_TOKENS = 16


@dataclass
class Answer:
    """The objects of one request's answer in GPU memory."""

    plan: Plan
    request: int
    stage: int
    begin: int = 0
    """Where it begins, in tokens of the conversation."""
    end: int = 0
    """Where the tokens end whose KV cache is computed: the last one is never an input."""
    next: int = 0
    """Where its next object begins."""
    behind: int | None = None
    """The object behind which its next one goes in the recency list."""
    unfilled: list[int] = field(default_factory=list)
    unnamed: list[int] = field(default_factory=list)


class Answers:
    """All that requests in flight have generated, in the GPU memory of their nodes."""

    def __init__(self, oracle: Oracle, *, is_named: bool) -> None:
        self.oracle = oracle
        self.is_named = is_named and oracle.preset.match is not Match.ANY
        self.is_on = oracle.preset.holds_answers

    def start(self, answer: Answer) -> None:
        """Let the request begin to decode at the node at hand."""
        if not self.is_on:
            return
        preset, plan, top = self.oracle.preset, answer.plan, self.oracle.tiers[0]
        chain = plan.chain if top.recency is Recency.HEAD_FIRST else plan.chain[::-1]
        answer.begin = plan.tokens - plan.retrieved
        answer.end = answer.begin + max(0, plan.output - 1)
        answer.next = answer.begin
        if not preset.partial_chunks:
            answer.next -= answer.begin % preset.chunk_tokens
        answer.behind = next((key for key in chain if key in top.objects), None)
        self.oracle.here.answers[answer.request] = answer
        self.grow(answer, 0)

    def catch_up(self) -> None:
        """Add what all requests that decode at the node at hand have generated until now."""
        oracle = self.oracle
        for answer in oracle.here.answers.values():
            self.grow(answer, oracle.generated_tokens(answer.request, answer.plan))

    def finish(self, answer: Answer) -> None:
        """Add the rest of an answer, and let its request decode no more."""
        if self.is_on:
            self.catch_up()
            self.grow(answer, answer.plan.output)
            del self.oracle.here.answers[answer.request]

    def free_unfilled(self, answer: Answer) -> None:
        """Free the objects that an answer does not fill."""
        top = self.oracle.tiers[0]
        for key in reversed(answer.unfilled):
            if key in top.objects:
                self.oracle.delete(top, "evict", key)

    def grow(self, answer: Answer, tokens: int) -> None:
        """Add what it takes once so many tokens are generated; one more is being computed."""
        end = min(answer.end, answer.begin + tokens + 1)
        before = len(self.oracle.rows)
        while answer.next < end:
            self.add(answer)
        answer.stage += any(row[3] == "decode" for row in self.oracle.rows[before:])

    def add(self, answer: Answer) -> None:
        """Add the objects of its next chunk."""
        chunk = self.oracle.preset.chunk_tokens
        first = answer.next
        answer.next = (first // chunk + 1) * chunk
        for group in range(self.oracle.per_chunk):
            self.add_object(answer, first, min(answer.next, answer.end), group)

    def add_object(self, answer: Answer, first: int, end: int, group: int) -> None:
        oracle, chunk = self.oracle, self.oracle.preset.chunk_tokens
        top, plan = oracle.tiers[0], answer.plan
        is_named = self.is_named and end - first == chunk
        if top.limit is None and not is_named:
            return
        place = first // chunk - len(plan.chain)
        if is_named and place < len(plan.answers):
            key = plan.answers[place]
        else:
            key = len(oracle.sizes)
            blocks = -(-(end - first) // GPU_BLOCK_TOKENS) * GPU_BLOCK_TOKENS
            parts = oracle.ranks * oracle.layers
            part = -(-(oracle.object_bytes(chunk, group) // parts * min(blocks, chunk)) // chunk)
            oracle.sizes[key] = part * parts
            oracle.name([key])
            if is_named:
                plan.answers.append(key)
        if key not in top.objects and self.make_room(key):
            oracle.write(top, "decode", key, answer.request, answer.stage)
            if answer.behind in top.objects:
                top.policy.keys.remove(key)
                top.policy.keys.insert(top.policy.keys.index(answer.behind), key)
            answer.behind = key
        if is_named or key not in top.objects:
            return
        (answer.unfilled if end % chunk else answer.unnamed).append(key)

    def make_room(self, key: int) -> bool:
        """Make room, but not in the memory that requests run with."""
        oracle, size = self.oracle, self.oracle.sizes[key]
        top, here = oracle.tiers[0], oracle.here
        held = sum(oracle.sizes[k] for k in {k for keys in here.used.values() for k in keys})
        if not top.takes(size):
            return False
        if here.is_bounded and not top.fits(size) and held + size > top.limit:
            return False
        if oracle.preset.placement is Placement.WRITE_BACK:
            oracle.demote_for(top, key)
        return oracle.evict_for(top, key)
