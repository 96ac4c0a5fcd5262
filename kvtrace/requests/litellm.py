"""LiteLLM's logs of calls: rows of its spend logs, and its standard logging payloads.

A spend log is a row of the proxy's table `LiteLLM_SpendLogs`, or of its API `/spend/logs`. A
standard logging payload is what LiteLLM gives its callbacks, and its loggers for S3, GCS and HTTP
write. Both give lengths and times only:
https://docs.litellm.ai/docs/proxy/logging_spec

A call counts once: rows with the id of an earlier one are left out, and so are calls that failed
(each attempt of a retry has a row), answers from LiteLLM's own cache, which reached no engine, and
calls without a prompt's KV cache, such as embeddings.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

import msgspec

from kvtrace.core.errors import TraceError
from kvtrace.core.json_types import JsonObject
from kvtrace.requests.exported_rows import CountOrFloat, ExportedRows, models_note
from kvtrace.requests.notes import counted
from kvtrace.requests.request_collector import RequestCollector
from kvtrace.requests.requests import Requests, with_history_note
from kvtrace.requests.source_files import source

GENERATING_CALLS: Final = frozenset(
    (
        "completion",
        "text_completion",
        "responses",
        "anthropic_messages",
        "generate_content",
        "generate_content_stream",
    )
)
"""Types of calls that compute a prompt and an answer; a leading `a` is for asynchronous ones."""


class _Row(msgspec.Struct):
    id: str | None = None
    request_id: str | None = None
    """The name of `id` in a spend log."""
    call_type: str | None = None
    status: str | None = None
    cache_hit: bool | str | None = None
    prompt_tokens: CountOrFloat | None = None
    completion_tokens: CountOrFloat | None = None
    total_tokens: CountOrFloat | None = None
    startTime: float | str | None = None  # noqa: N815 - the name in the file
    endTime: float | str | None = None  # noqa: N815 - the name in the file
    session_id: str | None = None
    trace_id: str | None = None
    model: str | None = None
    model_group: str | None = None
    metadata: JsonObject | str | None = None
    data: list[_Row] | None = None

    @property
    def name(self) -> str:
        """The identifier of the call; empty if it has none."""
        return self.request_id or self.id or ""

    @property
    def kind(self) -> str:
        """The type of the call, the same for synchronous and asynchronous ones."""
        call_type = self.call_type or "unnamed"
        sync_type = call_type.removeprefix("a")
        return sync_type if sync_type in GENERATING_CALLS else call_type

    @property
    def is_failure(self) -> bool:
        """Whether the call failed; older spend logs say so in their metadata alone."""
        if self.status is None and isinstance(self.metadata, dict):
            return self.metadata.get("status") == "failure"
        return self.status == "failure"

    @property
    def is_cache_hit(self) -> bool:
        """Whether LiteLLM answered from its own cache; spend logs have the value as text."""
        return str(self.cache_hit).lower() == "true"


_NAMES = ("call_type", "prompt_tokens", "startTime", "completion_tokens")


@source(lambda start: start.has_json_with(*_NAMES) or start.columns.issuperset(_NAMES))
def litellm(path: Path) -> Requests:
    """Read the calls of the LiteLLM log at `path`: JSON lines, an array, or CSV.

    A session is the row's `session_id`, else its `trace_id`, which calls of one request have in
    common.

    Raises:
        TraceError: if a row is not such a call, or none computed a prompt.
    """
    rows = ExportedRows(path, _Row)
    requests = RequestCollector()
    names: set[str] = set()
    models, other_calls, left_out = Counter[str](), Counter[str](), Counter[str]()
    wrong_totals = 0
    for number, row in rows:
        if row.startTime is None or row.call_type is None:
            missing = "startTime" if row.startTime is None else "call_type"
            raise rows.fault(f"missing required field `{missing}`", number, None)
        if row.kind not in GENERATING_CALLS:
            other_calls[row.kind] += 1
        elif row.is_failure:
            left_out["failed"] += 1
        elif row.is_cache_hit:
            left_out["cached"] += 1
        elif row.name and row.name in names:
            left_out["repeated"] += 1
        elif not row.prompt_tokens:
            left_out["without a prompt"] += 1
        else:
            names.add(row.name)
            models[row.model_group or row.model or ""] += 1
            prompt_tokens = rows.count(row.prompt_tokens, number, "prompt_tokens")
            answer_tokens = rows.count(row.completion_tokens, number, "completion_tokens")
            wrong_totals += (row.total_tokens or prompt_tokens + answer_tokens) != (
                prompt_tokens + answer_tokens
            )
            arrival_ns = rows.time_ns(row.startTime, number, "startTime")
            requests.add(
                arrival_ns,
                prompt_tokens,
                answer_tokens,
                session=row.session_id or row.trace_id or None,
                answered_ns=(
                    None if row.endTime is None else rows.time_ns(row.endTime, number, "endTime")
                ),
                row=number,
            )
    omitted = left_out.total() + other_calls.total()
    if not requests:
        raise TraceError(f"none of its {omitted} calls computed a prompt", path=path)
    notes = [
        (
            "rows give lengths only: there are no block ids, and prompts share a prefix only within"
            " a session, whose prompts are assumed to carry its history"
        )
    ]
    if rows.is_page:
        notes.append("the file is one page of an API's answer: other pages, if any, are missing")
    notes += counted(
        (left_out["failed"], "calls that failed, such as attempts before a retry, are left out"),
        (left_out["cached"], "calls that LiteLLM answered from its own cache are left out"),
        (left_out["repeated"], "rows with the id of an earlier row are left out"),
        (left_out["without a prompt"], "calls without the length of their prompt are left out"),
        (wrong_totals, "rows have a total that is not prompt plus completion tokens"),
        *(
            (count, f"calls of type {kind} are left out")
            for kind, count in sorted(other_calls.items())
        ),
    )
    notes += models_note(models)
    facts = {"rows_left_out": omitted, "wrong_totals": wrong_totals}
    return with_history_note(
        requests.build_requests("litellm", path, rows.sha256, 0, notes, **facts)
    )
