"""Files of requests made at random, and a plain second reader of each format.

A maker writes a valid file. A reader follows the description of the format alone, with Python's
`json`, `csv` and `re`, so that it shares no mistake with `kvtrace/requests`.
"""

from __future__ import annotations

import csv
import json
import re
import struct
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import msgspec

S = 10**9
MS = 10**6
Json = dict[str, Any]


@dataclass
class Call:
    """A request, as a plain reader finds it."""

    time_ns: int
    input_tokens: int
    output_tokens: int
    blocks: Sequence[Hashable] = ()
    """Names of the blocks of its prompt: equal names behind equal blocks are equal prefixes."""
    session: Hashable = None
    answered_ns: int | None = None


class Own:
    """The name of a block that no other request has."""


def lines(path: Path, rows: Iterable[Json]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows_of(path: Path) -> list[Json]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def prompt(rng: Random, depth: int = 5) -> tuple[int, ...]:
    """The contents of a prompt's blocks; prompts often begin alike."""
    return tuple(rng.randrange(3) for _ in range(rng.randrange(depth + 1)))


class PrefixIds:
    """Numbers of prefixes, as engines hash them."""

    def __init__(self, rng: Random) -> None:
        self._numbers: dict[tuple[int, ...], int] = {}
        self._offset = rng.randrange(1000)

    def of(self, blocks: tuple[int, ...]) -> list[int]:
        return [
            self._offset + self._numbers.setdefault(blocks[: n + 1], len(self._numbers))
            for n in range(len(blocks))
        ]


def tokens_of(rng: Random, blocks: int, size: int) -> int:
    """A prompt of so many blocks, of which the last may be partial."""
    return 0 if not blocks else size * (blocks - 1) + rng.randint(1, size)


# Mooncake


def make_mooncake(path: Path, rng: Random) -> Path:
    ids, rows, time = PrefixIds(rng), [], 0
    size = rng.choice((512, 512, 64))
    is_content = rng.random() < 0.3
    for _ in range(rng.randint(1, 20)):
        time += rng.choice((0, 1, rng.randrange(5000)))
        blocks = prompt(rng)
        chain = ids.of(blocks)
        if is_content:
            # Names of contents, of which a prompt has each once.
            chain = list(dict.fromkeys(blocks))
        row: Json = {"timestamp": time, "input_length": tokens_of(rng, len(chain), size)}
        row |= {"output_length": rng.randrange(50), "hash_ids": chain}
        if size != 512:
            row["block_size"] = size
        if rng.random() < 0.1:
            del row["output_length"]
        rows.append(row)
    return lines(path, rows)


def read_mooncake(path: Path) -> list[Call]:
    return [
        Call(
            row["timestamp"] * MS, row["input_length"], row.get("output_length", 0), row["hash_ids"]
        )
        for row in rows_of(path)
    ]


def make_mooncake_sessions(path: Path, rng: Random) -> Path:
    """Rows of sessions: whole prompts, or added tokens only, with times or delays."""
    ids, rows, size = PrefixIds(rng), [], 16
    is_delta, clock = rng.random() < 0.5, 0
    for number in range(rng.randint(2, 5)):
        blocks = (number % 2, *prompt(rng))
        for turn in range(rng.randint(2, 4)):
            clock += rng.randrange(2000)
            row: Json = {"session_id": f"s{number}", "output_length": rng.randrange(40)}
            if not turn or rng.random() < 0.5:
                row["timestamp"] = clock
            else:
                row["delay"] = rng.randrange(500)
                clock += row["delay"]
            chain = ids.of(blocks)
            if turn and is_delta:
                chain = [9000 + len(rows) * 20 + n for n in range(rng.randint(1, 3))]
            row |= {"hash_ids": chain, "input_length": tokens_of(rng, len(chain), size)}
            row["block_size"] = size
            rows.append(row)
            blocks = (*blocks, *prompt(rng, 2))
    return lines(path, rows)


def read_mooncake_sessions(path: Path) -> list[Call]:
    rows = rows_of(path)
    firsts: dict[str, int] = {}
    later = [row for row in rows if firsts.setdefault(row["session_id"], row["hash_ids"][0]) or 1]
    seen: set[str] = set()
    followers = [r for r in later if r["session_id"] in seen or seen.add(r["session_id"])]
    continued = sum(r["hash_ids"][0] == firsts[r["session_id"]] for r in followers)
    is_delta = 2 * continued < len(followers)
    calls: list[Call] = []
    last_ns: dict[str, int] = {}
    history: dict[str, tuple[int, list[Hashable]]] = {}
    for row in rows:
        name, size = row["session_id"], row["block_size"]
        time_ns = row["timestamp"] * MS if "timestamp" in row else None
        time_ns = last_ns.get(name, 0) + row["delay"] * MS if time_ns is None else time_ns
        last_ns[name] = time_ns
        tokens, blocks = row["input_length"], list(row["hash_ids"])
        if is_delta:
            before, blocks_before = history.get(name, (0, None))
            tokens += before
            blocks = blocks[: tokens // size] if blocks_before is None else blocks_before
            blocks = blocks + [Own() for _ in range(tokens // size - len(blocks))]
            history[name] = tokens + row["output_length"], blocks
        calls.append(Call(time_ns, tokens, row["output_length"], blocks, name))
    return calls


def make_bailian(path: Path, rng: Random) -> Path:
    ids, rows, time = PrefixIds(rng), [], 0.0
    has_ids = rng.random() < 0.8
    for chat in range(rng.randint(1, 20)):
        time += rng.choice((0, rng.randrange(4000) / 1000))
        parent = rng.choice([-1, -1, *range(chat), 10_000])
        blocks = prompt(rng)
        row: Json = {"chat_id": chat, "parent_chat_id": parent, "timestamp": time}
        row |= {"input_length": tokens_of(rng, len(blocks), 16), "output_length": rng.randrange(9)}
        row |= {"type": "text", "turn": rng.randint(1, 4)}
        if has_ids:
            row["hash_ids"] = list(blocks) if rng.random() < 0.2 else ids.of(blocks)
            if row["input_length"] % 16 and rng.random() < 0.3:
                row["hash_ids"].pop()
            if rng.random() < 0.1:
                del row["hash_ids"]
        rows.append(row)
    return lines(path, rows)


def read_bailian(path: Path) -> list[Call]:
    rows, roots = rows_of(path), {}
    has_ids = any("hash_ids" in row for row in rows)
    calls = []
    for row in rows:
        parent = row["parent_chat_id"]
        roots[row["chat_id"]] = (
            roots.get(parent, row["chat_id"]) if parent != -1 else row["chat_id"]
        )
        blocks: list[Hashable] = row.get("hash_ids", [])
        if has_ids and "hash_ids" not in row:
            blocks = [Own() for _ in range(row["input_length"] // 16)]
        time_ns = round(row["timestamp"] * S)
        call = Call(time_ns, row["input_length"], row["output_length"], blocks)
        call.session = roots[row["chat_id"]]
        calls.append(call)
    return calls


# Tables


def make_burstgpt(path: Path, rng: Random) -> Path:
    names = ["Timestamp", "Session ID", "Elapsed time", "Model", "Request tokens"]
    names += ["Response tokens", "Total tokens", "Log Type"]
    if rng.random() < 0.3:
        names = [name for name in names if name not in ("Session ID", "Elapsed time")]
    rng.shuffle(names)
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, names, extrasaction="ignore")
        table.writeheader()
        for n in range(rng.randint(1, 30)):
            prompt_tokens, answer = rng.randrange(1, 900), rng.choice((0, rng.randrange(1, 90)))
            row = {"Timestamp": rng.randrange(100), "Session ID": rng.choice(("", "a", "b"))}
            row |= {"Elapsed time": 1.5, "Model": "ChatGPT", "Log Type": "API log"}
            row |= {"Request tokens": prompt_tokens, "Response tokens": answer if n else 3}
            table.writerow(row | {"Total tokens": prompt_tokens + answer})
    return path


def read_burstgpt(path: Path) -> list[Call]:
    with path.open(newline="") as file:
        return [
            Call(
                round(float(row["Timestamp"]) * S),
                int(row["Request tokens"]),
                int(row["Response tokens"]),
                session=row.get("Session ID") or None,
            )
            for row in csv.DictReader(file)
            if int(row["Response tokens"])
        ]


def make_azure(path: Path, rng: Random) -> Path:
    start, form = datetime(2023, 11, 16, 18, 17, tzinfo=UTC), rng.choice(("2023", "2024"))
    text = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for _ in range(rng.randint(1, 30)):
        time = start + timedelta(microseconds=rng.randrange(10**8))
        stamp = f"{time:%Y-%m-%d %H:%M:%S.%f}0" if form == "2023" else f"{time}"
        text.append(f"{stamp},{rng.randrange(9000)},{rng.randrange(900)}")
    path.write_text("\n".join(text) + "\n")
    return path


def read_azure(path: Path) -> list[Call]:
    calls = []
    for row in list(csv.reader(path.read_text().splitlines()))[1:]:
        day, clock = row[0].removesuffix("+00:00").split(" ")
        hours, minutes, seconds = clock.split(":")
        whole, _, part = seconds.partition(".")
        second = (int(hours) * 60 + int(minutes)) * 60 + int(whole)
        ordinal = datetime.fromisoformat(day).toordinal()
        time_ns = (ordinal * 86_400 + second) * S + int((part + "0" * 9)[:9])
        calls.append(Call(time_ns, int(row[1]), int(row[2])))
    return calls


# Conversations


def make_agentic(path: Path, rng: Random) -> Path:
    """A directory of conversations with sub-agents."""
    path.mkdir()

    def requests(depth: int, start: float) -> list[Json]:
        ids, found, time = PrefixIds(rng), [], start
        for _ in range(rng.randint(1, 6)):
            time += rng.randrange(90_000) / 1000
            if depth and rng.random() < 0.25:
                clock = time if rng.random() < 0.5 else 0.0
                nested = requests(depth - 1, clock)
                found.append({"t": time, "type": "subagent", "requests": nested})
                continue
            blocks = prompt(rng)
            row: Json = {"t": time, "type": "n", "in": tokens_of(rng, len(blocks), 64)}
            row |= {"out": rng.randrange(90), "hash_ids": ids.of(blocks)}
            row |= {"api_time": rng.randrange(5000) / 1000} if rng.random() < 0.7 else {}
            found.append(row)
        return found

    for number in range(rng.randint(1, 3)):
        whole = {"block_size": 64, "hash_id_scope": rng.choice(("local", "global"))}
        conversation = requests(1, 0.0)
        if all(row["type"] == "subagent" for row in conversation):
            conversation.append({"t": 0.0, "type": "n", "in": 0, "out": 1, "hash_ids": []})
        whole |= {"requests": conversation}
        (path / f"{number}.json").write_text(json.dumps(whole))
    return path


def read_agentic(path: Path) -> list[Call]:
    calls: list[Call] = []
    for number, file in enumerate(sorted(path.glob("*.json"))):
        whole = json.loads(file.read_text())
        scope = None if whole["hash_id_scope"] == "global" else number
        agents = [row for row in whole["requests"] if row["type"] == "subagent"]
        is_own_clock = any(
            inner["t"] < agent["t"] for agent in agents for inner in agent["requests"]
        )

        def enter(rows: list[Json], start: float, session: Hashable, scope: Any = scope) -> None:
            for row in rows:
                if row["type"] == "subagent":
                    continue
                time_ns = round((start + row["t"]) * S)
                blocks = [(scope, block) for block in row["hash_ids"]]
                call = Call(time_ns, row["in"], row["out"], blocks, session)
                call.answered_ns = time_ns + round(row.get("api_time", 0) * S)
                calls.append(call)

        enter(whole["requests"], 0.0, (number, "main"))
        for n, agent in enumerate(agents):
            enter(agent["requests"], agent["t"] * is_own_clock, (number, n))
    return calls


def read_agentic_with_idle_cap(path: Path) -> list[Call]:
    """The same, with pauses of a conversation (and its sub-agents) cut to 10 s."""
    calls = read_agentic(path)
    for number in {call.session[0] for call in calls}:
        order = [call for call in calls if call.session[0] == number]
        order.sort(key=lambda call: call.time_ns)
        busy_until_ns, cut_ns = order[0].time_ns, 0
        for call in order:
            cut_ns += max(0, call.time_ns - busy_until_ns - 10 * S)
            busy_until_ns = max(busy_until_ns, call.answered_ns)
            call.time_ns -= cut_ns
            call.answered_ns -= cut_ns
    return calls


def make_tracelab(path: Path, rng: Random) -> Path:
    rows, clock = [], datetime(2026, 1, 1, tzinfo=UTC)
    for _ in range(rng.randint(1, 20)):
        clock += timedelta(milliseconds=rng.randrange(100_000))
        kinds = rng.sample(["user_message", "tool_result", "assistant"], rng.randint(1, 3))
        events = []
        for kind in kinds:
            time = clock + timedelta(milliseconds=rng.randrange(5000))
            events.append({"event_type": kind, "timestamp": f"{time:%Y-%m-%dT%H:%M:%S.%f}Z"})
        row: Json = {"session_id": rng.choice("ab"), "round_index": 0, "timing_events": events}
        row |= {"prefix_tokens": rng.randrange(300), "newly_append_tokens": rng.randint(1, 300)}
        row |= {"output_tokens": rng.randrange(100), "provider": "p"}
        rows.append(row)
    return lines(path, rows)


def iso_ns(text: str) -> int:
    time = datetime.fromisoformat(text)
    since = time - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * S + since.microseconds * 1000


def read_tracelab(path: Path) -> list[Call]:
    calls = []
    for row in rows_of(path):
        times = [(iso_ns(e["timestamp"]), e["event_type"]) for e in row["timing_events"]]
        asked = [ns for ns, kind in times if kind in ("user_message", "tool_result")]
        time_ns = max(asked) if asked else min(times)[0]
        tokens = row["prefix_tokens"] + row["newly_append_tokens"]
        call = Call(time_ns, tokens, row["output_tokens"], session=row["session_id"])
        call.answered_ns = max(max(times)[0], time_ns)
        call.blocks = [row["prefix_tokens"]]  # replaced below
        calls.append(call)
    calls.sort(key=lambda call: call.time_ns)
    before: dict[Hashable, Call] = {}
    for call in calls:
        previous, prefix = before.get(call.session), call.blocks[0]
        shared = 0
        if previous is not None:
            is_longer = call.input_tokens >= previous.input_tokens
            shared = previous.input_tokens if is_longer else min(prefix, call.input_tokens)
            shared = min(shared, previous.input_tokens) // 512
        new = [Own() for _ in range(call.input_tokens // 512 - shared)]
        call.blocks = [*(previous.blocks[:shared] if previous else ()), *new]
        before[call.session] = call
    return calls


# Engines' logs


def make_agentic_mooncake(path: Path, rng: Random) -> Path:
    head = {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 16}
    head["hash_id_scope"] = rng.choice(("local", "global"))
    ids, rows = PrefixIds(rng), [head]
    for n in range(rng.randint(1, 15)):
        blocks = prompt(rng)
        row: Json = {"request_id": f"r{n}", "play_id": rng.choice("xy"), "hash_ids": ids.of(blocks)}
        row |= {"session_id": rng.choice("ab")} if rng.random() < 0.8 else {}
        row |= {"input_length": tokens_of(rng, len(blocks), 16), "output_length": rng.randrange(9)}
        row["not_before_ms"] = rng.choice((0.0, rng.randrange(9000) / 8))
        others = rng.sample(range(n), min(n, rng.randrange(3)))
        row["dependencies"] = [
            {
                "request_id": f"r{other}",
                "trigger": rng.choice(("dispatch", "completion")),
                "delay_ms": rng.randrange(800) / 8,
            }
            for other in others
        ]
        rows.append(row)
    return lines(path, rows)


def read_agentic_mooncake(path: Path) -> list[Call]:
    head, *rows = rows_of(path)
    times: dict[str, int] = {}
    calls = []
    for row in rows:
        waits = [times[d["request_id"]] + round(d["delay_ms"] * MS) for d in row["dependencies"]]
        time_ns = max([round(row["not_before_ms"] * MS), *waits])
        times[row["request_id"]] = time_ns
        play = row["play_id"] if head["hash_id_scope"] == "local" else None
        blocks = [(play, block) for block in row["hash_ids"]]
        session = (row["play_id"], row["session_id"]) if "session_id" in row else None
        calls.append(Call(time_ns, row["input_length"], row["output_length"], blocks, session))
    return calls


def make_dynamo(path: Path, rng: Random) -> Path:
    ids, rows, is_wrapped = PrefixIds(rng), [], rng.random() < 0.5
    for n in range(rng.randint(1, 20)):
        blocks = (0, *prompt(rng))
        request: Json = {"request_id": f"r{n}", "output_tokens": rng.randrange(90)}
        replay = {"trace_block_size": 16, "input_length": tokens_of(rng, len(blocks), 16)}
        replay["input_sequence_hashes"] = ids.of(blocks)
        request |= {"replay": replay} if not n or rng.random() < 0.9 else {}
        request |= {"total_time_ms": rng.randrange(8000) / 8} if rng.random() < 0.8 else {}
        request |= (
            {"request_received_ms": rng.randrange(9000)} if not n or rng.random() < 0.7 else {}
        )
        event: Json = {"schema": "dynamo.request.trace.v1", "event_type": "request_end"}
        event |= {"request": request, "event_time_unix_ms": rng.randrange(9000, 20_000)}
        event |= {"agent_context": {"session_id": rng.choice("ab")}} if rng.random() < 0.5 else {}
        rows.append({"timestamp": n, "event": event} if is_wrapped else event)
        if rng.random() < 0.2:
            tool = {"schema": "dynamo.request.trace.v1", "event_type": "tool_end"}
            rows.append({"timestamp": n, "event": tool} if is_wrapped else tool)
    return lines(path, rows)


def read_dynamo(path: Path) -> list[Call]:
    calls = []
    for row in rows_of(path):
        event = row.get("event", row)
        request = event.get("request", {})
        replay, took = request.get("replay"), request.get("total_time_ms")
        arrival = request.get("request_received_ms")
        if arrival is None and took is not None:
            arrival = event["event_time_unix_ms"] - took
        if event["event_type"] != "request_end" or replay is None or arrival is None:
            continue
        session = event.get("agent_context", {}).get("session_id")
        time_ns = round(arrival * MS)
        call = Call(time_ns, replay["input_length"], request["output_tokens"])
        call.blocks, call.session = replay["input_sequence_hashes"], session
        call.answered_ns = time_ns + round((took or 0) * MS)
        calls.append(call)
    return calls


def make_lookups(path: Path, rng: Random) -> Path:
    ids, rows = PrefixIds(rng), []
    for n in range(rng.randint(1, 20)):
        blocks = prompt(rng)
        row: Json = {"timestamp": 1000 + rng.randrange(80_000) / 8, "request_id": f"r{n}"}
        row |= {
            "model_name": "m",
            "chunk_size": 16,
            "seq_len": 16 * len(blocks) + rng.randrange(16),
        }
        rows.append(row | {"chunk_hashes": [hex(block) for block in ids.of(blocks)]})
    return lines(path, rows)


def read_lookups(path: Path) -> list[Call]:
    return [
        Call(round(row["timestamp"] * S), row["seq_len"], 0, row["chunk_hashes"])
        for row in rows_of(path)
    ]


def make_lct(path: Path, rng: Random) -> Path:
    ids, frames = PrefixIds(rng), []
    frames.append({"type": "header", "magic": b"LMCT", "format_version": 1, "level": "storage"})
    for n in range(rng.randint(1, 15)):
        blocks = (0, *prompt(rng)) if not n else prompt(rng)
        keys = [
            {
                "__t__": "ObjectKey",
                "v": {"chunk_hash": bytes([number % 256, number // 256]), "model_name": "m"}
                | {"kv_rank": 0, "object_group_id": 0},
            }
            for number in ids.of(blocks)
        ]
        layout = {"shapes": [[2, 1, 256, 64]], "dtypes": ["torch.bfloat16"]}
        group = {"keys": keys, "layout_desc": {"__t__": "MemoryLayoutDesc", "v": layout}}
        spec = {"key_groups": [{"__t__": "GroupedObjectKeys", "v": group}]}
        name = rng.choice(
            ("a.StorageManager.submit_prefetch_task", "a.StorageManager.finish_write")
        )
        name = "a.StorageManager.submit_prefetch_task" if not n else name
        frames.append(
            {"type": "record", "t_mono": rng.randrange(8000) / 8, "t_wall": 1.0, "qualname": name}
            | {"args": {"spec": {"__t__": "PrefetchTaskSpec", "v": spec}}}
        )
    encoded = [msgspec.msgpack.encode(frame) for frame in frames]
    path = path.with_suffix(".lct")
    path.write_bytes(b"".join(struct.pack(">I", len(frame)) + frame for frame in encoded))
    return path


def read_lct(path: Path) -> list[Call]:
    data, frames = path.read_bytes(), []
    while data:
        (length,) = struct.unpack(">I", data[:4])
        frames.append(msgspec.msgpack.decode(data[4 : 4 + length]))
        data = data[4 + length :]
    calls = []
    for record in frames[1:]:
        keys = record["args"]["spec"]["v"]["key_groups"][0]["v"]["keys"]
        if record["qualname"].endswith("submit_prefetch_task") and keys:
            blocks = [key["v"]["chunk_hash"] for key in keys]
            calls.append(Call(round(record["t_mono"] * S), 256 * len(keys), 0, blocks))
    return calls


def words(rng: Random) -> str:
    return "".join(rng.choice("ab") * 16 for _ in range(rng.randrange(8))) + "x" * rng.randrange(16)


def make_chats(path: Path, rng: Random) -> Path:
    return lines(
        path,
        [
            {"timestamp": rng.randrange(10**9), "input": words(rng), "output": words(rng)}
            | ({"session_id": rng.choice("st")} if rng.random() < 0.6 else {})
            for _ in range(rng.randint(1, 20))
        ],
    )


def text_blocks(text: str, tokens: int) -> list[str]:
    """Blocks of so many tokens of 4 characters, the last token perhaps shorter."""
    size, blocks = 4 * tokens, (len(text) + 3) // 4 // tokens
    return [text[n * size : n * size + size] for n in range(blocks)]


def read_chats(path: Path) -> list[Call]:
    return [
        Call(
            row["timestamp"] * 1000,
            -(-len(row["input"]) // 4),
            -(-len(row["output"]) // 4),
            text_blocks(row["input"], 4),
            row.get("session_id"),
        )
        for row in rows_of(path)
    ]


# Servers' logs


def make_vllm(path: Path, rng: Random) -> Path:
    clock, text = datetime(2026, 3, 1, tzinfo=UTC), []
    for n in range(rng.randint(1, 15)):
        clock += timedelta(seconds=rng.randrange(100))
        head = f"INFO {clock:%m-%d %H:%M:%S} [logger.py:39] "
        ids = [rng.randrange(2) for _ in range(rng.randrange(1, 40))]
        is_text = rng.random() < 0.3
        shown = words(rng) + "y" if is_text else "some 'text', prompt_token_ids: [1]"
        shown_ids = None if is_text else ids
        text.append(
            f"{head}Received request cmpl-{n}: prompt: {shown!r}, params: SamplingParams(n=1),"
            f" prompt_token_ids: {shown_ids}, lora_request: None."
        )
        if rng.random() < 0.7:
            end = clock + timedelta(seconds=rng.randrange(50))
            answer = [7] * rng.randrange(9)
            text.append(
                f"INFO {end:%m-%d %H:%M:%S} [logger.py:80] Generated response cmpl-{n}: output: 'x',"
                f" output_token_ids: {answer}, finish_reason: stop"
            )
        elif rng.random() < 0.3:
            text.append(f"INFO {clock:%m-%d %H:%M:%S} [async_llm.py:9] Request cmpl-{n} aborted.")
        text += ["INFO 03-01 00:00:00 [loggers.py:1] Avg prompt throughput"] * rng.randrange(2)
    path.write_text("\n".join(text) + "\n")
    return path


def read_vllm(path: Path) -> list[Call]:
    calls: dict[str, Call] = {}
    for line in path.read_text().splitlines():
        time_text = re.search(r"INFO (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)", line)
        assert time_text is not None
        month, day, *clock = map(int, time_text.groups())
        seconds = datetime(2026, month, day, *clock, tzinfo=UTC).timestamp()
        received = re.search(r"Received request (\S+): prompt: (.*), params: ", line)
        if received:
            ids = re.findall(r"prompt_token_ids: (None|\[[0-9, ]*\]), lora", line)[-1]
            if ids == "None":
                text = received[2][1:-1]
                units: list[Hashable] = [text[n : n + 4] for n in range(0, len(text), 4)]
            else:
                units = json.loads(ids)
            blocks = [tuple(units[n : n + 4]) for n in range(0, len(units) - 3, 4)]
            time_ns = round(seconds) * S
            calls[received[1]] = Call(time_ns, len(units), 0, blocks, answered_ns=time_ns)
        generated = re.search(r"Generated response (\S+): .*output_token_ids: (\[[0-9, ]*\])", line)
        if generated:
            calls[generated[1]].output_tokens = len(json.loads(generated[2]))
            calls[generated[1]].answered_ns = round(seconds) * S
    return list(calls.values())


def make_sglang(path: Path, rng: Random) -> Path:
    text, is_json = [], rng.random() < 0.5
    for n in range(rng.randint(1, 15)):
        ids = [rng.randrange(2) for _ in range(rng.randrange(1, 30))]
        shown = ids if not n or rng.random() < 0.8 else None
        image = ["a.png"] if n and rng.random() < 0.1 else None
        is_abort = n and rng.random() < 0.2
        reason = {"type": "abort" if is_abort else "stop"}
        tokens = 0 if is_abort and rng.random() < 0.5 else len(ids) + (500 if image else 0)
        session = rng.choice((None, "c1", "c2"))
        meta: Json = {"id": f"r{n}", "finish_reason": reason, "prompt_tokens": tokens}
        meta |= {"completion_tokens": rng.randrange(20), "cached_tokens": rng.randrange(3)}
        meta |= {"e2e_latency": rng.randrange(800) / 8}
        meta |= {"request_received_ts": 1_779_262_962 + rng.randrange(800) / 8}
        if is_json:
            request = {"rid": f"r{n}", "input_ids": shown, "image_data": image}
            event = {"event": "request.finished", "obj": request | {"conversation_id": session}}
            text.append(json.dumps(event | {"out": {"meta_info": meta}}))
        else:
            text.append(
                f"[2026-05-20 08:02:44] Finish: obj=GenerateReqInput(rid='r{n}', input_ids={shown},"
                f" image_data={image}, conversation_id={session!r}), out={{'meta_info': {meta}}}"
            )
    path.write_text("\n".join(text) + "\n")
    return path


def read_sglang(path: Path) -> list[Call]:
    calls = []
    for line in path.read_text().splitlines():
        text = line.replace('": ', "=").replace('"', "'").replace("null", "None")
        text = text.replace("': ", "=").replace("{'", "{").replace(", '", ", ")
        number = {
            name: float(value)
            for name, value in re.findall(r"(\w+)=([0-9.]+)", text.partition("meta_info")[2])
        }
        is_abort = "type='abort'" in text
        if is_abort and not number["prompt_tokens"]:
            continue
        ids = re.search(r"input_ids=(\[[0-9, ]*\])", text)
        session = re.search(r"conversation_id='(\w+)'", text)
        time_ns = round(number["request_received_ts"] * S)
        tokens = int(number["prompt_tokens"])
        call = Call(time_ns, tokens, int(number["completion_tokens"]))
        call.answered_ns = time_ns + round(number["e2e_latency"] * S)
        call.session = session[1] if session else None
        call.blocks = [Own() for _ in range(tokens // 4)]
        if ids and "image_data=[" not in text:
            units = json.loads(ids[1])
            call.blocks = [tuple(units[n : n + 4]) for n in range(0, len(units) - 3, 4)]
        calls.append(call)
    return calls


# Exports


def make_aiperf(path: Path, rng: Random) -> Path:
    rows = []
    for n in range(rng.randint(1, 20)):
        start = 10**18 + rng.randrange(10**10)
        metadata: Json = {"request_start_ns": start, "benchmark_phase": "profiling"}
        metadata |= {"benchmark_phase": "warmup"} if n and rng.random() < 0.2 else {}
        metadata |= {"request_end_ns": start + rng.randrange(10**9)} if rng.random() < 0.8 else {}
        metadata |= {"conversation_id": rng.choice("ab")} if rng.random() < 0.7 else {}
        metrics: Json = {}
        for name in ("input_sequence_length", "output_sequence_length"):
            if not n or rng.random() < 0.9:
                metrics[name] = {"value": rng.randrange(1, 900), "unit": "tokens"}
        rows.append({"metadata": metadata, "metrics": metrics})
    return lines(path, rows)


def read_aiperf(path: Path) -> list[Call]:
    calls = []
    for row in rows_of(path):
        metadata, metrics = row["metadata"], row["metrics"]
        if metadata["benchmark_phase"] == "warmup" or "input_sequence_length" not in metrics:
            continue
        answer = metrics.get("output_sequence_length", {"value": 0})["value"]
        call = Call(metadata["request_start_ns"], metrics["input_sequence_length"]["value"], answer)
        call.session = metadata.get("conversation_id")
        call.answered_ns = metadata.get("request_end_ns", call.time_ns)
        calls.append(call)
    return calls


def make_spans(rng: Random) -> list[Json]:
    """Spans of a random forest: id, parent, role, tokens, times, conversation."""
    spans: list[Json] = []
    for n in range(rng.randint(1, 25)):
        parent = rng.choice([None, *range(n)]) if n else None
        role = "call" if not n else rng.choice(("call", "call", "rollup", "embedding", "other"))
        start = 10**18 + rng.randrange(10**10)
        span = {"id": n, "parent": parent, "role": role, "start": start}
        span |= {"end": start + rng.randrange(10**9), "input": rng.randint(1, 900)}
        span |= {"output": rng.randrange(90), "session": rng.choice((None, None, "a", "b"))}
        spans.append(span)
    return spans


def calls_of_spans(spans: list[Json]) -> list[Call]:
    """The innermost calls: those from which no call can be reached below without a roll-up."""
    children: dict[Hashable, list[Json]] = {}
    for span in spans:
        children.setdefault(span["parent"], []).append(span)
    by_id = {span["id"]: span for span in spans}

    def has_inner_call(span: Json) -> bool:
        return any(
            child["role"] != "rollup" and (child["role"] == "call" or has_inner_call(child))
            for child in children.get(span["id"], ())
        )

    calls = []
    for span in spans:
        if span["role"] != "call" or has_inner_call(span):
            continue
        session, around = span["session"], span
        while session is None and around["parent"] is not None:
            around = by_id[around["parent"]]
            session = around["session"]
        call = Call(span["start"], span["input"], span["output"], session=session)
        call.answered_ns = span["end"]
        calls.append(call)
    return calls


_OTEL_NAMES = {"call": "chat", "rollup": "invoke_agent", "embedding": "embeddings", "other": "http"}


def make_otel(path: Path, rng: Random) -> Path:
    spans = make_spans(rng)
    rng.shuffle(spans)
    documents, document = [], []
    for span in [*spans, *spans[:1]]:
        attributes: Json = {"gen_ai.operation.name": _OTEL_NAMES[span["role"]]}
        if span["role"] != "other":
            old = rng.random() < 0.3
            attributes["gen_ai.usage." + ("prompt_tokens" if old else "input_tokens")] = span[
                "input"
            ]
            name = "completion_tokens" if old else "output_tokens"
            attributes[f"gen_ai.usage.{name}"] = span["output"]
        if span["session"]:
            attributes["gen_ai.conversation.id"] = span["session"]
        document.append(
            {
                "traceId": "t",
                "spanId": str(span["id"]),
                "parentSpanId": "" if span["parent"] is None else str(span["parent"]),
                "name": "x",
                "startTimeUnixNano": str(span["start"]),
                "endTimeUnixNano": str(span["end"]),
                "attributes": [
                    {"key": key, "value": {"stringValue": value}}
                    if isinstance(value, str)
                    else {"key": key, "value": {"intValue": str(value)}}
                    for key, value in attributes.items()
                ],
            }
        )
        if rng.random() < 0.3:
            documents.append(document)
            document = []
    documents.append(document)
    return lines(path, [{"resourceSpans": [{"scopeSpans": [{"spans": d}]}]} for d in documents])


def read_otel(path: Path) -> list[Call]:
    spans: dict[str, Json] = {}
    for document in rows_of(path):
        for raw in document["resourceSpans"][0]["scopeSpans"][0]["spans"]:
            values = {a["key"]: next(iter(a["value"].values())) for a in raw["attributes"]}
            kind = values["gen_ai.operation.name"]
            tokens = [
                int(values.get(f"gen_ai.usage.{new}", values.get(f"gen_ai.usage.{old}", 0)))
                for new, old in (
                    ("input_tokens", "prompt_tokens"),
                    ("output_tokens", "completion_tokens"),
                )
            ]
            spans[raw["spanId"]] = {
                "id": raw["spanId"],
                "parent": raw["parentSpanId"] or None,
                "role": {name: role for role, name in _OTEL_NAMES.items()}[kind],
                "input": tokens[0],
                "output": tokens[1],
                "start": int(raw["startTimeUnixNano"]),
                "end": int(raw["endTimeUnixNano"]),
                "session": values.get("gen_ai.conversation.id"),
            }
    return calls_of_spans(list(spans.values()))


_LANGFUSE_NAMES = {
    "call": "GENERATION",
    "rollup": "AGENT",
    "embedding": "EMBEDDING",
    "other": "SPAN",
}


def make_langfuse(path: Path, rng: Random) -> Path:
    rows = []
    for span in make_spans(rng):
        times = [
            datetime.fromtimestamp(span[name] // MS / 1000, UTC).isoformat(timespec="milliseconds")
            for name in ("start", "end")
        ]
        cached = rng.randrange(span["input"])
        usage = {"input": span["input"] - cached, "output": span["output"]}
        usage |= {"input_cached_tokens": cached, "total": span["input"] + span["output"]}
        rows.append(
            {
                "id": str(span["id"]),
                "traceId": "t",
                "startTime": times[0].replace("+00:00", "Z"),
                "endTime": times[1].replace("+00:00", "Z"),
                "parentObservationId": None if span["parent"] is None else str(span["parent"]),
                "type": _LANGFUSE_NAMES[span["role"]],
                "sessionId": "a",
                "usageDetails": {} if span["role"] == "other" else usage,
            }
        )
    if rng.random() < 0.5:
        path.write_text(json.dumps(rows))
        return path
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0], quoting=csv.QUOTE_ALL)
        table.writeheader()
        for row in rows:
            row |= {"usageDetails": json.dumps(row["usageDetails"])}
            table.writerow(row | {"startTime": json.dumps(row["startTime"])})
    return path


def read_langfuse(path: Path) -> list[Call]:
    text = path.read_text()
    rows = json.loads(text) if text.startswith("[") else list(csv.DictReader(text.splitlines()))
    spans = []
    for row in rows:
        usage = row["usageDetails"]
        usage = json.loads(usage) if isinstance(usage, str) else usage
        spans.append(
            {
                "id": row["id"],
                "parent": row["parentObservationId"] or None,
                "role": {name: role for role, name in _LANGFUSE_NAMES.items()}[row["type"]],
                "input": sum(count for kind, count in usage.items() if "input" in kind),
                "output": usage.get("output", 0),
                "start": iso_ns(row["startTime"].strip('"')),
                "end": iso_ns(row["endTime"]),
                "session": row["sessionId"],
            }
        )
    return calls_of_spans(spans)


def make_litellm(path: Path, rng: Random) -> Path:
    rows, is_spend = [], rng.random() < 0.5
    for n in range(rng.randint(1, 20)):
        start = 1_795_955_283 + rng.randrange(8000) / 8
        kinds = ("completion", "acompletion", "aresponses", "embedding", "_arealtime")
        row: Json = {"call_type": kinds[0] if not n else rng.choice(kinds)}
        row |= {"status": "failure" if n and rng.random() < 0.2 else "success"}
        row |= {"prompt_tokens": rng.randint(1, 900), "completion_tokens": rng.randrange(90)}
        name, hit = f"c{rng.randrange(n, n + 3)}", n and rng.random() < 0.2
        if is_spend:
            times = [datetime.fromtimestamp(at, UTC).isoformat(" ") for at in (start, start + 0.5)]
            row |= {"request_id": name, "session_id": rng.choice("ab"), "cache_hit": str(hit)}
        else:
            times = [start, start + 0.5]
            row |= {"id": name, "session_id": "", "trace_id": rng.choice("ab"), "cache_hit": hit}
            row["cache_hit"] = bool(hit)
        rows.append(row | {"startTime": times[0], "endTime": times[1], "model": "m"})
    return lines(path, rows)


def read_litellm(path: Path) -> list[Call]:
    names: set[str] = set()
    calls = []
    for row in rows_of(path):
        name = row.get("request_id", row.get("id"))
        is_prompt = row["call_type"].lstrip("a") in ("completion", "responses")
        is_hit = str(row["cache_hit"]) == "True"
        if not is_prompt or row["status"] != "success" or is_hit or name in names:
            continue
        names.add(name)
        times = [
            iso_ns(time) if isinstance(time, str) else round(time * 8) * S // 8
            for time in (row["startTime"], row["endTime"])
        ]
        call = Call(times[0], row["prompt_tokens"], row["completion_tokens"], answered_ns=times[1])
        call.session = row["session_id"] or row.get("trace_id")
        calls.append(call)
    return calls


# Tables of kvtrace


def make_requests(path: Path, rng: Random) -> Path:
    import pyarrow as pa

    from kvtrace.requests import own_table
    from kvtrace.requests.requests import Requests

    ids, rows, time = PrefixIds(rng), [], 0
    for _ in range(rng.randint(1, 20)):
        time += rng.randrange(10**9)
        blocks = prompt(rng)
        row: Json = {"arrival_ns": time, "input_tokens": tokens_of(rng, len(blocks), 16)}
        rows.append(row | {"output_tokens": rng.randrange(90), "block_ids": ids.of(blocks)})
    table = pa.Table.from_pylist(rows)
    ids_of_blocks = pa.array([row["block_ids"] for row in rows], pa.list_(pa.int64()))
    table = table.drop(["block_ids"]).append_column("block_ids", ids_of_blocks)
    path = path.with_suffix(".parquet")
    own_table.write(path, Requests.from_arrow(table, block_tokens=16), ["kvtrace", "import"], 1)
    return path


def read_requests_table(path: Path) -> list[Call]:
    import pyarrow.parquet as pq

    return [
        Call(row["arrival_ns"], row["input_tokens"], row["output_tokens"], row["block_ids"])
        for row in pq.read_table(path).to_pylist()
    ]


def make_kv_events(path: Path, rng: Random) -> Path:
    """Stores of prompts, each after a pause, with the blocks of answers one by one."""
    from kvtrace.core.metadata import describe
    from kvtrace.core.schema import EVENTS
    from kvtrace.core.tables import create
    from kvtrace.requests.record import EventRows

    ids, rows, stored = PrefixIds(rng), EventRows(), set[int]()
    time, number = 10.0, 0
    for n in range(rng.randint(1, 12)):
        time += 100
        chain = ids.of((n if not n else 0, *prompt(rng), 7, n))
        new = [block for block in chain if block not in stored]
        parent = chain[len(chain) - len(new) - 1] if len(new) < len(chain) else None
        stored.update(chain)
        stores = [(parent, new)]
        last = new[-1]
        for answer in range(rng.randrange(3)):
            block = 10_000 + 100 * n + answer
            stores.append((last, [block]))
            last = block
        for before, blocks in stores:
            time += 0.125
            event: Json = {"type": "BlockStored", "block_hashes": blocks, "block_size": 16}
            event |= {"parent_block_hash": before, "medium": "GPU"}
            rows.add(number, msgspec.msgpack.encode([time, [event], 0]))
            number += 1
    path = path.with_suffix(".parquet")
    with create(path, EVENTS, describe(EVENTS, "kvtrace", [], {})) as out:
        out.write(rows.take())
    return path


def read_kv_events(path: Path) -> list[Call]:
    import pyarrow.parquet as pq

    calls: list[Call] = []
    chain_to: dict[Any, list[int]] = {None: []}
    last_block, last_ns = None, 0
    for row in pq.read_table(path).to_pylist():
        ids, time_ns = row["block_ids"], row["ts_ns"]
        chain = list(chain_to[row["parent_id"]])
        if (
            calls
            and row["parent_id"] == last_block
            and time_ns - last_ns <= 2 * S
            and len(ids) == 1
        ):
            calls[-1].output_tokens += 16
            calls[-1].answered_ns = time_ns
        else:
            blocks = [*chain, *ids]
            calls.append(Call(time_ns, 16 * len(blocks), 0, blocks, answered_ns=time_ns))
        for block in ids:
            chain.append(block)
            chain_to[block] = list(chain)
        last_block, last_ns = ids[-1], time_ns
    return calls


@dataclass(frozen=True)
class Pair:
    """A maker of files of a source, a plain reader of them, and options of kvtrace's reader."""

    source: str
    make: Callable[[Path, Random], Path]
    read: Callable[[Path], list[Call]]
    options: Json = field(default_factory=dict)
    file_name: str = "log.jsonl"


PAIRS = {
    "mooncake": Pair("mooncake", make_mooncake, read_mooncake),
    "mooncake-sessions": Pair("mooncake", make_mooncake_sessions, read_mooncake_sessions),
    "bailian": Pair("bailian", make_bailian, read_bailian),
    "burstgpt": Pair("burstgpt", make_burstgpt, read_burstgpt),
    "azure": Pair("azure", make_azure, read_azure),
    "agentic": Pair("agentic", make_agentic, read_agentic, {}, "conversations"),
    "agentic-idle-cap": Pair(
        "agentic",
        make_agentic,
        read_agentic_with_idle_cap,
        {"idle_cap_ns": 10 * S},
        "conversations",
    ),
    "tracelab": Pair("tracelab", make_tracelab, read_tracelab),
    "agentic-mooncake": Pair("agentic-mooncake", make_agentic_mooncake, read_agentic_mooncake),
    "dynamo": Pair("dynamo", make_dynamo, read_dynamo),
    "lmcache-lookup": Pair("lmcache-lookup", make_lookups, read_lookups),
    "lmcache-trace": Pair("lmcache-trace", make_lct, read_lct),
    "lmcache-chat": Pair(
        "lmcache-chat", make_chats, read_chats, {"block_tokens": 4, "tokenizer": "characters"}
    ),
    "vllm-log": Pair(
        "vllm-log", make_vllm, read_vllm, {"block_tokens": 4, "tokenizer": "characters"}
    ),
    "sglang-log": Pair("sglang-log", make_sglang, read_sglang, {"block_tokens": 4}),
    "aiperf": Pair("aiperf", make_aiperf, read_aiperf),
    "otel": Pair("otel", make_otel, read_otel),
    "langfuse": Pair("langfuse", make_langfuse, read_langfuse),
    "litellm": Pair("litellm", make_litellm, read_litellm),
    "kv-events": Pair("kv-events", make_kv_events, read_kv_events),
    "requests": Pair("requests", make_requests, read_requests_table),
}
