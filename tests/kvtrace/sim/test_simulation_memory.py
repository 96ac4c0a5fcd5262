"""A finished simulation frees its memory at once, without Python's cyclic collector."""

import gc
import subprocess
import sys
import weakref

import pytest

from kvtrace.llm.catalogue import find_model
from kvtrace.sim.presets.preset import load_preset
from kvtrace.sim.simulation import Load, Simulation

SETTINGS = ["tiers.gpu.capacity=96MiB", "tiers.cpu.capacity=256MiB"]


@pytest.fixture
def no_collector():
    """Without the cyclic collector, only reference counts free memory."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_a_finished_simulation_has_no_cycle():
    simulation = Simulation(
        load_preset("vllm-fs", SETTINGS),
        find_model("tiny-1b"),
        Load(users=3, seed=1, until_ns=3 * 10**9),
    )
    simulation.run(lambda _flush: None)
    assert simulation.stats().requests > 0
    world = weakref.ref(simulation.world)
    del simulation
    assert world() is None


@pytest.mark.usefixtures("no_collector")
def test_close_frees_the_tables_of_a_simulation():
    with Simulation(
        load_preset("vllm-fs", SETTINGS), find_model("tiny-1b"), Load(users=3, until_ns=10**9)
    ) as simulation:
        simulation.run(lambda _flush: None)
        world = weakref.ref(simulation.world)
        assert world() is not None
    assert world() is None


SIMULATE_20 = """
import gc, resource
gc.disable()
from kvtrace.curves.points import Stack
from kvtrace.llm.catalogue import find_model
from kvtrace.sim.presets.preset import load_preset
from kvtrace.sim.simulation import Load
preset = load_preset("vllm-fs", ["tiers.gpu.capacity=1GiB"])
load = Load(users=20, seed=1, until_ns=10**9)
stack = Stack(preset, find_model("llama3.1-8b"), load, 1, lambda _simulation: None)
def resident_mb():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1000
for number in range(1, 21):
    stack.simulate({"dram": 1 << 30, "nvme": 1 << 33})
    if number in (2, 20):
        print(resident_mb())
"""


def test_20_simulations_take_the_memory_of_2():
    out = subprocess.run(
        [sys.executable, "-c", SIMULATE_20], check=True, capture_output=True, text=True
    ).stdout
    after_2, after_20 = map(float, out.split())
    assert after_20 < 1.1 * after_2
