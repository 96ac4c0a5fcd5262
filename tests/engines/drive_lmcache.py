"""Record what LMCache's engine writes, reads and deletes for requests of a Mooncake trace (for
tests/golden/engines).

Run where LMCache is installed (0.5.6 made those here), with torch for the CPU, and an empty folder
for its files:

    PYTHONHASHSEED=0 python tests/engines/drive_lmcache.py TRACE OUT.txt.gz --dir EMPTY --requests 200 \
        --cpu-chunks 128 --disk-chunks 4096

The model has 256 bytes of KV a token. A request does what LMCache's vLLM adapter does: look-up with
pins, retrieve, unpin, store of what was not found; the next one waits until all of it is on disk. A
line of OUT is operation, request, first object, step to the next, and how many; an object is named
by the request that first had it and its place. Within a request reads are in order, as far as the
threads that do them are, writes and deletes in order of name.

With --ranks N there are so many workers of tensor parallelism, each an engine with a pool and a
disk limit of so many chunks, and files of its own; a hit is what all of them find, as LMCache's
look-up client has it. Of an object's place in the request and its rank, which is in its file's
name, the recording has place * N + rank.

--trace-out T.parquet has a hook in LMCache's disk backend write our trace besides (trace_hook.py;
needs pyarrow).
"""

import argparse
import gzip
import json
import os
import sys
import time
from itertools import groupby
from pathlib import Path

import torch
from lmcache.v1.cache_engine import LMCacheEngineBuilder
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.gpu_connector.mock_gpu_connector import MockGPUConnector
from lmcache.v1.metadata import LMCacheMetadata
from trace_hook import TraceHook, hook_lmcache_disk

CHUNK, BLOCK, TOKEN_BYTES, GIB = 256, 512, 256, 2**30


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("trace", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--cpu-chunks", type=int, required=True)
    parser.add_argument("--disk-chunks", type=int, required=True)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--trace-out", type=Path)
    return parser.parse_args()


def engine(asked, rank):
    """Return LMCache's engine of a rank, with a CPU pool and files in `asked.dir`."""
    config = LMCacheEngineConfig.from_defaults(
        chunk_size=CHUNK, local_cpu=True, max_local_cpu_size=asked.cpu_chunks * CHUNK * TOKEN_BYTES / GIB,
        local_disk=str(asked.dir), max_local_disk_size=asked.disk_chunks * CHUNK * TOKEN_BYTES / GIB,
        use_layerwise=False, lmcache_instance_id=f"golden{rank}",
    )  # fmt: skip
    shape = (1, 2, CHUNK, 1, 64)
    metadata = LMCacheMetadata(
        "tiny", asked.ranks, asked.ranks, rank, rank, torch.bfloat16, shape, role="worker"
    )
    made = LMCacheEngineBuilder.get_or_create(
        f"golden{rank}",
        config,
        metadata,
        MockGPUConnector(kv_shape=shape),
        lambda *_: None,
        lambda o, _: o,
    )
    made.post_init()
    return made


class Record:
    """Which of the engine's files were opened and removed, from Python's audit events."""

    def __init__(self, folder):
        self.folder, self.request, self.names, self.done = str(folder), -1, {}, []
        sys.addaudithook(self.heard)

    def heard(self, event, args):
        if event not in ("open", "os.remove") or not str(args[0]).startswith(self.folder):
            return
        is_write = event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR)
        operation = "delete" if event == "os.remove" else "write" if is_write else "read"
        self.done.append((self.request, operation, Path(args[0]).name))

    def lines(self):
        """Yield the recording, runs of neighbours as one line."""
        for (request, operation), group in groupby(
            sorted(self.done, key=lambda o: o[:2]), key=lambda o: o[:2]
        ):
            objects = [self.names[name] for _, _, name in group]
            if operation != "read":
                objects.sort()
            while objects:
                writer, first = objects[0]
                step = (
                    objects[1][1] - first
                    if len(objects) > 1 and objects[1] in ((writer, first + 1), (writer, first - 1))
                    else 1
                )
                count = 1
                while count < len(objects) and objects[count] == (writer, first + step * count):
                    count += 1
                yield f"{operation} {request} {writer}:{first} {step} {count}\n"
                objects = objects[count:]


def serve(ranks, record, hook, request, tokens):
    """Do what the adapter does for one request of vLLM, and wait until its files are written."""
    for rank, made in enumerate(ranks):
        for start, _, key in made.token_database.process_tokens(tokens=tokens):
            place = start // CHUNK * len(ranks) + rank
            record.names.setdefault(key.to_string().replace("/", "-") + ".pt", (request, place))
    record.request, name = request, f"r{request}"
    hook.begin(request)
    hit = min(made.lookup(tokens=tokens, lookup_id=name, pin=True) for made in ranks)
    mask = torch.ones(len(tokens), dtype=torch.bool)
    mask[:hit] = False
    for made in ranks:
        if hit:
            made.retrieve(tokens[:hit], req_id=name)
        made.lookup_unpin(name)
        made.store(tokens=tokens, mask=mask, req_id=name)
    for made in ranks:
        while made.storage_manager.storage_backends["LocalDiskBackend"].disk_worker.put_tasks:
            time.sleep(0.001)


def main():
    asked = options()
    asked.dir = asked.dir.resolve()
    ranks, record, hook = (
        [engine(asked, rank) for rank in range(asked.ranks)],
        Record(asked.dir),
        TraceHook(),
    )
    if asked.trace_out:
        disk = ranks[0].storage_manager.storage_backends["LocalDiskBackend"]
        hook_lmcache_disk(disk, hook, lambda path: record.names[Path(path).name])
    with asked.trace.open() as lines:
        for request, line in enumerate(lines):
            if request == asked.requests:
                break
            row = json.loads(line)
            tokens = [
                token
                for block in row["hash_ids"]
                for token in range(block * BLOCK, (block + 1) * BLOCK)
            ]
            serve(ranks, record, hook, request, tokens[: row["input_length"]])
    with gzip.GzipFile(asked.out, "wb", 9, mtime=0) as out:
        out.writelines(line.encode() for line in record.lines())
    if asked.trace_out:
        hook.write(asked.trace_out, "nvme")
    os._exit(0)  # its threads do not end


main()
