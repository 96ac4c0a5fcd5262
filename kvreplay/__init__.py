"""kvreplay: replay a trace on real storage and measure each operation.

>>> import kvtrace as kt, kvreplay
>>> trace = kt.simulate(
...     preset="lmcache-disk", users=2, duration="2s", model="tiny-1b",
...     tiers={"cpu": {"capacity": "32MiB"}, "nvme": {"capacity": "64MiB"}},
... )
>>> run = kvreplay.replay(trace, tiers={"nvme": "ram"})
>>> run.is_partial
False

The public API is what `__all__` lists; everything else may change at any time.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvreplay.experiments.experiments import (
        MlperfCheck,
        MlperfPlan,
        MlperfRun,
        Scorecard,
        Sweep,
        check_mlperf,
        combine_mlperf,
        plan_mlperf,
        run_mlperf,
        scorecard,
        sweep,
    )
    from kvreplay.plan.replay_config import Config
    from kvreplay.run.library import ReplayVerdict, Run, compare, read_run, replay

__all__ = [
    "Config",
    "MlperfCheck",
    "MlperfPlan",
    "MlperfRun",
    "ReplayVerdict",
    "Run",
    "Scorecard",
    "Sweep",
    "check_mlperf",
    "combine_mlperf",
    "compare",
    "plan_mlperf",
    "read_run",
    "replay",
    "run_mlperf",
    "scorecard",
    "sweep",
]

_MODULES = {
    "kvreplay.experiments.experiments": (
        "MlperfCheck",
        "MlperfPlan",
        "MlperfRun",
        "Scorecard",
        "Sweep",
        "check_mlperf",
        "combine_mlperf",
        "plan_mlperf",
        "run_mlperf",
        "scorecard",
        "sweep",
    ),
    "kvreplay.plan.replay_config": ("Config",),
    "kvreplay.run.library": ("ReplayVerdict", "Run", "compare", "read_run", "replay"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a name of the public API when it is first used."""
        if name in _MODULE_OF:
            return getattr(import_module(_MODULE_OF[name]), name)
        raise AttributeError(f"module 'kvreplay' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted([*globals(), *__all__])
