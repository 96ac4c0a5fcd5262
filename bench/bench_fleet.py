"""How fast a fleet is simulated as nodes are added, and how much memory it takes.

Each fleet serves 32 users a node of llama3.1-70b on four ranks under vllm-fs, its file tier shared
by all, and is simulated without writing a trace: an event is a row. The largest fleet's time is
shorter than the others', and said.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

FLEETS = ((1, 600), (10, 120), (100, 30), (1000, 5))
"""Nodes, and seconds of virtual time."""
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
    """Print a line of a fleet, simulated in this process."""
    took_s, rows = simulate(nodes, seconds)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        f"fleet of {nodes} nodes x {USERS} users, llama3.1-70b, vllm-fs with a shared file tier,"
        f" {seconds} s: {rows / 1e6:.2f} M rows, {took_s:.2f} s CPU, {rows / took_s / 1e6:.2f} M"
        f" rows/s, {rows / took_s / TARGET_PER_S:.2f}x the target of {TARGET_PER_S / 1e6:g} M; peak"
        f" {peak / 1e6:.0f} MB, {peak / nodes / 1e6:.1f} a node",
        flush=True,
    )


def main() -> None:
    """Simulate each fleet in a process of its own: a process never gives memory back."""
    for nodes, seconds in FLEETS:
        subprocess.run([sys.executable, __file__, str(nodes), str(seconds)], check=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        one(int(sys.argv[1]), int(sys.argv[2]))
    else:
        main()
