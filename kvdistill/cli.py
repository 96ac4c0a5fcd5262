"""The command line of kvdistill: thin; the work is in the library."""

from __future__ import annotations

from kvdistill.commands import fio, importing, jobs, reports
from kvtrace.core.app import make_app, run

app = make_app(
    "kvdistill",
    "Distil KV-cache traces and measurements into fio jobs and reports.",
    "A trace is a *.parquet or *.csv.zst file that `kvtrace gen` wrote; a run is a folder that `kvreplay run` wrote.",
)

app.command()(fio.profile)
app.command()(fio.fio)
app.command()(jobs.warp)
app.command()(jobs.sai3)
app.command("import")(importing.import_)
app.command()(reports.report)
app.command()(reports.sql)
app.command()(reports.compare)


def main() -> None:
    """Run kvdistill."""
    run(app, "kvdistill")


if __name__ == "__main__":
    main()
