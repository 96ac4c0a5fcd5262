"""Record which files SGLang's HiCache writes, reads and removes with several ranks, for requests of
a Mooncake trace.

Run where torch and sglang are installed (0.5.23, without what it needs), with an empty folder for
its files:

    python tests/engines/drive_sglang_ranks.py TRACE OUT.txt.gz --dir EMPTY --requests 70 --ranks 2 --max-size 12582912

Each rank of tensor parallelism is a process of its own, joined by gloo, with SGLang's controller
(which looks up, agrees on the hits of all ranks, reads and writes in its threads), its HiCacheFile
and evictor of so many bytes; what they import of the rest is a stub, the scheduler's part of a
prefetch is ours, and no pool in host memory stands before the files. --mla has a latent, which is
the same on all ranks. A line of OUT is operation, request, first object, step to the next, and how
many; an object is named by the request that first had it and its place, of each rank's own files
place * ranks + rank. Of a request come first what one rank did, then what the next did.
"""

import argparse
import contextlib
import importlib.abc
import importlib.util
import json
import os
import sys
import types
from itertools import chain
from pathlib import Path

import torch
from torch import distributed, multiprocessing
from vllm_parts import Recording

PAGE_TOKENS, PAGE_BYTES, BLOCK_PAGES, PREFETCH_TOKENS = 64, 16384, 8, 256
CACHE = "sglang.srt.mem_cache"
REAL = {f"{CACHE}.hicache_storage", f"{CACHE}.storage", f"{CACHE}.storage.backend_factory",
        f"{CACHE}.storage.file.lru_file_evictor", f"{CACHE}.hybrid_cache.hybrid_cache_controller",
        "sglang.srt.managers.cache_controller"}  # fmt: skip
"""SGLang's modules that are run; of others any name is a class that does nothing."""


class Anything(types.ModuleType):
    """A module of which any name is a class."""

    __path__ = ()

    def __getattr__(self, name):
        """Return a class of that name."""
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(
            name,
            (),
            {"__init__": lambda *_, **__: None, "__class_getitem__": classmethod(lambda c, _: c)},
        )
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds SGLang's own modules where they are real, else stubs."""

    def __init__(self, folder):
        """Find them in the package's `folder`."""
        self._folder = folder

    def find_spec(self, name, _path, _target=None):
        """Return where the module is."""
        if not name.startswith("sglang"):
            return None
        if name not in REAL:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        path = self._folder.joinpath(*name.split(".")[1:])
        inner = path / "__init__.py"
        return importlib.util.spec_from_file_location(
            name, inner if inner.exists() else path.with_suffix(".py")
        )

    def create_module(self, spec):
        """Make a stub."""
        return Anything(spec.name)

    def exec_module(self, module):
        """Leave the stub as it is."""


class Pool:
    """The host's pool of pages, which are all alike here."""

    layout, page_size, storage_format_tag = "layer_first", PAGE_TOKENS, None
    size = logical_size = 1 << 30
    data = torch.zeros(PAGE_BYTES, dtype=torch.uint8)

    def __init__(self):
        """Be the pool of the group, too."""
        self.anchor_entry = types.SimpleNamespace(host_pool=self)
        self.entries, self.layout_lease = (), contextlib.nullcontext

    def get_dummy_flat_data_page(self):
        """Return a page."""
        return self.data

    def get_data_page(self, _place):
        """Return a page."""
        return self.data

    def set_from_flat_data_page(self, _place, _page):
        """Take a page."""


