"""kvtrace: simulate the KV cache of an inference engine and write its I/O as a trace.

>>> import kvtrace as kt
>>> trace = kt.simulate(preset="lmcache-disk", users=4, duration="10s", model="tiny-1b", seed=1)
>>> trace.stats.requests
96

The public API is what `__all__` lists; everything else may change at any time. Functions are
imported when they are first used, so that `import kvtrace` takes no time.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "1.0.0"

if TYPE_CHECKING:
    from kvtrace.core.errors import (
        ConfigError,
        DeviceError,
        KvError,
        OutOfMemory,
        ProbeUnavailable,
        TraceError,
    )
    from kvtrace.core.simulation_stats import SimulationStats
    from kvtrace.core.trace import Trace, read_trace
    from kvtrace.curves.break_even import BreakEven, break_even
    from kvtrace.curves.comparison import PolicyComparison
    from kvtrace.curves.engine_comparison import EngineComparison, compare_engines
    from kvtrace.curves.hit_ratios import (
        CapacityCurve,
        CountedHits,
        HitCounts,
        capacity_curve,
        count_hits,
        hit_ratio_curve,
        policies,
    )
    from kvtrace.curves.sizing import SizeAnswer, size, size_scenario
    from kvtrace.llm.models import Model, model, models
    from kvtrace.requests.registry import read_requests, sources
    from kvtrace.requests.requests import Requests
    from kvtrace.sim.presets.preset import PresetInfo, presets
    from kvtrace.sim.scenario import OpenLoop, Scenario, build_scenario
    from kvtrace.sim.simulate import simulate
    from kvtrace.studies.library import PlanAnswer, StudyAnswer, load_study, plan, study
    from kvtrace.studies.study import Configuration, Study
    from kvtrace.trace.generate import (
        ScenarioTrace,
        TrainingTrace,
        simulate_scenario,
        simulate_training,
    )

__all__ = [
    "BreakEven",
    "CapacityCurve",
    "ConfigError",
    "Configuration",
    "CountedHits",
    "DeviceError",
    "EngineComparison",
    "HitCounts",
    "KvError",
    "Model",
    "OpenLoop",
    "OutOfMemory",
    "PlanAnswer",
    "PolicyComparison",
    "PresetInfo",
    "ProbeUnavailable",
    "Requests",
    "Scenario",
    "ScenarioTrace",
    "SimulationStats",
    "SizeAnswer",
    "Study",
    "StudyAnswer",
    "Trace",
    "TraceError",
    "TrainingTrace",
    "break_even",
    "build_scenario",
    "capacity_curve",
    "compare_engines",
    "count_hits",
    "hit_ratio_curve",
    "load_study",
    "model",
    "models",
    "plan",
    "policies",
    "presets",
    "read_requests",
    "read_trace",
    "simulate",
    "simulate_scenario",
    "simulate_training",
    "size",
    "size_scenario",
    "sources",
    "study",
]

_MODULES = {
    "kvtrace.core.errors": (
        "ConfigError",
        "DeviceError",
        "KvError",
        "OutOfMemory",
        "ProbeUnavailable",
        "TraceError",
    ),
    "kvtrace.core.simulation_stats": ("SimulationStats",),
    "kvtrace.core.trace": ("Trace", "read_trace"),
    "kvtrace.curves.break_even": ("BreakEven", "break_even"),
    "kvtrace.curves.engine_comparison": ("EngineComparison", "compare_engines"),
    "kvtrace.curves.comparison": ("PolicyComparison",),
    "kvtrace.curves.hit_ratios": (
        "CapacityCurve",
        "CountedHits",
        "HitCounts",
        "capacity_curve",
        "count_hits",
        "hit_ratio_curve",
        "policies",
    ),
    "kvtrace.curves.sizing": ("SizeAnswer", "size", "size_scenario"),
    "kvtrace.llm.models": ("Model", "model", "models"),
    "kvtrace.requests.registry": ("read_requests", "sources"),
    "kvtrace.requests.requests": ("Requests",),
    "kvtrace.sim.presets.preset": ("PresetInfo", "presets"),
    "kvtrace.sim.scenario": ("OpenLoop", "Scenario", "build_scenario"),
    "kvtrace.sim.simulate": ("simulate",),
    "kvtrace.studies.library": ("PlanAnswer", "StudyAnswer", "load_study", "plan", "study"),
    "kvtrace.studies.study": ("Configuration", "Study"),
    "kvtrace.trace.generate": (
        "ScenarioTrace",
        "TrainingTrace",
        "simulate_scenario",
        "simulate_training",
    ),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a name of the public API when it is first used."""
        if name in _MODULE_OF:
            return getattr(import_module(_MODULE_OF[name]), name)
        raise AttributeError(f"module 'kvtrace' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted([*globals(), *__all__])
