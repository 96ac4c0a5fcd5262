"""Small whole inputs of every kind that the programs read, made by code.

What the fuzzer damages.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from kvtrace.core.metadata import TierFacts, describe
from kvtrace.core.schema import (
    BLOCKS,
    EVENTS,
    OBJECTS,
    OPS,
    REQUESTS,
    SERIES,
    SERVED,
    TRACE,
    Table,
    arrow_schema,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "house"
BENCH = GOLDEN.parent / "engines" / "bench"
TIERS = ("gpu", "cpu", "nvme")
_MS = 1_000_000


def lines(*rows: str) -> bytes:
    """Return `rows` as text."""
    return "".join(f"{row}\n" for row in rows).encode()


def _rows(table: Table) -> list[dict[str, Any]]:
    """Return some 40 rows of `table` that go together with those of the others."""
    if table is TRACE:
        found = []
        for i in range(30):
            at, request = i * _MS, i // 3
            common = {
                "phase": "store",
                "request_id": request,
                "stage": i % 3,
                "rank": 0,
                "offset_bytes": 0,
            }
            found.append(
                {
                    "ts_ns": at,
                    "op": "write",
                    "tier": 2,
                    "object_id": i,
                    "length_bytes": 4096 * (1 + i % 5),
                    **common,
                }
            )
            if i % 3 == 2:
                read = {
                    "op": "read",
                    "phase": "load",
                    "object_id": i - 2,
                    "length_bytes": 4096 * (1 + (i - 2) % 5),
                }
                found.append({**found[-1], "ts_ns": at, **read})
        gone = {"op": "delete", "phase": "evict", "request_id": None, "stage": None}
        return [*found, {**found[0], "ts_ns": 31 * _MS, **gone}]
    if table is OBJECTS:
        return [
            {
                "object_id": i,
                "key": f"chunk/{i:04x}",
                "kind": "chunk",
                "size_bytes": 4096 * (1 + i % 5),
            }
            for i in range(30)
        ]
    if table is REQUESTS:
        return [
            {"arrival_ns": i * _MS, "request_id": i, "session_id": i // 4, "turn": i % 4, "input_tokens": 48,
             "output_tokens": 7, "block_ids": [i // 4 * 3, i // 4 * 3 + 1, 100 + i], "qos": None, "kind": "trace"}
            for i in range(20)
        ]  # fmt: skip
    if table is OPS:
        return [
            {"row": i, "op": row["op"], "tier": row["tier"], "phase": row["phase"], "object_id": row["object_id"],
             "request_id": row["request_id"], "scheduled_ns": row["ts_ns"], "submitted_ns": row["ts_ns"] + 100,
             "completed_ns": row["ts_ns"] + 90_000, "bytes": row["length_bytes"], "io_bytes": row["length_bytes"],
             "outcome": "ok", "engine": "uring"}
            for i, row in enumerate(_rows(TRACE))
        ]  # fmt: skip
    if table is SERVED:
        names = [c.name for c in SERVED.columns]
        return [dict.fromkeys(names, 1) | {"request_id": i, "qos": None} for i in range(8)]
    if table is SERIES:
        return [
            {"second": i, "tier": 2, "drive": None, "op": "write", "operations": 9, "errors": 0, "bytes": 4096,
             "mean_ns": 5, "p99_ns": None, "max_ns": 7}
            for i in range(5)
        ]  # fmt: skip
    if table is EVENTS:
        return [
            {"ts_ns": i * _MS, "sequence": i, "rank": None, "event": table.column("event").values[0], "medium": "GPU",
             "block_ids": [i], "parent_id": None, "block_tokens": 16, "group": None, "session": None}
            for i in range(6)
        ]  # fmt: skip
    return [
        {"insert_ns": i * _MS - 5, "issue_ns": i * _MS, "complete_ns": i * _MS + 70_000, "device": "vda",
         "sector": 2048 + 8 * i, "bytes": 4096, "rwbs": "WS" if i % 3 else "R", "pid": 7, "comm": "fio", "error": 0}
        for i in range(30)
    ]  # fmt: skip


def table_of(table: Table) -> pa.Table:
    """Return the rows of `table` as Arrow."""
    schema = arrow_schema(table)
    plain = pa.schema(
        [
            pa.field(f.name, pa.string() if pa.types.is_dictionary(f.type) else f.type)
            for f in schema
        ]
    )
    return pa.Table.from_pylist(_rows(table), plain).cast(schema)


def meta_of(table: Table) -> dict[str, Any]:
    """Return the metadata of `table` as JSON values."""
    import msgspec

    stats = {"tiers": [{"name": name, "hits": 3, "hit_ratio": 0.5} for name in TIERS]}
    meta = describe(
        table, "kvtrace", ["kvtrace", "gen"], {"users": 3}, tiers=[TierFacts(name, 1 << 30) for name in TIERS], seed=42,
        stats=stats, preset="mlperf", model={"name": "m", "bytes_per_token": 4}, notes=["a note"],
        source={"kind": "mooncake", "block_tokens": 16}, rows=len(_rows(table)),
    )  # fmt: skip
    return msgspec.to_builtins(meta)  # type: ignore[no-any-return]


TABLES = {
    t.name: (table_of(t), meta_of(t))
    for t in (TRACE, OBJECTS, REQUESTS, OPS, SERVED, SERIES, BLOCKS, EVENTS)
}


def _mooncake(i: int) -> str:
    return json.dumps(
        {
            "timestamp": i * 3000,
            "input_length": 1025,
            "output_length": 7,
            "hash_ids": [0, 1, 10 + i],
        }
    )


def _bailian(i: int) -> str:
    row = {
        "chat_id": i,
        "parent_chat_id": i - 1 if i % 3 else -1,
        "timestamp": 1.5 * i,
        "input_length": 40,
    }
    return json.dumps(
        row | {"output_length": 5, "type": "text", "turn": i % 3 + 1, "hash_ids": [1, 2, 3 + i]}
    )


SHAREGPT = [
    {
        "id": f"c{i}",
        "conversations": [
            {"from": who, "value": "word " * (i + 3)} for who in ("human", "gpt", "human", "gpt")
        ],
    }
    for i in range(4)
]
AGENTIC = {
    "id": "a", "models": ["m"], "block_size": 64, "hash_id_scope": "local", "requests": [
        {"t": 1.0 * i, "type": "n", "model": "m", "in": 64 * (i + 1), "out": 3, "hash_ids": list(range(1, i + 2)),
         "stop": "end_turn"} for i in range(4)
    ],
}  # fmt: skip


def _tracelab(row: int) -> str:
    events = [
        {"event_type": "user_message", "timestamp": f"2026-01-01T00:0{row}:00.5Z"},
        {"event_type": "text"},
    ]
    counts = {"prefix_tokens": 600 * row, "newly_append_tokens": 600, "output_tokens": 9}
    return json.dumps(
        {
            "session_id": f"s{row % 2}",
            "round_index": row,
            "provider": "codex",
            "timing_events": events,
        }
        | counts
    )


def _l2_trace() -> bytes:
    """Return a small trace of LMCache's L2 adapter."""
    key = {"chunk_hash": b"\x01", "model_name": "m", "kv_rank": 0, "object_group_id": 0}
    keys = [{"__t__": "ObjectKey", "v": key}]
    task = {"adapter_index": 0, "task_id": 1}
    frames: list[dict[str, object]] = [
        {
            "type": "header",
            "magic": b"LMCT",
            "format_version": 1,
            "level": "l2",
            "t_wall_start": 1.0,
        }
    ]
    for second, (name, args) in enumerate(
        (
            ("store.submitted", task | {"keys": keys, "object_sizes": [4096]}),
            ("store.completed", task | {"succeeded_count": 1, "failed_count": 0}),
            ("load_task.submitted", task | {"keys": keys, "object_sizes": [4096]}),
            ("load_task.completed", task | {"success_indices": [0]}),
            ("trace.end", {"recorder_dropped_count": 0}),
        )
    ):
        record = {"type": "record", "t_mono": float(second), "qualname": f"l2.{name}"}
        frames.append(record | {"args": args})
    encoded = [msgspec.msgpack.encode(frame) for frame in frames]
    return b"".join(struct.pack(">I", len(frame)) + frame for frame in encoded)


