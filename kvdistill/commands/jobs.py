"""The commands `warp`, `sai3` and `import`: jobs for, and results of, other tools."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from kvdistill.commands.options import Json, Source, Tier, WindowArguments
from kvdistill.formats.formats import Format
from kvtrace.core.app import Force, command_line, log, option, progress
from kvtrace.core.document.document import Cell, Chapter, Document, Sheet, Unit, parameters
from kvtrace.core.document.terminal import answer
from kvtrace.core.metadata import without_outputs

if TYPE_CHECKING:
    from kvdistill import WrittenStoreJobs

Output = Annotated[
    Path,
    typer.Option(
        "-o", "--output", help="The folder for the files; made if missing.", show_default=False
    ),
]


@dataclass(frozen=True, slots=True)
class StoreArguments:
    """Options of the commands for object stores."""

    max_duration: str = option("Longest run time of the random job.", "300s")
    run: Path | None = option(
        "Also compare the job with a run of kvreplay on the tier: mix, sizes and rate."
    )
    force: Force = False
    json: Json = False

    def as_keywords(self) -> StoreKeywords:
        """Return the options as keywords of the library's functions."""
        return StoreKeywords(max_duration=self.max_duration, run=self.run, overwrite=self.force)


class StoreKeywords(TypedDict):
    """Options of the commands for object stores, as keywords of the library's functions."""

    max_duration: str
    run: Path | None
    overwrite: bool


def _show(written: WrittenStoreJobs, *, as_json: bool) -> None:
    """Print the written jobs; features that the format cannot express go to stderr."""
    for line in written.lost:
        log(f"lost: {line}")
    answer(written.to_dict(), written.document, as_json=as_json)


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
    import kvdistill

    with progress(f"profile {source.name}"):
        written = kvdistill.warp(
            source,
            output,
            tier,
            host=host,
            bucket=bucket,
            csv=has_csv,
            argv=without_outputs(command_line()),
            **window.as_keywords(),
            **store_options.as_keywords(),
        )
    _show(written, as_json=store_options.json)


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
    import kvdistill

    with progress(f"profile {source.name}"):
        written = kvdistill.sai3(
            source,
            output,
            tier,
            target=target,
            hosts=hosts,
            argv=without_outputs(command_line()),
            **window.as_keywords(),
            **store_options.as_keywords(),
        )
    _show(written, as_json=store_options.json)


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
    lmcache-l2  LMCache's trace of its L2 adapter (l2.lct): trace and ops
    blocks      blocks.parquet of kvreplay probe or of an import: a trace that kvreplay replays exactly

    \b
    kvdistill import warp warp-mixed.csv.zst -o imported
    kvdistill report imported
    kvdistill fio imported/trace.parquet --tier s3 -o jobs
    kvdistill import blocks probe -o imported
    kvreplay run imported/trace.parquet --tier vda=/mnt/scratch/replay.dat --speed 1 -o run
    """
    import kvdistill

    with progress(f"read {format_}"):
        result = kvdistill.import_file(
            files,
            output,
            format=format_,
            tier=tier,
            overwrite=force,
            argv=without_outputs(command_line()),
        )
    for line in result.lines():
        log(line if line.startswith("left out: ") else f"note: {line}")
    counts = {
        "rows read": Cell(result.rows_read, Unit.COUNT),
        "rows accepted": Cell(result.rows_kept, Unit.COUNT),
    }
    chapter = Chapter("", [parameters("", Sheet.SUMMARY, counts)])
    headline = f"Imported to {output}: {', '.join(result.files)}"
    answer(result, lambda: Document("", headline, [chapter]), as_json=json)
