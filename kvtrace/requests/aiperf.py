"""AIPerf's per-request records (`profile_export.jsonl`): what its benchmark sent, a request a line.

`metadata` has the times and the conversation, `metrics` the lengths. Records of the warm-up, and
records without lengths (of requests that failed), are left out with a note.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from kvtrace.requests import requests as reading

_Ns = Annotated[int, msgspec.Meta(ge=0, le=reading.MAX_CLOCK_NS)]


class _Metadata(msgspec.Struct):
    request_start_ns: _Ns
    request_end_ns: _Ns | None = None
    conversation_id: str | None = None
    benchmark_phase: str = "profiling"


class _Tokens(msgspec.Struct):
    value: reading.Count


class _Metrics(msgspec.Struct):
    input_sequence_length: _Tokens | None = None
    output_sequence_length: _Tokens | None = None


class _Record(msgspec.Struct):
    metadata: _Metadata
    metrics: _Metrics


@reading.source(lambda start: start.is_json_with("metadata", "metrics", "request_start_ns"))
def aiperf(path: Path) -> reading.Requests:
    """Read the requests of AIPerf's records at `path`.

    A request arrives when it was sent. Turns of a conversation are in the order of their arrivals.

    Raises:
        TraceError: if a line is no such record, or none has the length of a prompt.
    """
    lines = reading.JsonLines(path, _Record)
    requests = reading.Gathered()
    warm_up = without_length = 0
    for _number, record in lines:
        if record.metadata.benchmark_phase == "warmup":
            warm_up += 1
            continue
        prompt, answer = record.metrics.input_sequence_length, record.metrics.output_sequence_length
        if prompt is None:
            without_length += 1
            continue
        requests.add(
            record.metadata.request_start_ns,
            prompt.value,
            0 if answer is None else answer.value,
            session=record.metadata.conversation_id,
            answered_ns=record.metadata.request_end_ns,
        )
    notes = [
        (
            "records give lengths only: there are no block ids, and prompts share a prefix only within"
            " a conversation"
        )
    ]
    notes += reading.counted(
        (warm_up, "records of the warm-up are left out"),
        (without_length, "records without the length of their prompt are left out"),
    )
    left_out = warm_up + without_length
    return requests.requests("aiperf", path, lines.sha256, 0, notes, records_left_out=left_out)