def _litellm(row: int) -> str:
    return json.dumps(
        {
            "id": f"chatcmpl-{row}",
            "trace_id": f"t{row % 2}",
            "call_type": "embedding" if row == 1 else "acompletion",
            "status": "failure" if row == 2 else "success",
            "cache_hit": row == 3,
            "total_tokens": 38 + row,
            "prompt_tokens": 30 + row,
            "completion_tokens": 8,
            "startTime": 1_700_000_000.25 + row,
            "endTime": "2023-11-14 22:13:25.5+00:00" if row == 5 else 1_700_000_001.25 + row,
            "model": "llama",
        }
    )


def _langfuse(row: int) -> str:
    return json.dumps(
        {
            "id": f"o{row}",
            "traceId": f"t{row % 2}",
            "startTime": f"2026-05-29T13:46:1{row}.963Z",
            "endTime": f"2026-05-29T13:46:2{row}.963Z",
            "parentObservationId": f"o{row - 2}" if row > 1 else None,
            "type": ("AGENT", "SPAN", "GENERATION", "EMBEDDING", "GENERATION", "GENERATION")[row],
            "model": "llama",
            "usageDetails": {"input": 30 + row, "output": 8, "total": 38 + row},
        }
    )


def _aiperf(row: int) -> str:
    sent_ns = 1_700_000_000_000_000_000 + row * 1_000_000_000
    return json.dumps(
        {
            "metadata": {
                "request_start_ns": sent_ns,
                "request_end_ns": sent_ns + 500_000_000,
                "conversation_id": f"c{row % 2}",
                "benchmark_phase": "warmup" if row == 0 else "profiling",
            },
            "metrics": {
                "input_sequence_length": {"value": 30 + row, "unit": "tokens"},
                "output_sequence_length": {"value": 8, "unit": "tokens"},
            },
        }
    )


