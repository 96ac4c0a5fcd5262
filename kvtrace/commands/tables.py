"""Commands on tables: import, convert, merge, record, info and validate.

The commands `models` and `presets` list the inputs of a simulation: the bytes of a model, and the
knobs of a preset.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from kvtrace.commands.options import AsJson, TraceFile
from kvtrace.core.app import command_line, emit_json, log, noted_signals, option, progress
from kvtrace.core.config import as_text
from kvtrace.core.document.document import (
    Chapter,
    Document,
    ReportColumn,
    Sheet,
    table_of,
)
from kvtrace.core.document.terminal import answer
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.json_types import JsonObject
from kvtrace.core.metadata import describe
from kvtrace.core.schema import EVENTS, OBJECTS, REQUESTS, TRACE
from kvtrace.core.tables import create, given_path, objects_path, open_table, requests_path, staged
from kvtrace.core.units import (
    NS_PER_S,
    counted,
    format_count,
    parse_bytes,
    parse_duration_ns,
    positive,
    printable,
)
from kvtrace.studies import completion
from kvtrace.studies.gen_options import MaxRequests, Seed, SourceArguments

if TYPE_CHECKING:
    from kvtrace.sim.presets.preset import Knob


def import_(
    file: Annotated[
        Path,
        typer.Argument(help="A file of real requests; for some sources a directory or a glob."),
    ],
    output: Path = option(
        "The requests table: *.parquet or *.csv.zst.", ..., "-o --output", writable=True
    ),
    max_requests: MaxRequests = None,
    seed: Seed = 42,
    as_json: AsJson = False,
    *,
    source: SourceArguments,
) -> None:
    """Convert a file of real requests to a requests table, and print its figures.

    They include the gaps between requests, oddities and null values.

    `kvtrace gen requests.parquet` then makes the same trace as `kvtrace gen FILE --turns
    as-recorded`.

    \b
    kvtrace import azure_2023_code.csv -o azure.parquet
    kvtrace import BurstGPT_1.csv --source burstgpt --time-scale 0.1 -o burst.csv.zst --json
    """
    from kvtrace.requests import own_table

    requests = source.read(file, seed, max_requests)
    with progress("writing", len(requests)) as tick:
        figures = own_table.write(output, requests, command_line(), seed, tick)
    if as_json:
        emit_json(
            {"file": str(output), "source": requests.origin, "notes": requests.notes, **figures}
        )
        return
    for note in requests.notes:
        log(f"note: {note}")
    typer.echo(printable(f"{output}: requests of {file}\n"))
    for label, how_much in own_table.lines(figures):
        typer.echo(printable(f"{label:<25}  {how_much}"))


def convert(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="IN", help="*.parquet, *.csv.zst, a dataset's folder, or an MLPerf trace CSV."
        ),
    ],
    target: Annotated[
        Path,
        typer.Argument(
            metavar="OUT",
            writable=True,
            help="*.parquet, *.csv.zst, or for a trace a dataset DIR/; with --to mlperf also *.csv.",
        ),
    ],
    to: str = option("Format of OUT: native, or mlperf.", "native", metavar="FORMAT"),
) -> None:
    """Convert a table between Parquet and zstd CSV, or a trace from or to the MLPerf trace CSV.

    The objects table of a trace is converted with it.

    \b
    kvtrace convert t.parquet t.csv.zst
    kvtrace convert t.parquet t/
    kvtrace convert mlperf_trace.csv t.parquet
    kvtrace convert t.parquet mlperf_trace.csv.zst --to mlperf
    """
    from kvtrace.trace import mlperf_csv

    if to not in ("native", "mlperf"):
        raise ConfigError(f"--to {to}: unknown format; use native or mlperf")
    if source.exists() and target.exists() and source.samefile(target):
        raise ConfigError(f"{target} is the input; name another output")
    with progress("converting") as tick:
        if to == "mlperf":
            if not target.name.endswith((".csv", ".csv.zst")):
                raise ConfigError(f"{target}: name an MLPerf trace *.csv or *.csv.zst")
            lost = {name: n for name, n in mlperf_csv.write_from(source, target, tick).items() if n}
            loss_text = ", ".join(counted(n, name.removesuffix("s")) for name, n in lost.items())
            log(f"lost in this format: {loss_text or 'nothing'}")
        elif mlperf_csv.is_mlperf(source):
            for note in mlperf_csv.read_into(source, target, command_line(), tick).notes():
                log(f"note: {note}")
        else:
            _convert_table(source, target, tick)


def _convert_table(source: Path, target: Path, tick: Callable[[float], None]) -> None:
    """Write the table at `source` to `target`; with a trace, its other tables."""
    reader = open_table(source)
    is_trace = reader.table == TRACE
    with ExitStack() as stack:
        place = stack.enter_context(staged(target)) if is_trace else target
        tables = [(place, reader)]
        if is_trace and objects_path(source).exists():
            tables.append((objects_path(place), open_table(objects_path(source), OBJECTS)))
        # The requests table of a file may be anywhere, that of a dataset is within it.
        if is_trace and place != target and requests_path(source).exists():
            tables.append((requests_path(place), open_table(requests_path(source), REQUESTS)))
        # The trace is entered first and so renamed last.
        for path, table in tables:
            out = stack.enter_context(create(path, table.table, table.meta, table.extras))
            for batch in table.batches():
                out.write(batch)
                tick(float(out.rows))


def merge(
    traces: Annotated[list[Path], typer.Argument(metavar="TRACE...", help="Two traces or more.")],
    output: Path = option(
        "The merged trace: *.parquet, *.csv.zst, or a dataset DIR/.",
        ...,
        "-o --output",
        writable=True,
    ),
    shift: list[str] | None = option(
        "Delay the start of a trace, by its file's name: checkpoint=30s.", metavar="NAME=TIME"
    ),
    requests: list[str] | None = option(
        "The requests table of a trace; merged into --requests-out.", metavar="NAME=FILE"
    ),
    requests_out: Path | None = option("Write the merged requests table here.", writable=True),
    as_json: AsJson = False,
) -> None:
    """Merge traces into one, in order of time.

    Tiers are matched by name. Objects, requests and sessions of different traces stay separate.

    Each trace is called by its file's name without the suffix. A replay of the merged trace shows,
    for example, the effect of a checkpoint on users' p99 latency.

    \b
    kvtrace merge kv.parquet checkpoint.parquet -o mixed.parquet
    kvtrace merge kv.parquet checkpoint.parquet --shift checkpoint=30s -o mixed.parquet
    kvtrace merge a.parquet b.parquet --requests a=a-requests.parquet --requests-out r.parquet -o ab.parquet
    """
    from kvtrace.trace import merge as merging

    if len(traces) < 2:  # noqa: PLR2004 - a merge needs two traces
        raise ConfigError("name two traces or more to merge")
    names = {path: path.name.removesuffix(".csv.zst").removesuffix(".parquet") for path in traces}
    if len(set(names.values())) != len(traces) or any(
        set(name) & set(" =") for name in names.values()
    ):
        given_names = ", ".join(names[path] for path in traces)
        raise ConfigError(
            "traces are named after their files: the names must differ, without spaces or =:"
            f" {given_names}"
        )
    later = _by_name(shift, "--shift", "30s", set(names.values()))
    tables = _by_name(requests, "--requests", "requests.parquet", set(names.values()))
    if (requests_out is None) != (not tables):
        raise ConfigError("--requests and --requests-out belong together; give both or neither")
    inputs = [
        merging.Input(
            name,
            path,
            parse_duration_ns(later.get(name, "0")),
            Path(tables[name]) if name in tables else None,
        )
        for path, name in names.items()
    ]
    written = [output, objects_path(output), *([] if requests_out is None else [requests_out])]
    read = [*traces, *map(objects_path, traces), *map(Path, tables.values())]
    for path in written:
        if any(
            path.exists() and input_path.exists() and path.samefile(input_path)
            for input_path in read
        ):
            raise ConfigError(f"{path} is an input; name another output")
    with progress(
        "merging", sum(open_table(path, TRACE).meta.rows or 0 for path in traces)
    ) as tick:
        meta = merging.merge(inputs, output, command_line(), requests_out, tick)
    if as_json:
        emit_json({"file": str(output), "rows": meta.rows, "merged": meta.config["merged"]})
        return
    tiers = ", ".join(tier.name for tier in meta.tiers)
    typer.echo(
        printable(
            f"{output}: {counted(meta.rows or 0, 'row')} of {', '.join(names.values())}, on {tiers}"
        )
    )


def _by_name(options: list[str] | None, flag: str, example: str, names: set[str]) -> dict[str, str]:
    """Return the values of NAME=VALUE options by name; ConfigError for a name of no trace."""
    values: dict[str, str] = {}
    for text in options or []:
        name, equals, value = text.partition("=")
        if name not in names or not equals or not value or name in values:
            valid_names = ", ".join(sorted(names))
            raise ConfigError(
                f"{flag} {text}: write NAME={example} once for a trace; the traces are {valid_names}"
            )
        values[name] = value
    return values


def record(
    zmq: str = option(
        "Endpoint where the engine publishes KV events, such as tcp://host:5557.", ...
    ),
    replay: str | None = option(
        "The engine's replay socket, to request lost messages, such as tcp://host:5558."
    ),
    topic: str = option("Topic prefix.", ""),
    duration: str | None = option("End after this time.  [default: with Ctrl-C]"),
    output: Path = option(
        "The events table: *.parquet or *.csv.zst.",
        Path("events.parquet"),
        "-o --output",
        writable=True,
    ),
    as_json: AsJson = False,
) -> None:
    """Follow the KV events of a live vLLM or SGLang until Ctrl-C, and write them as a table.

    vLLM publishes them with --kv-events-config '{"enable_kv_cache_events": true, "publisher":
    "zmq"}'. Blocks are numbered; no token is kept. `kvtrace import events.parquet` makes requests
    of them.

    \b
    kvtrace record --zmq tcp://localhost:5557 -o events.parquet
    kvtrace record --zmq tcp://gpu7:5557 --replay tcp://gpu7:5558 --duration 10m -o events.parquet
    """
    from kvtrace.requests.record import Recorder, notes_of, stopwatch

    max_ns = math.inf if duration is None else positive("duration", parse_duration_ns)(duration)
    meta = describe(
        EVENTS, "kvtrace", command_line(), {"zmq": zmq, "replay": replay, "topic": topic}
    )
    with noted_signals() as stopped, create(output, EVENTS, meta) as out:
        recorder = Recorder(zmq, replay, topic, out)
        log(
            f"recording {zmq} until " + (f"{duration} are over or Ctrl-C" if duration else "Ctrl-C")
        )
        passed_ns = stopwatch()
        with progress("events") as tick:
            heard = recorder.run(lambda: stopped() is not None or passed_ns() >= max_ns, tick)
        if not heard.messages:
            advice = "check that the engine publishes there and serves requests"
            raise TraceError(
                f"no message came from {zmq} in {passed_ns() / NS_PER_S:.0f} s: {advice}"
            )
        notes = notes_of(heard, recorder.rows.unknown)
        out.update(notes=notes, stats=msgspec.to_builtins(heard))
    for note in notes:
        log(f"note: {note}")
    if as_json:
        emit_json({"file": str(output), **msgspec.to_builtins(heard)})
        return
    counts = f"{counted(heard.events, 'event')} in {counted(heard.messages, 'message')}"
    typer.echo(
        f"{output}: {counts}, {format_count(heard.lost)} lost, {format_count(heard.replayed)}"
        " replayed"
    )


def info(file: TraceFile, as_json: AsJson = False) -> None:
    """Print the contents of a trace: rows, span, operations, bytes, live bytes and hit rates.

    Operations and bytes are counted by tier, op and phase.

    \b
    kvtrace info t.parquet
    kvtrace info t.parquet --json | jq .tiers
    kvtrace info s3://traces/day/
    """
    from kvtrace.trace.inventory import document, take

    reader = open_table(file, TRACE)
    with progress("reading", reader.meta.rows) as tick:
        inventory = take(reader, tick)
    name = given_path(file)
    result = {"file": name, "metadata": reader.meta, **inventory}
    answer(result, lambda: document(name, reader.meta, inventory), as_json=as_json)


def validate(file: TraceFile, as_json: AsJson = False) -> None:
    """Check a trace: reads find live objects, capacities hold, time and stages never go back.

    If an objects table lies beside the trace, it must list every object with its size and kind.
    The files of a dataset must be those that its manifest lists.
    Exits with 0, or with 3 and the first invalid row.

    \b
    kvtrace validate t.parquet
    """
    from kvtrace.trace.inventory import check

    reader = open_table(file, TRACE)
    with progress("validating", reader.meta.rows) as tick:
        ledger, has_table = check(reader, tick)
    if as_json:
        counts = {"rows": ledger.rows, "objects": ledger.objects, "has_objects_table": has_table}
        emit_json({"file": given_path(file), "is_valid": True, **counts})
    else:
        note = "" if has_table else "; no objects table beside it"
        holds = f"{counted(ledger.rows, 'row')}, {counted(ledger.objects, 'object')}"
        typer.echo(f"{printable(given_path(file))}: valid, {holds}{note}")


def models(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A model, or a path to a config.json; without it, all.",
            autocompletion=completion.models,
        ),
    ] = None,
    tensor_parallel: int = option("Tensor-parallel ranks.", 1, "--tp", min=1, max=1024),
    kv_dtype: str | None = option(
        "Dtype of the cache: fp32, fp16, bf16, fp8, int8, nvfp4, fp8_ds_mla."
    ),
    tokens: int = option("Tokens of the prefix to store and read.", 8192),
    chunk: int = option("Tokens a chunk.", 256),
    page: str = option("Pad each object to pages of this size, such as 4KiB.", "1B"),
    memory: str | None = option("Say how long a request fits into so much memory, such as 80GiB."),
    as_json: AsJson = False,
) -> None:
    """List the models, or print how many bytes one of them stores and reads, line by line.

    \b
    kvtrace models
    kvtrace models llama3.1-70b-instruct --tp 8
    kvtrace models gpt-oss-120b --tokens 100000 --chunk 16 --page 4KiB
    kvtrace models ./config.json --kv-dtype fp8 --memory 80GiB
    """
    from kvtrace.llm import catalogue

    if model is None:
        listing = catalogue.listing()
        answer({"models": listing}, lambda: catalogue.listing_document(listing), as_json=as_json)
    else:
        description = catalogue.describe_model(
            model,
            kv_dtype,
            tensor_parallel,
            tokens,
            chunk,
            parse_bytes(page),
            None if memory is None else parse_bytes(memory),
        )
        answer(description, lambda: catalogue.document(description), as_json=as_json)


def presets(
    preset: Annotated[
        str | None,
        typer.Argument(
            help="One of the presets; without it, all.",
            metavar="NAME",
            autocompletion=completion.presets,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the presets and the engines they imitate, or print every knob of one preset.

    A knob has a value, a type, a range and a meaning.

    \b
    kvtrace presets
    kvtrace presets vllm-fs
    kvtrace gen --preset vllm-fs --set tiers.cpu.capacity=64GiB -o t.parquet
    """
    from kvtrace.sim.presets.preset import description_of, knobs_of, listing, load_basis

    if preset is None:
        rows = listing()
        columns = [
            ReportColumn("name", "preset"),
            ReportColumn("engine"),
            ReportColumn("version"),
            ReportColumn("description", "what it is"),
        ]
        notes = ["kvtrace presets NAME: its knobs, and what was run beside it"]
        chapter = Chapter("", [table_of("presets", Sheet.SUMMARY, columns, rows)], notes)
        answer({"presets": rows}, lambda: Document("", "", [chapter]), as_json=as_json)
        return
    knobs, facts = knobs_of(preset), {"name": preset, "description": description_of(preset)}
    facts |= {"basis": msgspec.to_builtins(load_basis(preset))}
    answer({**facts, "knobs": knobs}, lambda: _document(facts, knobs), as_json=as_json)


def _document(facts: JsonObject, knobs: list[Knob]) -> Document:
    rows = []
    for k in knobs:
        kind = k.type if k.least is None else f"{k.type}, {k.least:,} to {k.most:,}"
        kind, meaning = fill(kind, 32, break_on_hyphens=False), fill(k.meaning, 64)
        rows.append([k.name, as_text(k.value), as_text(k.default), kind, meaning])
    tables = [
        table_of(
            "knobs, for --set KNOB=VALUE",
            Sheet.SUMMARY,
            [
                ReportColumn("knob"),
                ReportColumn("value"),
                ReportColumn("default"),
                ReportColumn("type"),
                ReportColumn("meaning"),
            ],
            rows,
        )
    ]
    basis, notes = facts["basis"], []
    if basis is not None:
        notes = [f"imitates {basis['engine']} {basis['version']}, read: {basis['read']}"]
        notes += [f"executed: {' '.join(basis['executed'].split())}"]
    return Document(facts["name"], facts["description"], [Chapter("", tables, notes)])
