"""AIPerf's per-request records (`profile_export.jsonl`): what its benchmark sent, a request a line.

`metadata` has the times and the conversation, `metrics` the lengths. Records of the warm-up, and
records without lengths (of requests that failed), are left out with a note. Where the length of an
answer is missing, it is that of its reasoning and of what came after.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from kvtrace.requests.json_lines import Count, JsonLines
from kvtrace.requests.notes import counted
from kvtrace.requests.request_collector import RequestCollector
from kvtrace.requests.requests import MAX_CLOCK_NS, Requests
from kvtrace.requests.source_files import source

_Ns = Annotated[int, msgspec.Meta(ge=0, le=MAX_CLOCK_NS)]


class _Metadata(msgspec.Struct):
    request_start_ns: _Ns
    request_end_ns: _Ns | None = None
    conversation_id: str | None = None
    benchmark_phase: str = "profiling"


class _Tokens(msgspec.Struct):
    value: Count


class _Metrics(msgspec.Struct):
    input_sequence_length: _Tokens | None = None
    output_sequence_length: _Tokens | None = None
    output_token_count: _Tokens | None = None
    """The answer without its reasoning."""
    reasoning_token_count: _Tokens | None = None

    @property
    def answer_tokens(self) -> int | None:
        """The tokens of the answer; None if nothing says so."""
        parts = [self.output_sequence_length]
        if self.output_sequence_length is None:
            parts = [self.output_token_count, self.reasoning_token_count]
        given = [tokens.value for tokens in parts if tokens is not None]
        return sum(given) if given else None


class _Record(msgspec.Struct):
    metadata: _Metadata
    metrics: _Metrics | None = None
    """Null for a request that failed."""


@source(lambda start: start.has_json_with("metadata", "metrics", "request_start_ns"))
def aiperf(path: Path) -> Requests:
    """Read the requests of AIPerf's records at `path`.

    A request arrives when it was sent. Turns of a conversation are in the order of their arrivals.

    Raises:
        TraceError: if a line is no such record, or none has the length of a prompt.
    """
    lines = JsonLines(path, _Record, may_be_indented=True)
    requests = RequestCollector()
    warm_up = without_length = without_answer = 0
    for _number, record in lines:
        if record.metadata.benchmark_phase.lower() == "warmup":
            warm_up += 1
            continue
        if record.metrics is None or record.metrics.input_sequence_length is None:
            without_length += 1
            continue
        answer_tokens = record.metrics.answer_tokens
        without_answer += answer_tokens is None
        requests.add(
            record.metadata.request_start_ns,
            record.metrics.input_sequence_length.value,
            answer_tokens or 0,
            session=record.metadata.conversation_id,
            answered_ns=record.metadata.request_end_ns,
        )
    notes = [
        (
            "records give lengths only: there are no block ids, and prompts share a prefix only within"
            " a conversation"
        )
    ]
    notes += counted(
        (warm_up, "records of the warm-up are left out"),
        (without_length, "records without the length of their prompt are left out"),
        (without_answer, "records have no length of an answer, which is taken as 0"),
    )
    left_out = warm_up + without_length
    return requests.build_requests(
        "aiperf", path, lines.sha256, 0, notes, records_left_out=left_out
    )
