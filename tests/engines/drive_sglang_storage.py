"""Record which pages SGLang's storage on 3FS, or on NIXL, writes, reads and gives up for requests
of a Mooncake trace.

Run where torch is, and for NIXL its package (nixl-cu12 1.5.1), with the sglang wheel unzipped
(0.5.23 made those in tests/golden/engines):

    python tests/engines/drive_sglang_storage.py UNZIPPED TRACE OUT.txt.gz --requests 200 --pages 8192
    python tests/engines/drive_sglang_storage.py UNZIPPED TRACE OUT.txt.gz --requests 200 --nixl

Of 3FS it has SGLang's storage, metadata and mock client, of a file in a temporary folder; of NIXL
SGLang's storage and NIXL's POSIX backend, files in a temporary folder, opened by path and O_DIRECT
as by default, the cleaner off. What they import of the rest and do not use is a stub. The requests'
pages are looked up and moved as SGLang's controller does it, 128 at a time; the pool in host memory
that stands before them is no part of this. A line of OUT is operation, request, first page, step to
the next, and how many; a page is named by the request that first had it and its place.
"""

import argparse
import importlib
import importlib.util
import inspect
import json
import os
import sys
import tempfile
import types
from collections import OrderedDict
from pathlib import Path

from vllm_parts import Recording

PAGE_TOKENS, PAGE_BYTES, BLOCK_PAGES, BATCH, PREFETCH_TOKENS = 64, 16384, 8, 128, 256
CACHE = "sglang.srt.mem_cache"
EMPTY = ("sglang", "sglang.srt", CACHE, f"{CACHE}.storage", f"{CACHE}.storage.hf3fs", f"{CACHE}.storage.nixl",
         f"{CACHE}.storage.mmap", "sglang.srt.observability", "sglang.srt.environ")  # fmt: skip


class Anything(types.ModuleType):
    """A module of which any name is a class."""

    def __getattr__(self, name):
        """Return a class of that name."""
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class Environment:
    """SGLang's environment, in which only the directory is set, and direct I/O as by default."""

    def __init__(self, directory):
        """Set the directory of NIXL's files."""
        self._known = {
            "SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR": directory,
            "SGLANG_HICACHE_NIXL_USE_DIRECT_IO": True,
        }

    def __getattr__(self, name):
        """Return a variable; others are 0."""
        return types.SimpleNamespace(get=lambda: self._known.get(name, 0))


class Pool:
    """The host's pool of pages, which are all alike here."""

    layout, page_size, pin_memory = "layer_first", PAGE_TOKENS, False

    def __init__(self):
        """Make one page."""
        import torch

        self.kv_buffer = torch.zeros(PAGE_BYTES, dtype=torch.uint8)

    def get_dummy_flat_data_page(self):
        """Return a page."""
        return self.kv_buffer

    def get_data_page(self, _place, *, flat):
        """Return a page."""
        return self.kv_buffer if flat else None

    def set_from_flat_data_page(self, _place, _page):
        """Take a page."""


class Known(OrderedDict):
    """The pages that 3FS's metadata knows; tells which it gives up."""

    def popitem(self, last=True):
        """Give up the oldest."""
        key, place = super().popitem(last)
        self.record.add("delete", *self.names[key])
        return key, place


