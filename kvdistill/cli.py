"""The command line of kvdistill, a thin layer over the library."""

from __future__ import annotations

from kvtrace.core.signals import leave_on_signals

# Before the other imports, which take longer than a signal may wait.
leave_on_signals("kvdistill", __name__)

from kvtrace.core.app import make_app, run  # noqa: E402 - see above

app = make_app(
    "kvdistill",
    "Make fio jobs and reports from KV-cache traces and measurements.",
    "A trace is a *.parquet or *.csv.zst file, or a dataset's folder, that `kvtrace gen` wrote; a run is a folder that"
    " `kvreplay run` wrote.",
    {
        "kvdistill.commands.fio:profile": "Extract the workload profile into a JSON file.",
        "kvdistill.commands.fio:fio": "Write fio jobs.",
        "kvdistill.commands.jobs:warp": "Write a mixed benchmark for MinIO's warp.",
        "kvdistill.commands.jobs:sai3": (
            "Write an op log that sai3-bench replays at the trace's times, and a random workload."
        ),
        "kvdistill.commands.jobs:import_": (
            "Read other tools' logs and results into tables, for reports, comparisons and jobs."
        ),
        "kvdistill.commands.reports:report": "Report the figures of traces or runs.",
        "kvdistill.commands.reports:sql": "Query files with SQL.",
        "kvdistill.commands.reports:compare": "Compare runs, traces, probes or scorecards.",
    },
)


def main() -> None:
    """Run kvdistill."""
    run(app, "kvdistill")


if __name__ == "__main__":
    main()