SERVEGEN = {
    "chunk-0-trace.csv": lines("0,5.0,1.0,Gamma,4.0,1.0", "600,0,0,,0,0", "1200,2.0,1.0,Weibull,0.5,1.0"),
    "chunk-0-dataset.json": json.dumps(
        {"0": {"input_tokens": "{100: 0.5, 300: 0.5}", "output_tokens": "{7: 0.25, 9: 0.75}"}}
    ).encode(),
}  # fmt: skip
"""A client's files, by their names."""
REQUEST_TEXTS: dict[str, bytes] = {
    "aiperf": lines(*map(_aiperf, range(6))),
    "litellm": lines(*map(_litellm, range(6))),
    "langfuse": lines(*map(_langfuse, range(6))),
    "mooncake": lines(*map(_mooncake, range(6))),
    "bailian": lines(*map(_bailian, range(6))),
    "burstgpt": lines(
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
        *(f"{i},b,1.5,ChatGPT,{10 + i},5,{15 + i},Conversation log" for i in range(6)),
    ),
    "azure": lines(
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        *(f"2023-11-16 18:17:0{i}.9799600,{10 + i},{i + 1}" for i in range(6)),
    ),
    "tracelab": lines(*map(_tracelab, range(6))),
}
MLPERF = lines(
    "Timestamp,Operation,Object_Size_Bytes,Tier,Key,Phase",
    *(
        f"1700000000.00000{i},{'Write' if i < 3 else 'Read'},4096,Tier-{i % 3},user_{i % 3},Decode"
        for i in range(8)
    ),
)
MODEL = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 2, "hidden_size": 512, "head_dim": 64, "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16", "vocab_size": 1000, "intermediate_size": 1024, "hidden_act": "silu",
}  # fmt: skip
PRESET = lines(
    'description = "a preset"', 'entry = "chunk"', "chunk_tokens = 256", 'match = "prefix"',
    'placement = "write-through"', 'promotion = "always"', "[[tiers]]", 'name = "cpu"', 'capacity = "1GiB"', "[[tiers]]",
    'name = "nvme"', 'capacity = "2GiB"',
)  # fmt: skip
_WARP = "idx\tthread\top\tclient_id\tn_objects\tbytes\tendpoint\tfile\terror\tstart\tfirst_byte\tlast_byte\tend\tduration_ns\tcat"
_SAI3 = "idx\tthread\top\tclient_id\tn_objects\tbytes\tendpoint\tfile\terror\tstart\tfirst_byte\tend\tduration_ns"
_AT = "2026-01-01T00:00:0"


def _fio_job(name: str) -> dict[str, Any]:
    times = {
        "min": 10,
        "max": 900,
        "mean": 400.5,
        "N": 200,
        "percentile": {"50.000000": 300, "99.000000": 880},
    }
    read = {
        "io_bytes": 819200, "bw_bytes": 409600, "iops": 100.0, "runtime": 2000, "total_ios": 200,
        "lat_ns": {"min": 0, "max": 1000, "mean": 500.0, "N": 200, "bins": {"100": 120, "300": 80}}, "clat_ns": times,
    }  # fmt: skip
    return {
        "jobname": name, "error": 0, "job_runtime": 2100, "job options": {"ioengine": "libaio", "iodepth": "8"},
        "read": read, "write": {"total_ios": 0}, "trim": {"total_ios": 3}, "sync": {"total_ios": 0},
    }  # fmt: skip