def load(folder, name):
    """Load SGLang's module `name` below mem_cache; what it imports and is not there is anything."""
    path = folder / "sglang" / "srt" / "mem_cache" / f"{name.replace('.', '/')}.py"
    spec = importlib.util.spec_from_file_location(f"{CACHE}.{name}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    while True:
        try:
            spec.loader.exec_module(module)
        except ModuleNotFoundError as missing:
            sys.modules[missing.name] = Anything(missing.name)
        else:
            return module


def three_fs(folder, place, pages):
    """Return what reads pages, what writes them, what looks them up, and what 3FS's metadata knows."""
    import torch

    load(folder, "storage.hf3fs.hf3fs_client")
    made, metadata = (
        load(folder, f"storage.hf3fs.{name}")
        for name in ("storage_hf3fs", "mini_3fs_metadata_server")
    )
    client = metadata.Hf3fsLocalMetadataClient()
    files = made.HiCacheHF3FS(
        rank=0, file_path=f"{place}/pages.bin", file_size=pages * PAGE_BYTES, numjobs=16, bytes_per_page=PAGE_BYTES,
        entries=8, client_timeout=5, dtype=torch.uint8, metadata_client=client, use_mock_client=True,
    )  # fmt: skip
    files.mha_zero_copy = False
    of_rank = client._get_metadata(0, metadata.PoolName.KV)
    of_rank.key_to_index = Known()

    def moved(move, keys):
        return move(keys, [torch.zeros(PAGE_BYTES, dtype=torch.uint8) for _ in keys])

    moves = {
        "read": lambda keys: moved(files._batch_get, keys),
        "write": lambda keys: moved(files._batch_set, keys),
    }
    return moves, files, of_rank.key_to_index


def nixl(folder, config):
    """Return the same of NIXL's files, of which all that are written are known."""
    import torch

    found = importlib.import_module("nixl_cu12")
    sys.modules |= {"nixl": found, "nixl._api": importlib.import_module("nixl_cu12._api")}
    sys.modules[f"{CACHE}.storage.mmap"].alloc_mmap = load(
        folder, "storage.mmap.mmap_allocator"
    ).alloc_mmap
    for name in ("routing", "cleaner", "utils", "registry"):
        load(folder, f"storage.nixl.nixl_{name}")
    known = {
        "tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0, "attn_cp_size": 1, "model_name": "m",
        "is_mla_model": False, "enable_storage_metrics": False, "is_page_first_layout": False, "tp_lcm_size": None,
        "should_split_heads": False,
        "extra_config": {"plugin": {"posix": {"active": True}}, "l3_cleaner_enabled": False},
    }  # fmt: skip
    names = inspect.signature(config).parameters
    files = load(folder, "storage.nixl.hicache_nixl").HiCacheNixl(
        config(**{name: value for name, value in known.items() if name in names})
    )
    files.register_mem_pool_host(Pool())
    print(f"opened by path: {files.registry.path_mode}, O_DIRECT: {files.needs_page_alignment}")

    def moved(move, keys):
        return move(keys, torch.zeros(PAGE_TOKENS * len(keys), dtype=torch.int64))

    moves = {
        "read": lambda keys: moved(files.batch_get_v1, keys),
        "write": lambda keys: moved(files.batch_set_v1, keys),
    }
    return moves, files, {}


def options():
    """Return what was asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("unzipped", type=Path)
    parser.add_argument("trace", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--pages", type=int, help="what 3FS holds")
    parser.add_argument("--nixl", action="store_true")
    return parser.parse_args()


def main():
    """Serve the requests."""
    asked, place = options(), tempfile.mkdtemp()
    for name in EMPTY:
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = []
    sys.modules["sglang.srt.environ"].envs = Environment(place)
    config = load(asked.unzipped, "hicache_storage").HiCacheStorageConfig
    moves, files, known = (
        nixl(asked.unzipped, config) if asked.nixl else three_fs(asked.unzipped, place, asked.pages)
    )
    record, names = Recording(), {}
    if not asked.nixl:
        known.record, known.names = record, names
    with asked.trace.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line, _ in zip(lines, range(asked.requests), strict=False)]
    for number, row in enumerate(rows):
        record.request = number
        keys = [f"{block}_{page}" for block in row["hash_ids"] for page in range(BLOCK_PAGES)]
        keys = keys[: row["input_length"] // PAGE_TOKENS]
        for at, key in enumerate(keys):
            names.setdefault(key, (number, at))
        found = files.batch_exists(keys) if keys else 0
        wanted = found if found * PAGE_TOKENS >= PREFETCH_TOKENS else 0
        for operation, first, end in (("read", 0, wanted), ("write", found, len(keys))):
            for at in range(first, end, BATCH):
                part = keys[at : min(end, at + BATCH)]
                moved = [key for key in part if operation == "read" or key not in known]
                if not all(moves[operation](part)):
                    raise RuntimeError(f"request {number}: a page was not moved")
                for key in moved:
                    record.add(operation, *names[key])
    record.write(asked.out, "{} {} {}:{} {} {}".format)
    sys.stdout.flush()
    os._exit(0)  # its threads do not end


main()
