"""What engines' own code did for requests of a real trace, beside what our trace says of the same
requests.

`tests/golden/engines` holds the recordings. An object is named by the request that first had it and
its place in that request's prompt, in chunks of the engine.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict, deque
from itertools import count as counting
from pathlib import Path
from typing import Any

from conftest import TRACES
from simulated import kvtrace
from whole import read_table

from kvtrace.core.schema import TRACE
from kvtrace.requests import mooncake

ENGINES = Path(__file__).parents[1] / "golden" / "engines"
CONVERSATION = "mooncake_conversation.jsonl"
TOKEN_BYTES, TRACE_BLOCK_TOKENS, LATENT_ROPE = 256, 512, 64
CPU, DISK = 1, 2
Object = tuple[int, int]
Moves = dict[int, dict[Any, list[Object]]]
"""By request, and what was done: in which order to which objects."""


def recorded(path: str | Path) -> Moves:
    """Return what an engine did.

    Lines of operation, request, first object, step to the next, and how many.
    """
    found: Moves = defaultdict(lambda: defaultdict(list))
    with gzip.open(ENGINES / f"{path}.txt.gz", "rt") as lines:
        for line in lines:
            operation, request, first, step, count = line.split()
            writer, place = map(int, first.split(":"))
            found[int(request)][operation] += [
                (writer, place + int(step) * i) for i in range(int(count))
            ]
    return found


def first_had(
    count: int, tokens: int, trace: str | Path = CONVERSATION, ranks: int = 1
) -> list[Object]:
    """Return the names of the objects of `tokens` that the first `count` requests have, in the
    order of our numbers.

    With several `ranks` the place of one of them is place * ranks + rank.
    """
    requests = mooncake.read(TRACES / trace)
    seen: set[tuple[int, int]] = set()
    names: list[Object] = []
    of_one = TRACE_BLOCK_TOKENS // tokens
    for n in range(count):
        ids = requests.block_ids[requests.block_offsets[n] : requests.block_offsets[n + 1]].tolist()
        for k in range(int(requests.input_tokens[n]) // tokens):
            if (part := (ids[k // of_one], k % of_one)) not in seen:
                seen.add(part)
                names += [(n, k * ranks + rank) for rank in range(ranks)]
    return names


def simulated(
    monkeypatch: Any, folder: Path, preset: str, count: int, settings: list[str], *, layers: int = 1,
    trace: str | Path = CONVERSATION, ranks: int = 1, token_bytes: int = TOKEN_BYTES, is_latent: bool = False,
    gpu: str = "instant",
) -> list[tuple[str, int, int, int]]:  # fmt: skip
    """Return what our trace of the first `count` requests holds.

    Operation, tier, request, number of the object.

    Each of the `ranks` has `token_bytes` of a token, and layer: of heads of its own, or of a
    latent, the same on all. What makes room has no request: it is of the one whose operation comes
    after it, the last if none does.
    """
    model = json.loads((ENGINES / "tinier-config.json").read_text())
    config, out = folder / "config.json", folder / "t.parquet"
    shape = {name: model[name] * ranks for name in ("num_attention_heads", "num_key_value_heads")}
    shape |= {"head_dim": token_bytes // 4, "num_hidden_layers": layers}
    if is_latent:
        widths = {"kv_lora_rank": token_bytes // 2 - LATENT_ROPE, "qk_rope_head_dim": LATENT_ROPE}
        shape |= widths | {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"]}
    config.write_text(json.dumps(model | shape))
    options = [
        "--source",
        "mooncake",
        "--limit",
        count,
        "--preset",
        preset,
        "--gpu",
        gpu,
        "--tp",
        ranks,
    ]
    options += [part for setting in settings for part in ("--set", setting)]
    assert (
        kvtrace(
            monkeypatch, "gen", TRACES / trace, *options, "--model", config, "-o", out, "--force"
        )
        == 0
    )
    table = read_table(out, TRACE)
    rows = list(
        zip(
            *(table[name].to_pylist() for name in ("op", "tier", "request_id", "object_id")),
            strict=True,
        )
    )
    request = max(of for _, _, of, _ in rows if of is not None)
    found = []
    for op, tier, of, number in reversed(rows):
        request = request if of is None else of
        found.append((op, tier, request, number))
    return found[::-1]


def counted(rows: list[tuple[str, int, int, int]]) -> dict[int, Counter[tuple[str, int]]]:
    """Return for each request how often each tier was read, written and deleted from."""
    counts: dict[int, Counter[tuple[str, int]]] = defaultdict(Counter)
    for op, tier, request, _ in rows:
        counts[request][op, tier] += 1
    return counts


def moved(rows: list[tuple[str, int, int, int]], names: list[Object]) -> Moves:
    """Return for each request which objects were read, written and deleted, by operation and tier."""
    found: Moves = defaultdict(lambda: defaultdict(list))
    for op, tier, request, number in rows:
        found[request][op, tier].append(names[number])
    return found


def blocks_that_differ(
    did: dict[Any, list[Object]],
    done: dict[Any, list[Object]],
    *,
    is_ordered: bool,
    in_rounds: bool = False,
) -> list[str]:
    """Return what vLLM `did` and we have `done` with other blocks or in another order, in one
    request.

    Evictions need the same order only if `is_ordered`, and nothing does where it brings blocks up
    `in_rounds`.
    """
    gone, given_up = done["delete", CPU], did["evict"]
    order: Any = sorted if in_rounds else list
    is_same = {
        "stored": order(done["write", CPU]) == order(did["promote"] + did["store"]),
        "loaded": order(done["read", CPU] + done["read", DISK]) == order(did["load"]),
        "read from files": order(done["read", DISK]) == order(did["promote"]),
        "evicted": gone == given_up if is_ordered else Counter(gone) == Counter(given_up),
    }
    return [what for what, same in is_same.items() if not same]


def write_alike(
    path: Path, trace: str | Path, count: int, after: int = 0, *, output: int | None = None
) -> int:
    """Write up to `count` requests of `trace` that share more than their first block with another
    of its first 4,000.

    They are those after the first `after` of them. With `output`, each answer has so many tokens.
    Return the tokens of the longest prompt.
    """
    lines = (TRACES / trace).read_text(encoding="utf-8").splitlines()[:4000]
    asked = [json.loads(line) for line in lines]
    alike = Counter(tuple(one["hash_ids"][:3]) for one in asked)
    chosen = [one for one in asked if alike[tuple(one["hash_ids"][:3])] > 1][after : after + count]
    if output is not None:
        chosen = [one | {"output_length": output} for one in chosen]
    path.write_text("".join(json.dumps(one) + "\n" for one in chosen), encoding="utf-8")
    return int(max(one["input_length"] for one in chosen))


Slots = dict[int, dict[str, list[int]]]
"""By request, and operation: which slots of a file, in order."""


def recorded_slots(path: str | Path) -> Slots:
    """Return the slots that vLLM used.

    Lines of operation, request, first slot, how many (down), bytes of each.
    """
    found: Slots = defaultdict(lambda: defaultdict(list))
    with gzip.open(ENGINES / f"{path}.txt.gz", "rt") as lines:
        for line in lines:
            operation, request, first, count, block_bytes, _ = line.split()
            assert block_bytes == "8192"
            places = range(int(first), int(first) + int(count), 1 if int(count) > 0 else -1)
            found[int(request)][operation] += places
    return found


def slots_taken(rows: list[tuple[str, int, int, int]], disk: int) -> Slots:
    """Return the slots that our trace uses.

    An object takes that of what was deleted first, else the file's next.
    """
    found: Slots = defaultdict(lambda: defaultdict(list))
    slot_of: dict[int, int] = {}
    free: deque[int] = deque()
    fresh = counting(1)
    for op, tier, request, number in rows:
        if tier == disk and op == "delete":
            free.append(slot_of.pop(number))
        elif tier == disk:
            if op == "write":
                slot_of[number] = free.popleft() if free else next(fresh)
            found[request][op].append(slot_of[number])
    return found


def queued(path: str | Path) -> dict[int, dict[int, tuple[int, ...]]]:
    """Return what vLLM did at so many ns a token.

    Of each request how long it waited, in ns, and the tokens found.

    Where it generates answers, too: when their first and their last token came, in ns from its
    arrival.
    """
    found: dict[int, dict[int, tuple[int, ...]]] = defaultdict(dict)
    with gzip.open(ENGINES / f"{path}.txt.gz", "rt") as lines:
        for line in lines:
            token_ns, request, *did = map(int, line.split())
            found[token_ns][request] = tuple(did)
    return found


def begun(
    trace: Path, out: Path, token_ns: int, step_tokens: int, block: int
) -> dict[int, tuple[int, int]]:
    """Return the same of the trace `out` of ours; a request that writes nothing waits for -1.

    The first write is of the first step, of up to `step_tokens`, and shows when that began.
    """
    rows = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]
    table, hits, first = read_table(out, TRACE), Counter[int](), dict[int, int]()
    columns = (table[name].to_pylist() for name in ("ts_ns", "op", "request_id", "phase"))
    for when, op, request, phase in zip(*columns, strict=True):
        if op == "read":
            hits[request] += block
        elif op == "write" and phase in ("prefill", "store") and request not in first:
            first[request] = when
    found = {}
    for n, row in enumerate(rows):
        came_ns = (row["timestamp"] - rows[0]["timestamp"]) * 10**6
        began_ns = first.get(n, 0) - token_ns * min(step_tokens, row["input_length"] - hits[n])
        found[n] = began_ns - came_ns if n in first else -1, hits[n]
    return found
