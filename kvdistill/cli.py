"""The command line of kvdistill: thin; the work is in the library."""

from __future__ import annotations

from kvdistill.commands import fio, importing, jobs, reports
from kvtrace.core.app import add_command, make_app, run

app = make_app(
    "kvdistill",
    "Distil KV-cache traces and measurements into fio jobs and reports.",
    "A trace is a *.parquet or *.csv.zst file that `kvtrace gen` wrote; a run is a folder that `kvreplay run` wrote.",
)

for command in (
    fio.profile,
    fio.fio,
    jobs.warp,
    jobs.sai3,
    importing.import_,
    reports.report,
    reports.sql,
    reports.compare,
):
    add_command(app, command)


def main() -> None:
    """Run kvdistill."""
    run(app, "kvdistill")


if __name__ == "__main__":
    main()
