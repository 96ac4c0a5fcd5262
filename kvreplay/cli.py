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
    {
        "kvreplay.commands.run:run": (
            "Replay a trace on real tiers and write run.json and its tables."
        ),
        "kvreplay.commands.run:recover": (
            "Make a partial run from the measurements of a killed one; of a killed probe, its "
            "requests."
        ),
        "kvreplay.commands.sweep:sweep": (
            "Replay a trace at rising queue depths, speeds or users until it saturates; "
            "report the knee."
        ),
        "kvreplay.commands.sweep:scorecard": (
            "Test a drive: the users of four caching stacks that it sustains, with latencies "
            "and spread."
        ),
        "kvreplay.commands.run:compare": (
            "Replay a trace on two drives, or by two clients, in turn; report which is "
            "faster, by how much, and how surely."
        ),
        "kvreplay.commands.run:engine": (
            "Let a real engine's storage path serve a trace's requests, and record its file "
            "operations as a run."
        ),
        "kvreplay.commands.mlperf:mlperf": (
            "Run a locked option of the MLPerf Storage KV-cache benchmark by its rules, "
            "combine ranks, or check a submission."
        ),
        "kvreplay.commands.probe:discover": (
            "Check that this machine is ready for a replay, and recommend settings to start from."
        ),
        "kvreplay.commands.probe:probe": (
            "Measure the I/O of any process: its calls, the block requests beneath, and their "
            "times."
        ),
    },
)


def main() -> None:
    """Run kvreplay."""
    # Arrow's own allocators keep what is freed for later; it looks when it first takes memory.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    run(app, "kvreplay")


if __name__ == "__main__":
    main()
