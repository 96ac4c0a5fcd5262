"""The command line of kvreplay: replay traces, and probe what the kernel does meanwhile."""

from __future__ import annotations

import os

from kvreplay.commands import compare, discover, engine, mlperf, probe, recover, sweep
from kvreplay.commands import run as replays
from kvtrace.core.app import add_command, make_app
from kvtrace.core.app import run as run_app

app = make_app(
    "kvreplay",
    "Replay a trace on real tiers (O_DIRECT files, host memory) and record every operation.",
    "Example: kvreplay run conv.parquet --tier nvme=/mnt/scratch --tier cpu=ram -o run",
)
for command in (
    replays.run,
    recover.recover,
    sweep.sweep,
    compare.compare,
    engine.engine,
    mlperf.mlperf,
    discover.discover,
    probe.probe,
):
    add_command(app, command)


def main() -> None:
    """Run kvreplay."""
    # Arrow's own allocators keep what is freed for later; it looks when it first takes memory. See `held.freed`.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    run_app(app, "kvreplay")


if __name__ == "__main__":
    main()
