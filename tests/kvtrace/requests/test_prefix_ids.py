"""An id that follows two prefixes is renamed, and named with the row, in every source with ids."""

import itertools
import json
import struct

import msgspec
import numpy as np
import pytest
from phrases import shows

from kvtrace.core.metadata import describe
from kvtrace.core.schema import EVENTS
from kvtrace.core.tables import create
from kvtrace.requests.dynamo import SCHEMA
from kvtrace.requests.mooncake import AGENTIC_SCHEMA
from kvtrace.requests.record import EventRows
from kvtrace.requests.registry import SOURCES

# Of three prompts, the second repeats the first; block 2 of the third follows another block.
CHAINS = [[1, 2], [1, 2], [3, 2, 4]]
TOKENS = 16


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def mooncake(path):
    return lines(
        path,
        [
            {
                "timestamp": n,
                "input_length": TOKENS * len(ids),
                "output_length": 1,
                "hash_ids": ids,
                "block_size": TOKENS,
            }
            for n, ids in enumerate(CHAINS)
        ],
    )


def bailian(path):
    return lines(
        path,
        [
            {
                "chat_id": n,
                "parent_chat_id": -1,
                "timestamp": n,
                "input_length": TOKENS * len(ids),
                "output_length": 1,
                "type": "text",
                "turn": 1,
                "hash_ids": ids,
            }
            for n, ids in enumerate(CHAINS)
        ],
    )


def dynamo(path):
    return lines(
        path,
        [
            {
                "schema": SCHEMA,
                "event_type": "request_end",
                "request": {
                    "request_received_ms": n,
                    "output_tokens": 1,
                    "replay": {
                        "trace_block_size": TOKENS,
                        "input_length": TOKENS * len(ids),
                        "input_sequence_hashes": ids,
                    },
                },
            }
            for n, ids in enumerate(CHAINS)
        ],
    )


def agentic_mooncake(path):
    head = {"schema": AGENTIC_SCHEMA, "version": 2, "block_size": TOKENS, "hash_id_scope": "global"}
    return lines(
        path,
        [
            head,
            *(
                {
                    "request_id": str(n),
                    "input_length": TOKENS * len(ids),
                    "output_length": 1,
                    "hash_ids": ids,
                    "not_before_ms": n,
                }
                for n, ids in enumerate(CHAINS)
            ),
        ],
    )


def agentic(path):
    requests = [
        {"t": n, "type": "n", "in": TOKENS * len(ids), "out": 1, "hash_ids": ids}
        for n, ids in enumerate(CHAINS)
    ]
    path.write_text(json.dumps({"block_size": TOKENS, "requests": requests}))
    return path


def lmcache_lookup(path):
    return lines(
        path,
        [
            {
                "timestamp": n,
                "chunk_size": TOKENS,
                "seq_len": TOKENS * len(ids),
                "chunk_hashes": [hex(block) for block in ids],
            }
            for n, ids in enumerate(CHAINS)
        ],
    )


def lmcache_trace(path):
    path = path.with_suffix(".lct")
    header = {"type": "header", "magic": b"LMCT", "format_version": 1, "level": "storage"}
    frames = [header]
    for n, ids in enumerate(CHAINS):
        keys = [{"chunk_hash": bytes([block]), "model_name": "m", "kv_rank": 0} for block in ids]
        layout = {"shapes": [[2, 1, TOKENS, 8]], "dtypes": ["torch.bfloat16"]}
        spec = {"key_groups": [{"keys": keys, "layout_desc": layout}]}
        record = {"type": "record", "t_mono": float(n), "qualname": "S.submit_prefetch_task"}
        frames.append(record | {"args": {"spec": spec}})
    encoded = [msgspec.msgpack.encode(frame) for frame in frames]
    path.write_bytes(b"".join(struct.pack(">I", len(frame)) + frame for frame in encoded))
    return path


def kv_events(path):
    """Blocks that an engine stored; a block stored again has the newest parent."""
    path, rows = path.with_suffix(".parquet"), EventRows()
    for n, (parent, ids) in enumerate([(None, [1, 2]), (2, [5, 6]), (None, [3, 2, 4])]):
        fields = {"block_hashes": ids, "parent_block_hash": parent, "block_size": TOKENS}
        event = {"type": "BlockStored", "medium": "GPU"} | fields
        rows.add(n, msgspec.msgpack.encode([10.0 * n, [event], 0]))
    with create(path, EVENTS, describe(EVENTS, "kvtrace", [], {})) as out:
        out.write(rows.take())
    return path


WRITERS = {
    "mooncake": (mooncake, {}, "row 3"),
    "bailian": (bailian, {}, "row 3"),
    "dynamo": (dynamo, {}, "row 3"),
    "agentic-mooncake": (agentic_mooncake, {}, "row 4"),
    "agentic": (agentic, {}, "request 2"),
    "lmcache-lookup": (lmcache_lookup, {}, "row 3"),
    "lmcache-trace": (lmcache_trace, {"block_tokens": TOKENS}, "row 3"),
    "kv-events": (kv_events, {}, "request 2"),
}


@pytest.mark.parametrize("source", WRITERS)
def test_an_id_behind_two_prefixes_is_named(tmp_path, source):
    write, options, place = WRITERS[source]
    generators = [np.random.default_rng(1)] if source == "agentic" else []
    requests = SOURCES[source].load().read(write(tmp_path / "log.jsonl"), *generators, **options)
    starts = requests.block_offsets.tolist()
    first, _second, third = (
        requests.block_ids[start:end].tolist() for start, end in itertools.pairwise(starts)
    )
    assert not set(first) & set(third)
    assert requests.origin["rechained_ids"] == 1
    assert shows(requests.notes, f"1 block ids … {place}")
