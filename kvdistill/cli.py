"""The command line of kvdistill, a thin layer over the library."""

from __future__ import annotations

from kvtrace.core.signals import leave_on_signals

# Before the other imports, which take longer than a signal may wait.
leave_on_signals("kvdistill", __name__)

from kvtrace.core.app import make_app, run  # noqa: E402 - see above

app = make_app(
    "kvdistill",
    "Make fio jobs and reports from KV-cache traces and measurements.",
    "A trace is a *.parquet or *.csv.zst file that `kvtrace gen` wrote; a run is a folder that"
    " `kvreplay run` wrote.",
    "kvdistill.commands.fio:profile",
    "kvdistill.commands.fio:fio",
    "kvdistill.commands.jobs:warp",
    "kvdistill.commands.jobs:sai3",
    "kvdistill.commands.jobs:import_",
    "kvdistill.commands.reports:report",
    "kvdistill.commands.reports:sql",
    "kvdistill.commands.reports:compare",
)


def main() -> None:
    """Run kvdistill."""
    run(app, "kvdistill")


if __name__ == "__main__":
    main()