def controller(asked, rank):
    """Return SGLang's controller of a rank, with files in `asked.dir`."""
    sys.meta_path.insert(
        0, Finder(Path(importlib.util.find_spec("sglang").submodule_search_locations[0]))
    )

    def known(module, **names):
        vars(importlib.import_module(module)).update(names)

    directory = types.SimpleNamespace(get=lambda: str(asked.dir))
    unset = types.SimpleNamespace(get=lambda: None)
    variables = type("Variables", (), {"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": directory,
                                       "__getattr__": lambda _, __: unset})()  # fmt: skip
    parallel = types.SimpleNamespace(tp_rank=rank, tp_size=asked.ranks, pp_rank=0, pp_size=1, attn_dcp_size=1,
                                     attn_dcp_rank=0)  # fmt: skip
    known("sglang.srt.environ", envs=variables)
    known("sglang.srt.runtime_context", get_parallel=lambda: parallel)
    known("sglang.srt.layers.dp_attention", is_dp_attention_enabled=lambda: False)
    known("sglang.srt.utils", get_device_module=lambda: types.SimpleNamespace(Event=object))
    grouped = lambda group_ranks, backend: distributed.new_group(group_ranks, backend=backend)  # noqa: E731
    known("sglang.srt.distributed.parallel_state", create_custom_parallel_group=grouped)
    # A prompt is given as the hashes of its pages.
    known(f"{CACHE}.utils", get_storage_hash_str=lambda keys, *_, **__: list(keys))
    known("sglang.srt.managers")
    made = importlib.import_module(f"{CACHE}.hybrid_cache.hybrid_cache_controller")
    kind = (
        importlib.import_module(f"{CACHE}.memory_pool").MLATokenToKVPool
        if asked.mla
        else types.SimpleNamespace
    )
    device = kind()
    device.device, device.layer_num, device.register_layer_transfer_counter = (
        "cpu",
        0,
        lambda _: None,
    )
    return made.HybridCacheController(
        types.SimpleNamespace(get_kvcache=lambda: device), Pool(), PAGE_TOKENS, distributed.group.WORLD, None,
        write_policy="write_through", storage_backend="file", prefetch_threshold=PREFETCH_TOKENS, model_name="m",
        storage_backend_extra_config={"max_size": asked.max_size},
    )  # fmt: skip


class Watch:
    """Records which files are read, renamed to where they stay, and removed."""

    def __init__(self, folder, copies):
        """Watch the files in `folder`, of which a page has so many `copies`."""
        self.done, self.names, self.request, self._folder, self._copies = (
            [],
            {},
            -1,
            str(folder),
            copies,
        )
        sys.addaudithook(self._heard)

    def _heard(self, event, args):
        operation = {"os.rename": "write", "os.remove": "delete", "open": "read"}.get(event)
        path = str(args[event == "os.rename"]) if operation else ""
        if path.startswith(self._folder) and path.endswith(".bin"):
            key, _, rank = Path(path).stem.partition("_m")
            writer, place = self.names[key]
            of_rank = int(rank.split("_")[1]) if self._copies > 1 else 0
            self.done.append((operation, self.request, writer, place * self._copies + of_rank))


def serve(made, keys):
    """Do what the scheduler does for a prompt of so many pages, and wait until its files are
    written.
    """
    operation = made.prefetch(types.SimpleNamespace(rid="r"), keys)
    hit = made.prefetch_hit_queue.get().storage_hit_count
    pages = hit // PAGE_TOKENS if hit >= made.prefetch_threshold else 0
    if pages:
        operation.host_indices = torch.arange(hit)
        made.prefetch_buffer.put(operation)
        while not (ack := made.ack_prefetch_queue.get()).completed_req:
            operation.completed_tokens = ack.completed_tokens or operation.completed_tokens
        if operation.completed_tokens != hit:
            raise RuntimeError(f"of {hit} tokens {operation.completed_tokens} were read")
    if keys[pages:]:
        made.write_storage(torch.arange(len(keys[pages:]) * PAGE_TOKENS), [], keys[pages:])
        made.ack_backup_queue.get()


def work(rank, asked, rows):
    """Serve the requests as one rank; the first writes what all recorded."""
    distributed.init_process_group(
        "gloo", init_method=f"file://{asked.dir}.meet", rank=rank, world_size=asked.ranks
    )
    made, watch = controller(asked, rank), Watch(asked.dir, 1 if asked.mla else asked.ranks)
    for number, row in enumerate(rows):
        keys = [f"{block}_{page}" for block in row["hash_ids"] for page in range(BLOCK_PAGES)]
        keys = keys[: row["input_length"] // PAGE_TOKENS]
        watch.request = number
        for at, key in enumerate(keys):
            watch.names.setdefault(key, (number, at))
        serve(made, keys)
        distributed.barrier()
    found = [None] * asked.ranks
    distributed.all_gather_object(found, watch.done)
    if not rank:
        record = Recording()
        for operation, record.request, *name in sorted(chain(*found), key=lambda done: done[1]):
            record.add(operation, *name)
        record.write(asked.out, "{} {} {}:{} {} {}".format)
    sys.stdout.flush()
    os._exit(0)  # its threads do not end


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("trace", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--max-size", type=int, required=True, help="bytes of each rank's files")
    parser.add_argument("--mla", action="store_true")
    return parser.parse_args()


def main():
    asked = options()
    asked.dir = asked.dir.resolve()
    with asked.trace.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line, _ in zip(lines, range(asked.requests), strict=False)]
    multiprocessing.spawn(work, (asked, rows), nprocs=asked.ranks)


if __name__ == "__main__":
    main()
