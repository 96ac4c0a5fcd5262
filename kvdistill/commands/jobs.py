"""The commands `warp`, `sai3` and `import`: jobs for, and results of, other tools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import to_builtins

from kvdistill.commands.options import Json, Source, Tier, WindowArguments
from kvdistill.formats.formats import Format, ImportOptions
from kvdistill.jobs.job import PROFILE
from kvtrace.core.app import Force, command_line, log, option, progress
from kvtrace.core.document.document import Cell, Chapter, Document, Sheet, Unit, parameters
from kvtrace.core.document.terminal import answer
from kvtrace.core.files import check_new
from kvtrace.core.metadata import without_outputs
from kvtrace.core.units import NS_PER_S, parse_duration_ns, positive

if TYPE_CHECKING:
    # Heavy.
    from kvdistill.formats.oplog import Style
    from kvdistill.jobs.store_jobs import StoreJob
    from kvdistill.profile.profile import Profile

Output = Annotated[
    Path,
    typer.Option(
        "-o", "--output", help="The folder for the files; made if missing.", show_default=False
    ),
]


@dataclass(frozen=True, slots=True)
class StoreArguments:
    """Options of the commands for object stores."""

    runtime_cap_ns: int = option(
        "Longest run time of the random job.  [default: 300s]",
        300 * NS_PER_S,
        "--max-duration",
        parse=positive("--max-duration", parse_duration_ns),
    )
    run: Path | None = option(
        "Also compare the job with a run of kvreplay on the tier: mix, sizes and rate."
    )
    force: Force = False
    json: Json = False

    def write(
        self,
        source: Path,
        tier: str | None,
        output: Path,
        window: WindowArguments,
        name: str,
        job_of: Callable[[Profile], StoreJob],
        *,
        style: Style | None,
        endpoint: str,
        hosts: int = 1,
    ) -> None:
        """Write the job `name` (see `write_store_jobs`) and print the result.

        Features that the format cannot express are listed on stderr.
        """
        from kvdistill.jobs.store_jobs import compare_with_run, write_store_jobs
        from kvdistill.reports.jobs import written_document

        check_new(output / PROFILE, is_forced=self.force)
        argv = without_outputs(command_line())
        with progress(f"profile {source.name}"):
            written, requested = write_store_jobs(
                source,
                tier,
                output,
                window.as_limit(),
                name,
                job_of,
                style=style,
                endpoint=endpoint,
                hosts=hosts,
                argv=argv,
            )
        compared = (
            None
            if self.run is None
            else compare_with_run(requested, self.run, written.profile.tier)
        )
        for line in (*written.lost, *(written.log.lost if written.log else [])):
            log(f"lost: {line}")
        result = (
            written
            if compared is None
            else to_builtins(written) | {"beside_run": to_builtins(compared)}
        )
        answer(result, lambda: written_document(written, output, compared), as_json=self.json)


def warp(
    source: Source,
    output: Output,
    tier: Tier = None,
    host: str = option("The object store, as HOST:PORT.", "127.0.0.1:9000"),
    bucket: str = option("The bucket; warp empties it.", "kvdistill"),
    has_csv: bool = option("Also write the operations as warp's full CSV.", False, "--csv"),
    *,
    window: WindowArguments,
    store_options: StoreArguments,
) -> None:
    """Write a mixed benchmark for MinIO's warp.

    Operation mix, exact object sizes, rate, random objects.

    The head of the file, and stderr, list how to run it and the features that warp cannot express.
    warp has no replay: --csv is for tools that replay its CSV, or for warp analyze (of a run; a
    trace holds start times only).

    \b
    kvdistill warp conv.parquet --tier nvme -o jobs --host 10.0.0.1:9000
    kvdistill warp conv.parquet --tier s3 -o jobs --run run
    warp run jobs/mixed.yml
    """
    from kvdistill.formats.oplog import Style
    from kvdistill.jobs.store_jobs import WARP_JOB, StoreOptions, warp_job

    job = partial(
        warp_job,
        options=StoreOptions(host=host, bucket=bucket, runtime_cap_ns=store_options.runtime_cap_ns),
    )
    style = Style.WARP if has_csv else None
    store_options.write(
        source, tier, output, window, WARP_JOB, job, style=style, endpoint=f"http://{host}"
    )


def sai3(
    source: Source,
    output: Output,
    tier: Tier = None,
    target: str = option(
        "Base URI of the objects: s3://, gs://, az://, file:// or direct://.", "s3://kvdistill/"
    ),
    hosts: int = option("Partition the op log by object, one log per host.", 1),
    *,
    window: WindowArguments,
    store_options: StoreArguments,
) -> None:
    """Write an op log that sai3-bench replays at the trace's times, and a random workload.

    All operations of an object are in one host's log: start the hosts' replays together.
    populate.tsv.zst puts the objects that are read before they are written; replay it first.

    \b
    kvdistill sai3 conv.parquet --tier nvme -o jobs --hosts 4
    sai3-bench replay --op-log jobs/populate-1-of-4.tsv.zst
    sai3-bench replay --op-log jobs/oplog-1-of-4.tsv.zst
    """
    from kvdistill.formats.oplog import Style
    from kvdistill.jobs.store_jobs import SAI3_JOB, StoreOptions, sai3_workload

    job = partial(
        sai3_workload,
        options=StoreOptions(target=target, runtime_cap_ns=store_options.runtime_cap_ns),
    )
    store_options.write(
        source, tier, output, window, SAI3_JOB, job, style=Style.SAI3, endpoint=target, hosts=hosts
    )


def import_(
    format_: Annotated[
        Format, typer.Argument(metavar="FORMAT", help="Program or format of the files; see above.")
    ],
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Its files.", show_default=False)
    ],
    output: Path = option(
        "The folder for the tables; made if missing.", ..., "-o --output", show_default=False
    ),
    tier: str | None = option("Name of the tier that it ran on.  [default: s3, fio, ...]"),
    force: Force = False,
    json: Json = False,
) -> None:
    """Read other tools' logs and results into tables, for reports, comparisons and jobs.

    A figure that a format does not hold is null. Rejected rows are counted and reported by reason.

    \b
    sai3        op log of sai3-bench or s3dlio (*.tsv, *.tsv.zst): trace, and ops if it has ends
    warp        per-request CSV of MinIO's warp (`full: true`, *.csv.zst): trace and ops
    fio-json    fio --output-format=json or json+, also with --client: run.json
    fio-log     fio's logs: *_lat.1.log and *_clat.1.log to ops, with log_offset=1 also a trace; *_bw.1.log,
                *_iops.1.log, *_clat_hist.1.log and means (log_avg_msec) to a series by the second
    fio-iolog   fio's iolog, version 2 or 3: trace
    bpftrace    text of the MLPerf benchmark's storage_latency_stack.bt: probe.json
    blkparse    text of blkparse: blocks and a probe.json
    vllm-bench  vllm bench serve --save-result: run.json with TTFT, times of tokens, throughput
    aiperf      AIPerf's profile_export_aiperf.json or .csv: the same
    lmcache-bench  lmcache bench engine's .json or .csv: the same
    blocks      blocks.parquet of kvreplay probe or of an import: a trace that kvreplay replays exactly

    \b
    kvdistill import warp warp-mixed.csv.zst -o imported
    kvdistill report imported
    kvdistill fio imported/trace.parquet --tier s3 -o jobs
    kvdistill import blocks probe -o imported
    kvreplay run imported/trace.parquet --tier vda=/mnt/scratch/replay.dat --speed 1 -o run
    """
    from kvdistill.formats.importing import import_files

    argv = without_outputs(command_line())
    with progress(f"read {format_}"):
        result = import_files(files, ImportOptions(format_, tier), output, argv, is_forced=force)
    for line in result.lines():
        log(line if line.startswith("left out: ") else f"note: {line}")
    counts = {
        "rows read": Cell(result.rows_read, Unit.COUNT),
        "rows accepted": Cell(result.rows_kept, Unit.COUNT),
    }
    chapter = Chapter("", [parameters("", Sheet.SUMMARY, counts)])
    headline = f"Imported to {output}: {', '.join(result.files)}"
    answer(result, lambda: Document("", headline, [chapter]), as_json=json)
