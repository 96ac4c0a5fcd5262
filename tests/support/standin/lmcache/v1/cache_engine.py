"""Chunks of 256 tokens in files, the least recently stored out first.

STANDIN_TROUBLE makes it fail in some way.
"""

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

CHUNK = 256
TROUBLE = os.environ.get("STANDIN_TROUBLE", "")
UNFULL = os.environ.get("LMCACHE_SAVE_UNFULL_CHUNK") == "true"


class Disk:
    def __init__(self, config, metadata):
        self.folder, self.disk_worker = config.local_disk, SimpleNamespace(put_tasks=[])
        layers, two, tokens, heads, dim = metadata.shape
        self.bytes = 2 * layers * two * tokens * heads * dim
        self.most, self.held = int(config.max_local_disk_size * 2**30) // self.bytes, []

    def path(self, key):
        return f"{self.folder}/model@{key}.pt"

    def write_file(self, buffer, path):
        if TROUBLE == "full":
            raise OSError(28, "No space left on device")
        Path(path).write_bytes(buffer)

    def read_file(self, key, buffer, path):
        buffer[:] = Path(path).read_bytes()


class Engine:
    def __init__(self, config, metadata, connector):
        self.disk, self.connector, self.served = Disk(config, metadata), connector, 0
        self.storage_manager = SimpleNamespace(storage_backends={"LocalDiskBackend": self.disk})

    def post_init(self):
        print("LMCache says a lot")
        print("on both streams", file=sys.stderr)

    def keys(self, tokens):
        end = len(tokens) if UNFULL else len(tokens) // CHUNK * CHUNK
        return [hash(tuple(tokens[: start + CHUNK])) for start in range(0, end, CHUNK)]

    def lookup(self, tokens, lookup_id, pin):
        self.served += 1
        if TROUBLE == "slow":
            time.sleep(0.2)
        if TROUBLE == "raise" and self.served == 3:
            raise ValueError("the third request is one too many")
        found = 0
        for key in self.keys(tokens):
            if key not in self.disk.held:
                break
            found = min(found + CHUNK, len(tokens))
        return found

    def retrieve(self, tokens, req_id):
        into = bytearray(self.disk.bytes)
        for key in self.keys(tokens):
            self.disk.read_file(key, into, self.disk.path(key))

    def lookup_unpin(self, lookup_id):
        if TROUBLE == "untimed":
            Path(f"{self.disk.folder}/index").write_text(lookup_id)

    def store(self, tokens, mask, req_id):
        if mask.count(False) % CHUNK:  # as LMCache does (v1/token_database.py)
            raise ValueError(
                "The number of Falses in the mask is not a multiple of the chunk size."
            )
        for number, key in enumerate(self.keys(tokens)):
            if not mask[number * CHUNK]:
                continue
            if len(self.disk.held) == self.disk.most:
                os.remove(self.disk.path(self.disk.held.pop(0)))  # noqa: PTH107 - as the engine does
            memory = SimpleNamespace(byte_array=bytearray(self.disk.bytes))
            self.connector.batched_from_gpu([memory], [0], [CHUNK])
            self.disk.write_file(memory.byte_array, self.disk.path(key))
            self.disk.held.append(key)


class LMCacheEngineBuilder:
    @staticmethod
    def get_or_create(name, config, metadata, connector, broadcast, broadcast_object):
        return Engine(config, metadata, connector)