FIO_JSON = {
    "fio version": "fio-3.33", "timestamp": 1700000000, "jobs": [_fio_job("a"), _fio_job("b")],
    "global options": {"bs": "4k"}, "disk_util": [{"name": "vda", "read_ios": 5}],
}  # fmt: skip
IMPORTS: dict[str, dict[str, bytes]] = {
    "warp": {"w.csv": lines(
        _WARP, *(f"{i}\t1\t{'PUT' if i < 3 else 'GET'}\tc\t1\t4096\thttp://h\ta{i % 3}\t\t{_AT}{i}Z\t\t\t{_AT}{i}.5Z\t500000000\t0"
                 for i in range(6)),
    )},
    "sai3": {"o.tsv": lines(
        _SAI3, *(f"{i}\t1\t{'PUT' if i < 3 else 'GET'}\t\t1\t4096\tfile://\t/t/a{i % 3}\t\t{_AT}{i}Z\t\t{_AT}{i}.5Z\t500000000"
                 for i in range(6)),
    )},
    "fio-json": {"o.json": json.dumps(FIO_JSON).encode()},
    "fio-log": {
        "j_lat.1.log": lines(*(f"{i * 5}, {1000 + i}, {i % 2}, 4096, {i * 4096}, 0x0001" for i in range(9))),
        "j_bw.1.log": lines(*(f"{i * 500}, {1000 + i}, {i % 2}, 0, 0" for i in range(4))),
    },
    "fio-iolog": {"x.iolog": lines(
        "fio version 3 iolog", "1 f add", "1 f open", "10 f write 8192 6144", "12 f read 0 512", "15 f trim 0 4096",
        "20 f sync", "30 f read 8192 100", "40 f close",
    )},
    "bpftrace": {"b.txt": lines(
        "Attaching 9 probes...", "@d2c_read_us: ", "[0]      2 |@@  |", "[1]      1 |@   |",
        "[512, 1K)      30 |@@@@@@@|", "[1K, 2K)     7 |@  |", "@bssplit_read_kb:", "[4, 8)    40 |@@@@|",
        "@qd_read: ", "[1]    40 |@@@|",
    )},
    "vllm-bench": {"v.json": (BENCH / "vllm-0.32.0-detailed.json").read_bytes()},
    "aiperf": {"a.json": (BENCH / "aiperf-0.13.0.json").read_bytes()},
    "lmcache-l2": {"l2.lct": _l2_trace()},
    "lmcache-bench": {"l.csv": (BENCH / "lmcache-0.5.6.csv").read_bytes()},
    "blkparse": {"b.txt": lines(
        "  8,0    3        1     0.000000000   697  Q   R 223490 + 8 [fio]",
        "  8,0    3        3     0.000001500   697  I   R 223490 + 8 [fio]",
        "  8,0    3        4     0.000010000    12  D   R 223490 + 8 [kworker/3:1H]",
        "  8,0    3        7     0.000022000   697  D  WS 1000 + 32 [fio]",
        "  8,0    1        1     0.000110000     0  C   R 223490 + 8 [0]",
        "  8,0    1        2     0.000120000     0  C  WS 1000 + 32 [5]",
        "CPU0 (8,0):",
    )},
}  # fmt: skip
ENGINES = {
    "agentic-mooncake": "dynamo/agentic-mooncake.jsonl", "dynamo": "dynamo/dynamo-standard.jsonl", "otel": "otel/spans.jsonl",
    "lmcache-lookup": "lmcache/lookup_hashes_20260921_141321_000000.jsonl", "lmcache-trace": "lmcache/prompts.lct",
    "lmcache-chat": "chats/agent.openai_chat.jsonl", "kv-events": "vllm/kv-events.msgpack",
    "vllm-log": "vllm/requests.log", "sglang-log": "sglang/requests.log",
}  # fmt: skip
"""What serving engines logged, by the source that reads it."""
RUN: dict[str, Any] = json.loads((GOLDEN / "run" / "run.json").read_text(encoding="utf-8"))
