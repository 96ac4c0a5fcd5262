"""The command `kvdistill import`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kvdistill.commands.options import Json
from kvdistill.formats.formats import Format
from kvtrace.core.app import emit_json, log


def import_(
    format_: Annotated[Format, typer.Argument(metavar="FORMAT", help="What wrote the files; see above.")],
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Its files.", show_default=False)],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The folder for the tables; made if missing.", show_default=False)
    ],
    tier: Annotated[
        str | None, typer.Option("--tier", help="Name of the tier that it ran on.  [default: s3, fio, ...]")
    ] = None,
    json: Json = False,
) -> None:
    """Read other tools' logs and results into our tables, to report on, compare and distil.

    What a format does not carry is null; rows that do not fit are counted and reported, by reason.

    \b
    sai3        op log of sai3-bench or s3dlio (*.tsv, *.tsv.zst): trace, and ops if it has ends
    warp        per-request CSV of MinIO's warp (`full: true`, *.csv.zst): trace and ops
    fio-json    fio --output-format=json or json+: run.json
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
    from kvdistill.formats.formats import ImportOptions
    from kvdistill.formats.importing import import_files
    from kvtrace.core.document.document import Cell, Chapter, Document, Sheet, Unit, parameters
    from kvtrace.core.document.terminal import show_documents
    from kvtrace.core.metadata import without_outputs

    argv = without_outputs(["kvdistill", *sys.argv[1:]])
    result = import_files(files, ImportOptions(format_, tier), output, argv)
    for note in result.notes:
        log(f"note: {note}")
    for reason, count in result.left_out.items():
        log(f"left out: {count:,} rows: {reason} (first: {result.examples[reason]})")
    if json:
        emit_json(result)
        return
    counts = {"rows read": Cell(result.rows_read, Unit.COUNT), "rows kept": Cell(result.rows_kept, Unit.COUNT)}
    chapter = Chapter("", [parameters("", Sheet.SUMMARY, counts)])
    show_documents([Document("", f"Imported to {output}: {', '.join(result.files)}", [chapter])])
