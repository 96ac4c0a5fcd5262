"""Every preset with every source, from the command line.

The trace is valid, and no byte is lost or made up.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from simulated import kvtrace

from kvtrace.core.schema import TRACE
from kvtrace.core.tables import open_table
from kvtrace.requests.registry import SOURCES
from kvtrace.sim.presets.preset import preset_names

ENGINES = Path(__file__).resolve().parents[2] / "golden" / "engines"
PROMPTS = [(0, 1300, [0, 1, 2]), (400, 1100, [0, 1, 3]), (900, 1536, [0, 1, 2])]
BLOCKS = {512: [ids for _, _, ids in PROMPTS]}
BAILIAN = [
    {"chat_id": i, "parent_chat_id": -1, "timestamp": ms / 1000, "input_length": tokens, "output_length": 40,
     "type": "text", "turn": 1, "hash_ids": list(range(-(-tokens // 16)))}
    for i, (ms, tokens, _) in enumerate(PROMPTS)
]  # fmt: skip
MOONCAKE = [
    {"timestamp": ms, "input_length": tokens, "output_length": 40, "hash_ids": ids}
    for ms, tokens, ids in PROMPTS
]
AGENTIC = {
    "id": "a", "models": ["m"], "block_size": 64, "hash_id_scope": "local", "tool_tokens": 0, "system_tokens": 0,
    "requests": [
        {"t": ms / 1000, "type": "n", "model": "m", "in": tokens, "out": 40,
         "hash_ids": list(range(-(-tokens // 64)))}
        for ms, tokens, _ in PROMPTS
    ],
}  # fmt: skip
SHAREGPT = [
    {"id": str(i), "conversations": [
        {"from": "human", "value": "a" * 4 * tokens}, {"from": "gpt", "value": "b" * 160},
        {"from": "human", "value": "c" * 400}, {"from": "gpt", "value": "d" * 160},
    ]}
    for i, (_, tokens, _) in enumerate(PROMPTS)
]  # fmt: skip
CSVS = {
    "burstgpt": "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    + "".join(f"{i},7,1,ChatGPT,{tokens * (i + 1)},40,{tokens * (i + 1) + 40},Conversation log\n"
              for i, (_, tokens, _) in enumerate(PROMPTS)),
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    + "".join(f"2023-11-16 18:17:0{i}.9799600,{tokens},40\n" for i, (_, tokens, _) in enumerate(PROMPTS)),
}  # fmt: skip
TRACELAB = [
    {"session_id": "s", "round_index": i, "prefix_tokens": tokens * i, "newly_append_tokens": tokens,
     "output_tokens": 40, "timing_events": [{"event_type": "user_message", "timestamp": f"2026-01-01T00:00:0{i}Z"}]}
    for i, (_, tokens, _) in enumerate(PROMPTS)
]  # fmt: skip
TEXTS = {
    "mooncake": ("m.jsonl", "".join(json.dumps(line) + "\n" for line in MOONCAKE)),
    "bailian": ("b.jsonl", "".join(json.dumps(line) + "\n" for line in BAILIAN)),
    "agentic": ("a.json", json.dumps(AGENTIC)),
    "agentx": ("x.json", json.dumps(AGENTIC)),
    "tracelab": ("t.jsonl", "".join(json.dumps(line) + "\n" for line in TRACELAB)),
    "sharegpt": ("s.json", json.dumps(SHAREGPT)),
    "burstgpt": ("burst.csv", CSVS["burstgpt"]),
    "azure": ("azure.csv", CSVS["azure"]),
}
MADE = {
    "users": ["--users", "2", "--duration", "4s"],
    "open loop": ["--request-rate", "3/s", "--duration", "2s"],
}
REQUESTS = {"sharegpt": 6, "agentx": None, "users": None, "open loop": None}


@pytest.fixture
def source(tmp_path, monkeypatch, request):
    """The arguments that name a source, and how many requests it has, None if that is not written
    in it.
    """
    kind = request.param
    if kind in MADE:
        return MADE[kind], None
    name, text = TEXTS["mooncake" if kind == "requests" else kind]
    (tmp_path / name).write_text(text)
    if kind == "requests":
        assert kvtrace(monkeypatch, "import", tmp_path / name, "-o", tmp_path / "r.parquet") == 0
        name = "r.parquet"
    return [tmp_path / name, "--source", kind], REQUESTS.get(kind, len(PROMPTS))


def test_every_source_is_here():
    assert {*TEXTS, "requests"} <= set(SOURCES)
    # Those of engines' logs, whose requests are of the same form, have one preset each below.
    logs = {
        "agentic-mooncake",
        "dynamo",
        "lmcache-lookup",
        "lmcache-trace",
        "lmcache-chat",
        "otel",
        "aiperf",
        "kv-events",
        "litellm",
        "langfuse",
    }
    logs |= {"vllm-log", "sglang-log", "servegen"}
    assert logs == set(SOURCES) - {*TEXTS, "requests"}


@pytest.mark.star
@pytest.mark.parametrize("source", [*TEXTS, "requests", *MADE], indirect=True)
@pytest.mark.parametrize("preset", preset_names())
def test_a_preset_with_a_source(tmp_path, monkeypatch, capsys, preset, source):
    arguments, count = source
    path = tmp_path / "t.parquet"
    options = ["--preset", preset, "--model", "tiny-1b", "--tp", 2, "-o", path, "--json"]
    capsys.readouterr()
    assert kvtrace(monkeypatch, "gen", *arguments, *options) == 0
    made = json.loads(capsys.readouterr().out)
    stats = made["stats"]
    assert stats["requests"] == count if count is not None else stats["requests"] >= 2
    assert made["rows"] == open_table(path, TRACE).meta.rows > 0
    for tier in stats["tiers"]:
        assert tier["written_bytes"] == tier["deleted_bytes"] + tier["live_bytes"]
    assert sum(tier["written_bytes"] for tier in stats["tiers"]) > 0
    assert kvtrace(monkeypatch, "validate", path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["has_objects_table"]


@pytest.mark.parametrize(
    ("log", "preset"),
    [
        ("lmcache", "lmcache-disk"),
        ("lmcache/prompts.lct", "lmcache-layerwise"),
        ("dynamo/dynamo-agentic.jsonl", "vllm-fs"),
        ("dynamo/agentic-mooncake.jsonl", "sglang-hicache"),
        ("otel/spans.jsonl", "mlperf"),
        ("vllm/requests.log", "vllm-fs"),
        ("sglang/requests.log", "sglang-hicache"),
    ],
)
def test_a_log_of_an_engine_makes_a_valid_trace(tmp_path, monkeypatch, capsys, log, preset):
    path = tmp_path / "t.parquet"
    options = [
        "--preset",
        preset,
        "--model",
        "tiny-1b",
        "--set",
        "tiers.gpu.capacity=0",
        "-o",
        path,
    ]
    options += [] if preset == "mlperf" else ["--set", "chunk_tokens=4"]
    assert kvtrace(monkeypatch, "gen", ENGINES / log, *options, "--json") == 0
    capsys.readouterr()
    assert kvtrace(monkeypatch, "validate", path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["rows"] > 0


def test_drawn_clients_make_a_valid_trace(tmp_path, monkeypatch, capsys):
    (tmp_path / "chunk-0-trace.csv").write_text("0,2.0,1.0,Gamma,1.0,0.5\n600,0,0,,0,0\n")
    lengths = {"input_tokens": "{900: 0.5, 2000: 0.5}", "output_tokens": "{40: 1.0}"}
    (tmp_path / "chunk-0-dataset.json").write_text(json.dumps({"0": lengths}))
    path = tmp_path / "t.parquet"
    options = [
        "--time-window",
        "1min+30s",
        "--preset",
        "lmcache-disk",
        "--model",
        "tiny-1b",
        "-o",
        path,
    ]
    assert kvtrace(monkeypatch, "gen", tmp_path, *options, "--json") == 0
    assert 30 < json.loads(capsys.readouterr().out)["stats"]["requests"] < 90
    assert kvtrace(monkeypatch, "validate", path) == 0


@pytest.mark.parametrize("options", [[], ["--limit", "5"]])
def test_bytes_a_day_are_over_the_time_that_users_asked(tmp_path, monkeypatch, capsys, options):
    path = tmp_path / "t.parquet"
    load = ["--users", 3, "--duration", "1h", "--model", "tiny-1b", "--preset", "vllm-fs"] if options else [
        "--users", 3, "--duration", "20s", "--model", "tiny-1b", "--preset", "vllm-fs"]  # fmt: skip
    assert kvtrace(monkeypatch, "gen", *load, *options, "-o", path, "--json") == 0
    made = json.loads(capsys.readouterr().out)
    (storage,) = made["endurance"]
    times = [
        t for batch in open_table(path, TRACE).batches() for t in batch.column("ts_ns").to_pylist()
    ]
    per_day = made["stats"]["tiers"][-1]["written_bytes"] * 86_400 * 10**9
    if options:
        # Five requests take seconds, not the hour they might have had.
        assert made["stats"]["requests"] == 5
        assert (
            per_day // 3_600_000_000_000 * 100
            < storage["written_bytes_per_day"]
            <= per_day // max(times)
        )
    else:
        assert storage["written_bytes_per_day"] == per_day // (20 * 10**9)
