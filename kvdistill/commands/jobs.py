"""The commands that write jobs for warp and sai3-bench."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvdistill.commands.options import Busiest, From, Json, Limited, Source, Tier, To, positive
from kvdistill.jobs.job import PROFILE
from kvtrace.core.app import Force, emit_json, log
from kvtrace.core.files import check_new
from kvtrace.core.units import parse_duration_ns

if TYPE_CHECKING:
    from kvdistill.jobs.write import StoreJobs

Output = Annotated[
    Path, typer.Option("-o", "--output", help="The folder for the files; made if missing.", show_default=False)
]
BesideRun = Annotated[
    Path | None,
    typer.Option(
        "--run", help="Also compare the job with what this run of kvreplay did on the tier: mix, sizes and rate."
    ),
]
MaxRuntime = Annotated[str, typer.Option("--max-duration", help="Longest run time of the random job.")]


def warp(
    source: Source,
    output: Output,
    tier: Tier = None,
    host: Annotated[str, typer.Option("--host", help="The object store, as HOST:PORT.")] = "127.0.0.1:9000",
    bucket: Annotated[str, typer.Option("--bucket", help="The bucket; warp empties it.")] = "kvdistill",
    has_csv: Annotated[bool, typer.Option("--csv", help="Also write the operations as warp's full CSV.")] = False,
    limit: Limited = None,
    begin: From = None,
    end: To = None,
    busiest: Busiest = None,
    max_runtime: MaxRuntime = "300s",
    run: BesideRun = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Write a mixed benchmark for MinIO's warp: operation mix, exact object sizes, rate, objects at random.

    The file's head says how to run it and what warp cannot say of the source; so does stderr. warp has no replay:
    --csv is for tools that replay its CSV or, of a run, for warp analyze; a trace has starts only.

    \b
    kvdistill warp conv.parquet --tier nvme -o jobs --host 10.0.0.1:9000
    kvdistill warp conv.parquet --tier s3 -o jobs --run run
    warp run jobs/mixed.yml
    """
    from kvdistill.formats.oplog import Style
    from kvdistill.jobs.warp import JOB, WarpOptions, warp_job
    from kvdistill.jobs.write import write_store_jobs
    from kvtrace.core.limit import parse_window
    from kvtrace.core.metadata import without_outputs

    check_new(output / PROFILE, is_forced=force)
    options = WarpOptions(host, bucket, positive(parse_duration_ns(max_runtime), f"--max-duration {max_runtime}"))
    written = write_store_jobs(
        source,
        tier,
        output,
        parse_window(limit, begin, end, busiest),
        JOB,
        partial(warp_job, options=options),
        style=Style.WARP if has_csv else None,
        endpoint=f"http://{host}",
        argv=without_outputs(["kvdistill", *sys.argv[1:]]),
    )
    _show(written, output, JOB, run, json=json)


def sai3(
    source: Source,
    output: Output,
    tier: Tier = None,
    target: Annotated[
        str, typer.Option("--target", help="Base URI of the objects: s3://, gs://, az://, file:// or direct://.")
    ] = "s3://kvdistill/",
    hosts: Annotated[int, typer.Option("--hosts", help="Partition the op log by object, one log per host.")] = 1,
    limit: Limited = None,
    begin: From = None,
    end: To = None,
    busiest: Busiest = None,
    max_runtime: MaxRuntime = "300s",
    run: BesideRun = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Write an op log that sai3-bench replays on the trace's times, and a random workload for it.

    An object's operations are all in one host's log: start the hosts' replays together. populate.tsv.zst puts the
    objects that the trace reads before it writes them; replay it first.

    \b
    kvdistill sai3 conv.parquet --tier nvme -o jobs --hosts 4
    sai3-bench replay --op-log jobs/populate-1-of-4.tsv.zst
    sai3-bench replay --op-log jobs/oplog-1-of-4.tsv.zst
    """
    from kvdistill.formats.oplog import Style
    from kvdistill.jobs.sai3 import WORKLOAD, Sai3Options, sai3_workload
    from kvdistill.jobs.write import write_store_jobs
    from kvtrace.core.limit import parse_window
    from kvtrace.core.metadata import without_outputs

    check_new(output / PROFILE, is_forced=force)
    options = Sai3Options(target, positive(parse_duration_ns(max_runtime), f"--max-duration {max_runtime}"))
    written = write_store_jobs(
        source,
        tier,
        output,
        parse_window(limit, begin, end, busiest),
        WORKLOAD,
        partial(sai3_workload, options=options),
        style=Style.SAI3,
        endpoint=target,
        hosts=hosts,
        argv=without_outputs(["kvdistill", *sys.argv[1:]]),
    )
    _show(written, output, WORKLOAD, run, json=json)


def _show(written: StoreJobs, folder: Path, job: str, run: Path | None, *, json: bool) -> None:
    """Print the result, `job` compared with `run` if that is named; what the format cannot express goes to stderr."""
    from msgspec import to_builtins

    from kvdistill.check.store_jobs import compare_with_run
    from kvdistill.report.jobs import written_document
    from kvtrace.core.document.terminal import show_documents

    compared = None if run is None else compare_with_run(folder / job, run, written.profile.tier)
    for line in (*written.lost, *(written.log.lost if written.log else [])):
        log(f"lost: {line}")
    if json:
        emit_json(written if compared is None else to_builtins(written) | {"beside_run": to_builtins(compared)})
    else:
        show_documents([written_document(written, folder, compared)])
