"""Write the samples `lookup_hashes_*.jsonl` and `prompts.lct` of tests/golden/engines with
LMCache's own code.

Run where LMCache is installed (0.5.6 made those here): python tests/engines/make_lmcache_logs.py
OUT. The prompts are three conversations of four turns over one system prompt; chunks are of 256
tokens. LMCache's own simulator of its lookup log says what an unlimited cache hits: `lmcache tool
cache-simulator`.
"""

import sys
from pathlib import Path

import torch
from lmcache.v1.distributed.api import (
    GroupedObjectKeys,
    MemoryLayoutDesc,
    ObjectKey,
    PrefetchTaskSpec,
)
from lmcache.v1.mp_observability.event import Event, EventType
from lmcache.v1.mp_observability.subscribers.logging.lookup_hash import (
    LookupHashLogConfig,
    LookupHashLoggingSubscriber,
)
from lmcache.v1.mp_observability.trace.recorder import StorageTraceRecorder
from lmcache.v1.multiprocess.token_hasher import TokenHasher

CHUNK = 256
MODEL = "meta-llama/Llama-3.2-1B"
# Keys and values of 16 layers with 8 heads of 64: 32,768 bytes a token in bfloat16.
LAYOUT = MemoryLayoutDesc(shapes=[torch.Size([2, 16, CHUNK, 512])], dtypes=[torch.bfloat16])
STORAGE_MANAGER = "lmcache.v1.distributed.storage_manager.StorageManager"


def prompts():
    """Yield (second, conversation, tokens).

    Turns of three conversations, 10 s apart, over one system prompt.
    """
    system = list(range(1000))
    histories = {name: [*system, *range(10_000 * name, 10_000 * name + 300)] for name in (1, 2, 3)}
    for turn in range(4):
        for name, history in histories.items():
            yield 10.0 * turn + name, name, list(history)
            history.extend(10_000 * name + 1000 * (turn + 1) + n for n in range(700))


def main(out: Path) -> None:
    """Write the two samples into `out`."""
    hasher = TokenHasher(chunk_size=CHUNK, hash_algorithm="blake3")
    log = LookupHashLoggingSubscriber(LookupHashLogConfig(output_dir=str(out)))
    recorder = StorageTraceRecorder(str(out / "prompts.lct"))
    for number, (second, _, tokens) in enumerate(prompts()):
        hashes = hasher.compute_chunk_hashes(tokens)
        name = f"req-{number}"
        lookup = {
            "request_id": name,
            "chunk_hashes": hashes,
            "model_name": MODEL,
            "chunk_size": CHUNK,
            "seq_len": len(tokens),
            "dtypes": [str(d) for d in LAYOUT.dtypes],
            "shapes": [list(s) for s in LAYOUT.shapes],
        }
        wall = 1_790_000_000.0 + second
        event = Event(
            event_type=EventType.MP_LOOKUP, session_id=name, metadata=lookup, timestamp=wall
        )
        log.get_subscriptions()[EventType.MP_LOOKUP](event)
        keys = [[ObjectKey(h, MODEL, rank) for h in hashes] for rank in (0, 1)]
        groups = [GroupedObjectKeys(keys=k, object_group_id=0, layout_desc=LAYOUT) for k in keys]
        calls = {
            "submit_prefetch_task": {
                "spec": PrefetchTaskSpec(groups),
                "external_request_id": name,
                "skip_l2": False,
            },
            "reserve_write": {"keys": keys[0], "layout_desc": LAYOUT},
        }
        for call, args in calls.items():
            recorder.write_record(
                f"{STORAGE_MANAGER}.{call}",
                args,
                t_wall=wall,
                t_mono=recorder._t_mono_start + second,
            )
    log.shutdown()
    recorder.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
