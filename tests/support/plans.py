"""What synthetic users asked, as plans for the oracle: the log of their turns, and what all of them share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oracle import Oracle, Plan

from kvtrace.sim.presets.preset import Entry
from kvtrace.users.workload import ServingMode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.sim.presets.preset import Preset


def oracle_of(
    preset: Preset, log: Sequence[tuple[int, ...]], users: int, bytes_per_token: int, ranks: int, layers: int = 1,
    seed: int = 0,
) -> Oracle:  # fmt: skip
    """Return the oracle of what `log` asked, under a workload in which everybody has the same.

    That is: no system prompt or one that all have, and no document or one of one chunk, which all retrieve.
    """
    oracle = Oracle(preset, None, bytes_per_token, ranks, layers=layers, seed=seed)
    w, chunk = preset.workload, preset.chunk_tokens

    def items(count: int, tokens: int) -> list[list[int]]:
        """Number the objects of so many items."""
        is_chunk = preset.entry is Entry.CHUNK
        found = []
        for _ in range(count):
            first = len(oracle.sizes)
            keys = list(range(first, first + (tokens // chunk if is_chunk else 1)))
            oracle.sizes |= dict.fromkeys(keys, oracle.chunk_bytes() if is_chunk else tokens * bytes_per_token)
            found.append(keys)
        return found

    prompt = items(1, w.prompt_tokens[0])[0] if w.prompt_share else []
    documents = items(1, w.rag_document_tokens[0]) if w.rag_share and w.rag_document_tokens else []
    is_decode = w.mode is ServingMode.DECODE_ONLY
    entries = items(users * w.decode_entries, w.decode_entry_tokens) if is_decode else []
    oracle.populated = documents + entries
    prompt_tokens = w.prompt_tokens[0] if w.prompt_share else 0
    retrieved = w.rag_document_tokens[0] if documents and w.rag_document_tokens else 0
    own: dict[int, list[int]] = {}
    history: dict[int, int] = {}
    for arrival, _, session, _, tokens, output, *_ in log:
        if is_decode:
            oracle.plans.append(
                Plan(arrival, tokens, 0, output, entries[session], len(entries[session]), session=session)
            )
            continue
        mine = own.setdefault(session, [])
        asked = tokens - retrieved
        new_tokens = asked - history.get(session, prompt_tokens)
        history[session] = asked + output
        known = len(prompt) + len(mine)
        if preset.entry is Entry.CHUNK:
            wanted, size = asked // chunk - len(prompt), oracle.chunk_bytes()
        else:
            wanted, size = len(mine) + 1, new_tokens * bytes_per_token
        while len(mine) < wanted:
            mine.append(len(oracle.sizes))
            oracle.sizes[mine[-1]] = size
        chain = [*prompt, *mine]
        oracle.plans.append(
            Plan(
                arrival,
                tokens,
                new_tokens,
                output,
                chain,
                known,
                len(prompt),
                [k for d in documents for k in d],
                session=session,
            )
        )
    return oracle
