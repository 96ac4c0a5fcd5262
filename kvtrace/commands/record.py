"""Record: a live engine's KV events into a file."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from kvtrace.commands.options import AsJson
from kvtrace.core.app import emit_json, log, noted_signals, progress
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.units import NS_PER_S, format_count, parse_duration_ns


def record(
    zmq: Annotated[str, typer.Option("--zmq", help="Where the engine publishes, such as tcp://host:5557.")],
    replay: Annotated[
        str | None, typer.Option(help="Its replay socket, to ask for lost messages, such as tcp://host:5558.")
    ] = None,
    topic: Annotated[str, typer.Option(help="Topic prefix.")] = "",
    duration: Annotated[str | None, typer.Option(help="End after this time.  [default: with Ctrl-C]")] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The events table: *.parquet or *.csv.zst.")] = Path(
        "events.parquet"
    ),
    as_json: AsJson = False,
) -> None:
    """Follow the KV events of a live vLLM or SGLang until Ctrl-C, and write them as a table.

    vLLM publishes them with --kv-events-config '{"enable_kv_cache_events": true, "publisher": "zmq"}'. Blocks are
    numbered; no token is kept. `kvtrace import events.parquet` makes requests of them.

    \b
    kvtrace record --zmq tcp://localhost:5557 -o events.parquet
    kvtrace record --zmq tcp://gpu7:5557 --replay tcp://gpu7:5558 --duration 10m -o events.parquet
    """
    from kvtrace.core.metadata import describe
    from kvtrace.core.schema import EVENTS
    from kvtrace.core.tables import create
    from kvtrace.requests.record import Recorder, notes_of

    limit_ns = None if duration is None else parse_duration_ns(duration)
    if limit_ns == 0:
        raise ConfigError(f"--duration {duration}: must be > 0")
    meta = describe(EVENTS, "kvtrace", ["kvtrace", *sys.argv[1:]], {"zmq": zmq, "replay": replay, "topic": topic})
    with noted_signals() as stopped, create(output, EVENTS, meta) as out:
        recorder = Recorder(zmq, replay, topic, out)
        log(f"recording {zmq} until " + (f"{duration} are over or Ctrl-C" if duration else "Ctrl-C"))
        begin_ns = time.monotonic_ns()

        def is_done() -> bool:
            return stopped() is not None or (limit_ns is not None and time.monotonic_ns() - begin_ns >= limit_ns)

        with progress("events") as tick:
            heard = recorder.run(is_done, tick)
        if not heard.messages:
            waited = (time.monotonic_ns() - begin_ns) / NS_PER_S
            why = "is the engine publishing there, and were there requests?"
            raise TraceError(f"no message came from {zmq} in {waited:.0f} s: {why}")
        notes = notes_of(heard, recorder.rows.unknown)
        out.update(notes=notes, stats=msgspec.to_builtins(heard))
    for note in notes:
        log(f"note: {note}")
    if as_json:
        emit_json({"file": str(output), **msgspec.to_builtins(heard)})
        return
    counts = f"{format_count(heard.events)} events in {format_count(heard.messages)} messages"
    typer.echo(f"{output}: {counts}, {format_count(heard.lost)} lost, {format_count(heard.replayed)} asked for again")
