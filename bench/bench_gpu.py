"""How near the `gpu` tier comes to copies by PyTorch.

Pinned host memory to the GPU, back, and within it.

PyTorch's side is one stream of copies back to back between two events, as NVIDIA's bandwidthTest
has it; ours are the engine's rows, a copy each, by the wall clock: its threads wait for every copy,
and generate the data of writes. Printed are medians of three, and of each round's ratio. Needs
PyTorch and 3 GB of GPU memory; takes a minute.
"""

from __future__ import annotations

import statistics
from typing import Any

import bench_replay
import numpy as np

from kvreplay.engine.native_engine import EngineName, choose
from kvreplay.plan.row_ring import READ, WRITE
from kvreplay.tiers.gpu import GpuTier
from kvreplay.tiers.ram import copy_threads
from kvreplay.tiers.tier import Holding
from kvtrace.core.errors import KvError

RUNS = 3
SIZES = (64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
TOTAL_BYTES, MOVED_BYTES = 1 << 30, 8 << 30
# Generating data takes processors, and is no part of a copy: a quarter is written.
WRITTEN = 4


def pytorch(torch: Any, size: int, kind: str) -> float:
    """Return bytes/s of copies of `size`."""
    gpu = torch.zeros(TOTAL_BYTES // size, size, dtype=torch.uint8, device="cuda")
    other = (
        torch.zeros_like(gpu)
        if kind == "d2d"
        else torch.zeros(4, size, dtype=torch.uint8, pin_memory=True)
    )
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    count = MOVED_BYTES // size
    start.record()
    for at in range(count):
        here, there = gpu[at % len(gpu)], other[at % len(other)]
        to, source = (here, there) if kind == "h2d" else (there, here)
        to.copy_(source, non_blocking=True)
    end.record()
    end.synchronize()
    return count * size / (start.elapsed_time(end) / 1e3)


def ours(engine: Any, tier: GpuTier, size: int, op: int) -> tuple[float, float]:
    """Return bytes/s, and what part of the threads' time generating data took."""
    count = MOVED_BYTES // size // (WRITTEN if op == WRITE else 1)
    before = copied_bytes(tier)
    plan = bench_replay.plan_of(op, np.arange(count) % (TOTAL_BYTES // size), size, 0)
    driven, _, _ = bench_replay.drive(engine, [tier], plan)
    assert copied_bytes(tier) - before == count * size, "every byte was copied once"
    return count * size / driven.wall_ns * 1e9, driven.making_ns / driven.wall_ns / copy_threads()


def copied_bytes(tier: GpuTier) -> int:
    """Return how many bytes `tier` has copied in both directions."""
    transfers: Any = tier.facts()["transfers"]
    return sum(kind["bytes"] for kind in transfers.values())


def main() -> None:
    try:
        import torch

        opened = GpuTier("gpu", 0, SIZES[0])
        opened.open(0)
        name = opened.facts()["device"]
        opened.close()
    except (ImportError, KvError) as error:
        print(f"skipped: {error}")
        return
    print(
        f"gpu tier, {copy_threads()} threads, against PyTorch {torch.__version__} on one {name},"
        " GB/s"
    )
    print("      size copy   tier  PyTorch  ratio   generating data")
    for size in SIZES:
        for is_within, ops in ((False, ((WRITE, "h2d"), (READ, "d2h"))), (True, ((READ, "d2d"),))):
            tier = GpuTier("gpu", 0, size, is_within=is_within)
            tier.expect(Holding([TOTAL_BYTES]))
            tier.open(TOTAL_BYTES)
            engine = choose(EngineName.AUTO, [tier], 8, size)
            there = bench_replay.plan_of(WRITE, np.arange(TOTAL_BYTES // size), size, 0)
            bench_replay.drive(engine, [tier], there)
            for op, kind in ops:
                found = [
                    (*ours(engine, tier, size, op), pytorch(torch, size, kind)) for _ in range(RUNS)
                ]
                rate, making, peer = (statistics.median(side) for side in zip(*found, strict=True))
                ratio = statistics.median(one / other for one, _, other in found)
                print(
                    f"{size >> 10:6d} KiB {kind} {rate / 1e9:7.1f} {peer / 1e9:8.1f} {ratio:6.2f}"
                    f" {making:8.0%}",
                    flush=True,
                )
            tier.close()


if __name__ == "__main__":
    main()
