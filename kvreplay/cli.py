"""The command line of kvreplay: replay traces, and probe the kernel's I/O."""

from __future__ import annotations

import os

from kvtrace.core.signals import leave_on_signals

# Before the other imports, which take longer than a signal may wait.
leave_on_signals("kvreplay", __name__)

from kvtrace.core.app import make_app, run  # noqa: E402 - see above

app = make_app(
    "kvreplay",
    "Replay a trace on real tiers (O_DIRECT files, host memory) and record every operation.",
    "Example: kvreplay run conv.parquet --tier nvme=/mnt/scratch --tier cpu=ram -o run",
    "kvreplay.commands.run:run",
    "kvreplay.commands.run:recover",
    "kvreplay.commands.sweep:sweep",
    "kvreplay.commands.sweep:scorecard",
    "kvreplay.commands.run:compare",
    "kvreplay.commands.run:engine",
    "kvreplay.commands.mlperf:mlperf",
    "kvreplay.commands.probe:discover",
    "kvreplay.commands.probe:probe",
)


def main() -> None:
    """Run kvreplay."""
    # Arrow's own allocators keep what is freed for later; it looks when it first takes memory.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    run(app, "kvreplay")


if __name__ == "__main__":
    main()
