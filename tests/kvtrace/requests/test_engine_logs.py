"""Logs of real engines, read as requests.

The samples are what the engines' own code wrote (tests/golden/engines).
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import msgspec
import pytest
from phrases import pattern, shows
from simulated import kvtrace
from whole import read_table

from kvtrace.core.errors import TraceError
from kvtrace.core.schema import TRACE
from kvtrace.core.tables import open_table
from kvtrace.llm.catalogue import logged_model
from kvtrace.llm.shape import bytes_per_token_per_rank
from kvtrace.requests.dynamo import SCHEMA as DYNAMO_SCHEMA
from kvtrace.requests.dynamo import dynamo
from kvtrace.requests.lmcache_logs import chats, lmcache_trace, lookup_log
from kvtrace.requests.mooncake import AGENTIC_SCHEMA, agentic_mooncake
from kvtrace.requests.opentelemetry import otel
from kvtrace.requests.registry import detect

SAMPLES = Path(__file__).resolve().parents[2] / "golden" / "engines"
LOOKUPS = next((SAMPLES / "lmcache").glob("lookup_hashes_*.jsonl"))
CHATS = SAMPLES / "chats" / "agent.openai_chat.jsonl"
PREFETCHES = SAMPLES / "lmcache" / "prompts.lct"
# make_lmcache_logs.py: 3 conversations of 1,300 tokens and 700 more each turn, the first 1,000
# shared.
PROMPTS = [1300] * 3 + [2000] * 3 + [2700] * 3 + [3400] * 3


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (LOOKUPS, "lmcache-lookup"),
        (LOOKUPS.parent, "lmcache-lookup"),
        (PREFETCHES, "lmcache-trace"),
        (CHATS, "lmcache-chat"),
        (SAMPLES / "dynamo" / "dynamo-standard.jsonl", "dynamo"),
        (SAMPLES / "dynamo" / "dynamo-agentic.jsonl", "dynamo"),
        (SAMPLES / "dynamo" / "agentic-mooncake.jsonl", "agentic-mooncake"),
        (SAMPLES / "otel" / "spans.jsonl", "otel"),
        (SAMPLES / "aiperf" / "sessions.jsonl", "mooncake"),
        (SAMPLES / "dynamo" / "mooncake-delta.jsonl", "mooncake"),
    ],
)
def test_a_sample_is_known_by_its_start(path, kind):
    assert detect(path) == kind


def test_lookups_of_lmcache():
    requests = lookup_log.read(LOOKUPS)
    assert requests.input_tokens.tolist() == PROMPTS
    assert requests.output_tokens.tolist() == [0] * 12
    seconds = [0, 1, 2, 10, 11, 12, 20, 21, 22, 30, 31, 32]
    assert (requests.arrival_ns // 10**9).tolist() == seconds
    assert requests.block_tokens == 256
    assert [requests.block_offsets[n + 1] - requests.block_offsets[n] for n in range(12)] == [
        n // 256 for n in PROMPTS
    ]
    # 1,000 shared tokens are 3 whole chunks: the first turns share 3 of 5, later turns repeat all
    # of the turn before.
    assert len(set(requests.block_ids.tolist())) == 3 + 3 * (13 - 3)
    assert requests.origin["model"] == {
        "name": "meta-llama/Llama-3.2-1B",
        "kv_bytes_per_token_per_rank": 32768,
    }


def test_hits_of_lookups_equal_lmcaches_own_simulator(monkeypatch, capsys):
    # `lmcache tool cache-simulator simulate` 0.5.6 with 6 and 12 chunks of 8 MiB and 1,000 GiB:
    # 2,304, 7,936 and 18,432 hit tokens, of 256 a chunk.
    assert (
        kvtrace(monkeypatch, "sim", LOOKUPS, "--capacity-blocks", "6,12,unlimited", "--json") == 0
    )
    curve = json.loads(capsys.readouterr().out)["results"]
    assert [point["hits"] for point in curve] == [9, 31, 72]


def test_a_directory_of_logs_is_one_source(tmp_path):
    lines = LOOKUPS.read_text().splitlines(keepends=True)
    (tmp_path / "lookup_hashes_b.jsonl").write_text("".join(lines[:4]))
    (tmp_path / "lookup_hashes_a.jsonl").write_text("".join(lines[4:]))
    whole, parts = lookup_log.read(LOOKUPS), lookup_log.read(tmp_path)
    for name in ("arrival_ns", "input_tokens", "block_offsets"):
        assert getattr(whole, name).tolist() == getattr(parts, name).tolist()
    assert parts.origin["files"] == ["lookup_hashes_a.jsonl", "lookup_hashes_b.jsonl"]


def test_the_log_says_what_the_model_takes(tmp_path, monkeypatch, capsys):
    out = tmp_path / "t.parquet"
    options = [
        "--preset",
        "lmcache-disk",
        "--set",
        "tiers.gpu.capacity=0",
        "--set",
        "tiers.cpu.capacity=0",
    ]
    options += ["--set", "tiers.cpu.staging=false"]  # without DRAM there is none to stage in
    assert kvtrace(monkeypatch, "gen", LOOKUPS, *options, "-o", out, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model"] == "meta-llama/Llama-3.2-1B"
    # Its parameters are known by its name, and its attention: 16 layers x 32 heads x 2 x (64 + 64)
    # FLOPs.
    assert found["serving"]["prefill_ns_per_token"] > 0
    assert found["serving"]["prefill_attention"][0]["pair_fs"] == -(
        -131_072 * 10**15 // (989 * 10**12 * 7 // 10)
    )
    rows = read_table(out, TRACE)
    assert set(rows["length_bytes"].to_pylist()) == {256 * 32768}
    assert any(shows(note, "32768 bytes … KV") for note in open_table(out, TRACE).meta.notes)


def test_the_requests_table_keeps_the_logs_model(tmp_path, monkeypatch, capsys):
    table, out = tmp_path / "r.parquet", tmp_path / "t.parquet"
    assert kvtrace(monkeypatch, "import", LOOKUPS, "-o", table, "--json") == 0
    capsys.readouterr()
    assert kvtrace(monkeypatch, "gen", table, "--preset", "lmcache-disk", "-o", out, "--json") == 0
    assert json.loads(capsys.readouterr().out)["model"] == "meta-llama/Llama-3.2-1B"


def test_an_unknown_model_still_has_its_bytes():
    origin = {"model": {"name": "own/secret-9b", "kv_bytes_per_token_per_rank": 1001}}
    name, shape = logged_model(origin)
    assert (name, shape.parameters) == ("own/secret-9b", 0)
    for ranks in (1, 2, 8):
        assert bytes_per_token_per_rank(shape, ranks) == 1001


@pytest.mark.parametrize(
    "origin",
    [
        {},
        {"model": None},
        {"model": {"name": "x", "kv_bytes_per_token_per_rank": None}},
        {"of": {}},
    ],
)
def test_without_bytes_there_is_no_logged_model(origin):
    assert logged_model(origin) is None


def test_chats_of_lmcache(tmp_path):
    requests = chats.read(CHATS, tokenizer="characters")
    # The file's second line came first. Prompts of 200, 333 and 200 characters, the third from
    # another session.
    assert requests.arrival_ns.tolist() == [0, 2_700_614_000, 5_000_000_000]
    assert requests.input_tokens.tolist() == [50, 84, 50]
    assert requests.output_tokens.tolist() == [10, 3, 1]
    assert requests.session_id.tolist() == [0, 0, 1]
    assert requests.turn.tolist() == [0, 1, 0]
    # Blocks of 64 characters: the second prompt begins with the 200 of the first, the third differs
    # in the first one.
    assert requests.block_offsets.tolist() == [0, 3, 8, 11]
    ids = requests.block_ids.tolist()
    assert ids[:3] == ids[3:6]
    assert len(set(ids)) == 3 + 2 + 3
    other = chats.read(CHATS, tokenizer="characters", block_tokens=50)
    assert other.block_offsets.tolist() == [0, 1, 2, 3]
    for name in ("a", "b"):
        (tmp_path / f"{name}.openai_chat.jsonl").write_bytes(CHATS.read_bytes())
    assert detect(tmp_path) == "lmcache-chat"
    both = chats.read(tmp_path, tokenizer="characters")
    assert (len(both), len(set(both.block_ids.tolist()))) == (6, 8)


def test_equal_text_behind_unequal_text_needs_no_note(tmp_path):
    # Blocks of 8 characters; 15 of them are 4 tokens, the last one short.
    texts = ["a" * 8 + "c" * 7, "b" * 8 + "c" * 7, "a" * 8 + "c" * 7, "a" * 8 + "c" * 8]
    path = tmp_path / "x.openai_chat.jsonl"
    rows = ({"timestamp": n, "input": text, "output": ""} for n, text in enumerate(texts))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = chats.read(path, tokenizer="characters", block_tokens=2)
    first, second, third, fourth = found.block_ids.reshape(4, 2).tolist()
    assert first == third
    assert fourth[0] == first[0]
    assert len({*first, *second, *fourth}) == 5
    assert not any("more than one prefix" in note or "no id" in note for note in found.notes)
    assert found.origin["rechained_ids"] == 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '{"timestamp": 1.5, "input": "", "output": ""}',
            "row 1, column timestamp: … `int`",
        ),
        ('{"timestamp": 1, "input": ""}', "row 1: … `output`"),
        ("", "request"),
    ],
)
def test_a_chat_that_cannot_be(tmp_path, line, message):
    path = tmp_path / "x.openai_chat.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(TraceError, match=pattern(message)):
        chats.read(path)


def test_prefetches_of_lmcache():
    requests = lmcache_trace.read(PREFETCHES)
    assert requests.input_tokens.tolist() == [n // 256 * 256 for n in PROMPTS]
    assert requests.block_ids.tolist() == lookup_log.read(LOOKUPS).block_ids.tolist()
    assert requests.origin["model"] == {
        "name": "meta-llama/Llama-3.2-1B",
        "kv_bytes_per_token_per_rank": 32768,
    }
    assert (requests.origin["ranks"], requests.origin["records_not_used"]) == (2, 12)


def test_prefetches_of_another_chunk_size():
    with pytest.raises(TraceError, match=r"128 tokens.*\[2, 16, 256, 512\]:.*block_tokens"):
        lmcache_trace.read(PREFETCHES, block_tokens=128)


def frames(*values):
    encoded = [msgspec.msgpack.encode(value) for value in values]
    return b"".join(struct.pack(">I", len(frame)) + frame for frame in encoded)


HEADER = {"type": "header", "magic": b"LMCT", "format_version": 1, "level": "storage"}
DAMAGED = {
    "cut": (PREFETCHES.read_bytes()[:-3], "ends within"),
    "a length beyond the file": (b"\xff\xff\xff\xff", "ends within"),
    "half a length": (frames(HEADER) + b"\0\0", "ends within"),
    "not MessagePack": (struct.pack(">I", 1) + b"\xc1", "not MessagePack"),
    "another magic": (frames(HEADER | {"magic": b"XXXX"}), "magic b'XXXX'"),
    "another version": (frames(HEADER | {"format_version": 2}), "format 2"),
    "events": (frames(HEADER | {"level": "events"}), "level 'events'"),
    "no prompts": (frames(HEADER), "prefetch"),
    "no spec": (
        frames(
            HEADER,
            {"type": "record", "t_mono": 0.0, "qualname": "S.submit_prefetch_task", "args": {}},
        ),
        "`object` … `null`",
    ),
    "deep": (frames(HEADER) + struct.pack(">I", 100_000) + b"\x91" * 100_000, "d.lct, row 1"),
}


@pytest.mark.parametrize(("data", "message"), DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_trace_is_refused(tmp_path, monkeypatch, capsys, data, message):
    path = tmp_path / "d.lct"
    path.write_bytes(data)
    assert (
        kvtrace(
            monkeypatch, "import", path, "--source", "lmcache-trace", "-o", tmp_path / "r.parquet"
        )
        == 3
    )
    error = capsys.readouterr().err
    assert shows(error, message)
    assert len(error.splitlines()) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["d.lct"]


def lookup(**fields):
    line = {
        "timestamp": 1.0,
        "chunk_size": 4,
        "seq_len": 9,
        "chunk_hashes": ["0x1", "0x2"],
        "model_name": "m",
    }
    return line | fields


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            lookup(chunk_hashes=["0x1", "0x2", "0x3"]),
            "3 … 9 tokens … 4 … 2",
        ),
        (lookup(chunk_hashes=["0x1", "0x1"]), "twice"),
        (lookup(model_name="n"), "'n' … 'm':"),
        (lookup(chunk_size=3), "3 after 4"),
        (lookup(chunk_size=0), "Expected `int` >= 1"),
        (lookup(timestamp=-1), "`float` >= 0.0"),
    ],
)
def test_a_lookup_that_cannot_be(tmp_path, line, message):
    path = tmp_path / "lookup_hashes_1.jsonl"
    path.write_text(f"{json.dumps(lookup())}\n{json.dumps(line)}\n")
    with pytest.raises(TraceError, match="row 2") as caught:
        lookup_log.read(path)
    assert shows(str(caught.value), message)


def test_a_lookup_without_a_known_dtype_has_no_bytes(tmp_path):
    path = tmp_path / "lookup_hashes_1.jsonl"
    path.write_text(json.dumps(lookup(shapes=[[2, 4]], dtypes=["torch.float4"])))
    assert lookup_log.read(path).origin["model"] == {
        "name": "m",
        "kv_bytes_per_token_per_rank": None,
    }


def test_requests_of_dynamo():
    requests = dynamo.read(SAMPLES / "dynamo" / "dynamo-agentic.jsonl")
    assert requests.arrival_ns.tolist() == [0, 20_000_000, 50_000_000, 100_000_000]
    assert requests.input_tokens.tolist() == [4] * 4
    assert requests.output_tokens.tolist() == [2] * 4
    assert requests.session_id.tolist() == [0, 1, 1, 0]
    assert requests.turn.tolist() == [0, 0, 1, 1]
    assert any("1 tool_end" in note for note in requests.notes)


def test_requests_of_dynamo_without_their_blocks(tmp_path):
    path = tmp_path / "d.jsonl"
    event = {
        "schema": DYNAMO_SCHEMA,
        "event_type": "request_end",
        "request": {"request_received_ms": 1},
    }
    path.write_text(json.dumps(event))
    with pytest.raises(TraceError, match="1 requests"):
        dynamo.read(path)


def test_agents_of_mooncake_rows():
    requests = agentic_mooncake.read(SAMPLES / "dynamo" / "agentic-mooncake.jsonl")
    # The child is dispatched 5 ms after the root; the join follows the child, taken to complete as
    # it arrives, by 1 ms.
    assert requests.arrival_ns.tolist() == [0, 5_000_000, 6_000_000]
    assert requests.session_id.tolist() == [0, 1, 0]
    assert requests.block_tokens == 4


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"request_id": "b", "input_length": 4, "hash_ids": [1],
          "dependencies": [{"request_id": "z", "trigger": "dispatch"}]}, "'z'"),
        ({"request_id": "b", "input_length": 40, "hash_ids": [1]}, "1 ids … 40"),
        ({"request_id": "b"}, "request_id … input_length … hash_ids"),
    ],
)  # fmt: skip
def test_an_agents_row_that_cannot_be(tmp_path, row, message):
    path = tmp_path / "a.jsonl"
    head = {"schema": AGENTIC_SCHEMA, "version": 2, "block_size": 4}
    path.write_text(f"{json.dumps(head)}\n{json.dumps(row)}\n")
    with pytest.raises(TraceError, match=pattern(message)):
        agentic_mooncake.read(path)


def test_spans():
    requests = otel.read(SAMPLES / "otel" / "spans.jsonl")
    assert requests.arrival_ns.tolist() == [0, 10**9, 2 * 10**9]
    assert requests.input_tokens.tolist() == [100, 50, 150]
    assert requests.output_tokens.tolist() == [20, 5, 30]
    assert requests.session_id.tolist() == [0, 1, 0]
    assert requests.block_tokens == 0
    assert requests.origin["spans_left_out"] == 1
    assert any("48 input tokens" in note for note in requests.notes)


def test_spans_under_the_names_of_before(tmp_path):
    # vLLM's SpanAttributes: gen_ai.usage.prompt_tokens and completion_tokens.
    path, text = tmp_path / "s.jsonl", (SAMPLES / "otel" / "spans.jsonl").read_text()
    path.write_text(
        text.replace("usage.input_tokens", "usage.prompt_tokens").replace(
            "usage.output", "usage.completion"
        )
    )
    requests = otel.read(path)
    assert requests.input_tokens.tolist() == [100, 50, 150]
    assert requests.output_tokens.tolist() == [20, 5, 30]


def test_a_span_that_does_not_say_when_it_began_is_named(tmp_path):
    """It was of 1970: all others came 54 years later."""
    path, lines = (
        tmp_path / "s.jsonl",
        (SAMPLES / "otel" / "spans.jsonl").read_text().splitlines(keepends=True),
    )
    at, line = next((n, of) for n, of in enumerate(lines, 1) if "usage.input_tokens" in of)
    path.write_text(
        "".join([*lines[: at - 1], line.replace("startTimeUnixNano", "startTime"), *lines[at:]])
    )
    with pytest.raises(TraceError, match=f"row {at}, column startTimeUnixNano: 0"):
        otel.read(path)


def test_spans_of_something_else(tmp_path):
    path = tmp_path / "s.jsonl"
    path.write_text('{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "GET"}]}]}]}')
    with pytest.raises(TraceError, match=r"1 spans.*gen_ai.usage.input_tokens"):
        otel.read(path)
