"""LMCache's own engine with its pool in memory and its disk backend.

Only copies from and to a GPU are stood in for.

A request is what LMCache's vLLM adapter does: look up and pin, retrieve, unpin, store what was not
found.
"""

import os
import time
from typing import Any

from engine_drivers.recorder import Contents, Notebook

CHUNK_TOKENS = 256
INSTANCE = "kvreplay"
GIB = 1 << 30
POLL_S = 0.0005


def drive(recorder: Notebook) -> None:
    """Serve the requests one after another, each until its files are written."""
    os.environ.setdefault("PYTHONHASHSEED", "0")  # chunks must have the same names in every run
    os.environ.setdefault("LMCACHE_LOG_LEVEL", "WARNING")
    import torch

    engine = _engine(recorder)
    disk = engine.storage_manager.storage_backends["LocalDiskBackend"]
    _time_files(recorder, disk)
    recorder.watch()
    for prompt in recorder.prompts():
        tokens, name = prompt.token_ids(), f"request-{prompt.number}"
        hit = engine.lookup(tokens=tokens, lookup_id=name, pin=True)
        recorder.hit(hit)
        if hit:
            engine.retrieve(tokens[:hit], req_id=name)
        engine.lookup_unpin(name)
        if hit < len(tokens):
            engine.store(tokens=tokens, mask=torch.arange(len(tokens)) >= hit, req_id=name)
        while disk.disk_worker.put_tasks and recorder.failure is None:
            time.sleep(POLL_S)


def _engine(recorder: Notebook) -> Any:
    import lmcache
    import torch
    from lmcache.v1.cache_engine import LMCacheEngineBuilder
    from lmcache.v1.config import LMCacheEngineConfig
    from lmcache.v1.metadata import LMCacheMetadata

    asked = recorder.settings
    shape = (asked.layers, 2, CHUNK_TOKENS, asked.kv_heads, asked.head_dim)
    config = LMCacheEngineConfig.from_defaults(
        chunk_size=CHUNK_TOKENS,
        local_cpu=True,
        max_local_cpu_size=asked.cpu_bytes / GIB,
        local_disk=asked.directory,
        max_local_disk_size=asked.disk_bytes / GIB,
        lmcache_instance_id=INSTANCE,
        extra_config={"use_odirect": asked.is_direct},
    )
    config.update_config_from_env()  # what else its user sets, such as LMCACHE_CACHE_POLICY=LFU
    metadata = LMCacheMetadata("model", 1, 1, 0, 0, torch.bfloat16, shape, role="worker")
    connector = _connector(shape, Contents(CHUNK_TOKENS * asked.token_bytes))
    engine = LMCacheEngineBuilder.get_or_create(
        INSTANCE, config, metadata, connector, _broadcast, _broadcast_object
    )
    engine.post_init()
    recorder.facts(
        engine="LMCache", version=getattr(lmcache, "__version__", None), chunk_tokens=CHUNK_TOKENS
    )
    return engine


def _broadcast(_tensor: object, _source: int) -> None:
    """Do nothing: there is one rank."""


def _broadcast_object(value: object, _source: int) -> object:
    return value


def _connector(shape: tuple[int, ...], contents: Contents) -> Any:
    """Return a connector to no GPU, which puts random data where a GPU's would be."""
    from lmcache.v1.gpu_connector.mock_gpu_connector import MockGPUConnector

    class Connector(MockGPUConnector):  # type: ignore[misc, unused-ignore]
        def batched_from_gpu(
            self, memory_objs: Any, _starts: Any, _ends: Any, **_options: Any
        ) -> None:
            for memory in memory_objs:
                into = memoryview(memory.byte_array).cast("B")
                into[:] = contents.cut(len(into))

    return Connector(kv_shape=shape)


def _time_files(recorder: Notebook, disk: Any) -> None:
    write_file, read_file = disk.write_file, disk.read_file

    def write(buffer: Any, path: str) -> None:
        with recorder.timed("write", path, len(buffer)):
            write_file(buffer, path)

    def read(key: Any, buffer: Any, path: str) -> None:
        with recorder.timed("read", path, len(buffer)):
            read_file(key, buffer, path)

    disk.write_file, disk.read_file = write, read
    recorder.time_removals()
