"""LMCache's own engine with its pool in memory and its disk backend.

Only copies from and to a GPU are stood in for.

A request is what LMCache's vLLM adapter does: look up and pin, retrieve, unpin, store what was not
found.
"""

import importlib
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


def _part(name: str) -> Any:
    """Return a module of the engine that runs in the server's process.

    LMCache 0.5.7 has moved these modules to a package of their own, one after the other.
    """
    for package in ("lmcache.inprocess.v1", "lmcache.v1"):
        try:
            return importlib.import_module(f"{package}.{name}")
        except ModuleNotFoundError as error:
            # Another module that is missing is a fault of the installation.
            if not f"{package}.{name}".startswith(str(error.name)):
                raise
    raise ModuleNotFoundError(f"LMCache has no module {name} that this driver knows")


def _engine(recorder: Notebook) -> Any:
    import lmcache
    import torch

    builder = _part("cache_engine").LMCacheEngineBuilder
    engine_config = _part("config").LMCacheEngineConfig
    engine_metadata = _part("metadata").LMCacheMetadata
    asked = recorder.settings
    shape = (asked.layers, 2, CHUNK_TOKENS, asked.kv_heads, asked.head_dim)
    config = engine_config.from_defaults(
        chunk_size=CHUNK_TOKENS,
        local_cpu=True,
        max_local_cpu_size=asked.cpu_bytes / GIB,
        local_disk=asked.directory,
        max_local_disk_size=asked.disk_bytes / GIB,
        lmcache_instance_id=INSTANCE,
        extra_config={"use_odirect": asked.is_direct},
    )
    config.update_config_from_env()  # what else its user sets, such as LMCACHE_CACHE_POLICY=LFU
    metadata = engine_metadata("model", 1, 1, 0, 0, torch.bfloat16, shape, role="worker")
    connector = _connector(shape, Contents(CHUNK_TOKENS * asked.token_bytes))
    engine = builder.get_or_create(
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
    mock_connector = _part("gpu_connector.mock_gpu_connector").MockGPUConnector

    class Connector(mock_connector):  # type: ignore[misc, valid-type, unused-ignore]
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
