"""The command line of kvdistill: thin; the work is in the library."""

from __future__ import annotations

from kvdistill import cli_fio, cli_import, cli_jobs, cli_reports
from kvtrace.core.app import make_app, run

app = make_app(
    "kvdistill",
    "Distil KV-cache traces and measurements into fio jobs and reports.",
    "A trace is a *.parquet or *.csv.zst file that `kvtrace gen` wrote; a run is a folder that `kvreplay run` wrote.",
)

app.command()(cli_fio.profile)
app.command()(cli_fio.fio)
for command in (cli_jobs.warp, cli_jobs.sai3, cli_jobs.elbencho, cli_jobs.vdbench):
    app.command()(command)


app.command("import")(cli_import.import_)
app.command()(cli_reports.report)
app.command()(cli_reports.sql)
app.command()(cli_reports.compare)


def main() -> None:
    """Run kvdistill."""
    run(app, "kvdistill")


if __name__ == "__main__":
    main()
