"""How fast a fleet is simulated as nodes are added, and how much memory it takes.

Each fleet serves 32 users a node of llama3.1-70b on four ranks under vllm-fs, its file tier shared
by all, and is simulated without writing a trace: an event is a row. The largest fleet's time is
shorter than the others', and said.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

import figures

FLEETS = ((1, 600, None), (10, 120, None), (100, 60, 400e6), (1000, 5, 1e9))
"""Nodes, seconds of simulated time, and the memory that it may take."""
USERS = 32
TARGET_PER_S = 5e6


def simulate(nodes: int, seconds: int) -> tuple[float, int]:
    """Return the CPU seconds that a fleet of `nodes` takes, and its rows."""
    from kvtrace.llm import serving
    from kvtrace.llm.catalogue import find_model
    from kvtrace.sim.presets.preset import load_preset
    from kvtrace.sim.simulation import Flush, Load, Simulation

    model = find_model("llama3.1-70b")
    settings = [f"fleet.nodes={nodes}", "fleet.router=session", "tiers.nvme.scope=fleet"]
    preset = load_preset(
        "vllm-fs", settings, None, lambda gpu: serving.computing_times(gpu, model, 4)
    )
    load = Load(users=USERS * nodes, seed=42, until_ns=seconds * 10**9)
    simulation, rows = Simulation(preset, model, load, ranks=4), 0

    def sink(flush: Flush) -> None:
        nonlocal rows
        rows += len(flush.rows["ts_ns"])
        simulation.give_back(flush)

    start = time.process_time()
    simulation.run(sink)
    return time.process_time() - start, rows


def one(nodes: int, seconds: int) -> None:
    """Simulate a fleet in this process; print what it took as JSON."""
    start = time.perf_counter()
    cpu_s, rows = simulate(nodes, seconds)
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps([time.perf_counter() - start, cpu_s, peak_bytes, rows]))


def main() -> None:
    """Simulate each fleet in a process of its own: a process never gives memory back."""
    taken = []
    for nodes, seconds, most_bytes in FLEETS:
        command = [sys.executable, __file__, str(nodes), str(seconds)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        wall_s, cpu_s, peak_bytes, rows = json.loads(done.stdout)
        what = f"{nodes:,} node{'s' * (nodes > 1)} for {seconds} s: {rows / 1e6:.2f} M rows"
        what += f", {rows / cpu_s / 1e6:.2f} M a second"
        most_s = rows / TARGET_PER_S
        taken.append(
            figures.CommandCost(
                what, wall_s, cpu_s, peak_bytes, most_s, most_bytes, target_is_cpu_time=True
            )
        )
    figures.record_costs(
        taken,
        f"{USERS} users a node of llama3.1-70b on four ranks under vllm-fs, its file tier shared by"
        f" all; nothing is written. Target: {TARGET_PER_S / 1e6:g} M rows a second.",
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        one(int(sys.argv[1]), int(sys.argv[2]))
    else:
        main()
