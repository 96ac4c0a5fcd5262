"""Exports of real tools: each call counts once, and every layout and encoding is read."""

import json

import pytest
from phrases import shows
from simulated import kvtrace

from kvtrace.core.errors import TraceError
from kvtrace.requests.aiperf import aiperf
from kvtrace.requests.dynamo import SCHEMA, dynamo
from kvtrace.requests.opentelemetry import otel
from kvtrace.requests.registry import detect, read_requests

INPUT, OUTPUT = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"
OLD_INPUT = "gen_ai.usage.prompt_tokens"


def span(number, *, parent=None, operation="chat", tokens=None, start=1, **attributes):
    """A span whose attributes are of the conventions; `tokens` are of the prompt and the answer."""
    values = {"gen_ai.operation.name": operation, **attributes}
    if tokens is not None:
        values |= dict(zip((INPUT, OUTPUT), tokens, strict=False))
    return {
        "traceId": "t",
        "spanId": str(number),
        "parentSpanId": "" if parent is None else str(parent),
        "name": operation,
        "startTimeUnixNano": str(start * 10**9),
        "endTimeUnixNano": str((start + 1) * 10**9),
        "attributes": [
            {"key": key, "value": {"stringValue" if isinstance(value, str) else "intValue": value}}
            for key, value in values.items()
        ],
    }


def named_span(number, name, attributes):
    """A span of a library that does not follow the conventions."""
    return span(number, operation="", **attributes) | {"name": name}


def document(*spans, key="resourceSpans"):
    return {key: [{"scopeSpans": [{"spans": list(spans)}]}]}


def totals(requests):
    return len(requests), int(requests.input_tokens.sum()), int(requests.output_tokens.sum())


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        # The client's span encloses the server's: one call.
        ([span(1, tokens=(17, 40)), span(2, parent=1, tokens=(17, 40))], (1, 17, 40)),
        # The server's span comes first, as spans are exported when they end.
        ([span(2, parent=1, tokens=(17, 40)), span(1, tokens=(17, 40))], (1, 17, 40)),
        # A gateway between them.
        (
            [span(1, tokens=(5, 6)), span(2, parent=1), span(3, parent=2, tokens=(5, 6))],
            (1, 5, 6),
        ),
        # A client that tried twice: two requests reached servers.
        (
            [
                span(1, tokens=(7, 1)),
                span(2, parent=1, tokens=(7, 0)),
                span(3, parent=1, tokens=(7, 1)),
            ],
            (2, 14, 1),
        ),
        # An agent sums its two calls.
        (
            [
                span(1, operation="invoke_agent", tokens=(30, 12)),
                span(2, parent=1, tokens=(10, 4)),
                span(3, parent=1, tokens=(20, 8)),
            ],
            (2, 30, 12),
        ),
        # A tool of a call asks a model itself: both are calls.
        (
            [
                span(1, tokens=(10, 4)),
                span(2, parent=1, operation="execute_tool"),
                span(3, parent=2, tokens=(20, 8)),
            ],
            (2, 30, 12),
        ),
        # Embeddings keep no KV cache.
        ([span(1, tokens=(10, 4)), span(2, operation="embeddings", tokens=(99,))], (1, 10, 4)),
        # The same span exported twice.
        ([span(1, tokens=(10, 4)), span(1, tokens=(10, 4))], (1, 10, 4)),
        # A copy without tokens, before or after, takes none away: 10 + 7. The later count is right.
        (
            [
                *(span(1, tokens=(10, 4)), span(1), span(2, tokens=(7, 1))),
                *(span(3), span(3, tokens=(2, 9)), span(3, tokens=(3, 9))),
            ],
            (3, 20, 14),
        ),
        # OpenLLMetry names the kind of a request beside; OpenInference the kind of a span.
        (
            [
                named_span(1, "openai.chat", {"llm.request.type": "chat", OLD_INPUT: 10}),
                named_span(
                    2, "openai.embeddings", {"llm.request.type": "embedding", OLD_INPUT: 99}
                ),
                named_span(3, "openai.embeddings", {OLD_INPUT: 99}),
            ],
            (1, 10, 0),
        ),
        (
            [
                named_span(1, "run", {"openinference.span.kind": "AGENT", INPUT: 10}),
                named_span(
                    2,
                    "ChatCompletion",
                    {
                        "openinference.span.kind": "LLM",
                        "llm.token_count.prompt": 10,
                        "llm.token_count.completion": 4,
                    },
                ),
            ],
            (1, 10, 4),
        ),
        # A reranker and a search keep no KV cache.
        (
            [
                span(1, tokens=(10, 4)),
                span(2, operation="rerank", tokens=(99,)),
                span(3, operation="retrieval", tokens=(99,)),
            ],
            (1, 10, 4),
        ),
        # The server of an embedding does not say that it is one.
        (
            [
                span(1, operation="embeddings", tokens=(99,)),
                named_span(2, "llm_request", {OLD_INPUT: 99}) | {"parentSpanId": "1"},
                span(3, tokens=(10, 4)),
            ],
            (1, 10, 4),
        ),
        # A call that looks something up meanwhile is a call all the same.
        (
            [
                span(1, tokens=(10, 4)),
                span(2, parent=1, operation="embeddings", tokens=(99,)),
                named_span(3, "llm_request", {OLD_INPUT: 99}) | {"parentSpanId": "2"},
            ],
            (1, 10, 4),
        ),
        # A search that asks a model, whose client streams and so counts no tokens: a call.
        (
            [
                named_span(1, "search", {"openinference.span.kind": "RETRIEVER"}),
                span(2, parent=1),
                named_span(3, "llm_request", {INPUT: 500, OUTPUT: 20}) | {"parentSpanId": "2"},
                span(4, tokens=(10, 4)),
            ],
            (2, 510, 24),
        ),
        # The server that failed counted no prompt: the client's span is the request.
        ([span(1, tokens=(10, 4)), span(2, parent=1, tokens=(0, 0))], (1, 10, 4)),
        # The current name of a count is right, wherever the older one stands.
        (
            [
                named_span(1, "a", {INPUT: 500, OLD_INPUT: 0}),
                named_span(2, "b", {OLD_INPUT: 0, INPUT: 7}),
                named_span(3, "c", {"llm.token_count.prompt": 90, OLD_INPUT: 3}),
            ],
            (3, 510, 0),
        ),
    ],
    ids=[
        "client-and-server",
        "server-first",
        "gateway",
        "retry",
        "agent",
        "tool",
        "embeddings",
        "twice",
        "poorer-copy",
        "openllmetry",
        "openinference",
        "rerank",
        "server-of-embedding",
        "call-with-embedding",
        "search-with-call",
        "failed-server",
        "names",
    ],
)
def test_each_call_of_a_model_counts_once(tmp_path, spans, expected):
    path = tmp_path / "spans.jsonl"
    path.write_text(json.dumps(document(*spans)))
    assert totals(otel.read(path)) == expected


@pytest.mark.parametrize(
    ("spans", "expected", "in_circle"),
    [
        ([span(1, parent=2, tokens=(10, 4)), span(2, parent=1)], (1, 10, 4), 2),
        ([span(1, parent=2, tokens=(10, 4)), span(2, parent=1, tokens=(7, 1))], (2, 17, 5), 2),
        ([span(1, parent=1, tokens=(10, 4))], (1, 10, 4), 1),
        # The call below a circle is the innermost one: its outer one does not count.
        (
            [
                span(3, parent=1, tokens=(10, 4)),
                span(1, parent=2, tokens=(10, 4)),
                span(2, parent=1, tokens=(7, 1)),
            ],
            (2, 17, 5),
            2,
        ),
    ],
    ids=["one-call", "two-calls", "itself", "below"],
)
def test_spans_that_enclose_each_other_count_apart(tmp_path, spans, expected, in_circle):
    path = tmp_path / "spans.json"
    path.write_text(json.dumps(document(*spans)))
    requests = otel.read(path)
    assert totals(requests) == expected
    assert shows(requests.notes, f"{in_circle} spans enclose each other")


def test_a_server_span_inherits_from_its_client(tmp_path):
    path = tmp_path / "spans.jsonl"
    client = span(1, tokens=(17, 40), **{"gen_ai.conversation.id": "c"})
    server = span(2, parent=1, start=2, **{INPUT: 17})
    again = span(3, start=9, tokens=(20, 1), **{"gen_ai.conversation.id": "c"})
    path.write_text(json.dumps(document(client, server, again)))
    requests = otel.read(path)
    assert requests.output_tokens.tolist() == [40, 1]
    assert requests.session_id.tolist() == [0, 0]
    assert requests.arrival_ns.tolist() == [0, 7 * 10**9]


def test_a_server_without_its_parent_is_its_client_s_call(tmp_path):
    # The span of HTTP between client and server is missing.
    client = span(1, tokens=(17, 40), start=10) | {"kind": 3}
    server = span(2, parent="http", tokens=(17, 40), start=10) | {"kind": "SPAN_KIND_SERVER"}
    # Servers of other calls: a longer prompt, a later one, and one of another trace.
    longer = server | span(3, parent="http", tokens=(18, 4), start=10)
    later = server | span(4, parent="http", tokens=(17, 40), start=30)
    elsewhere = server | span(5, parent="http", tokens=(17, 40), start=10) | {"traceId": "u"}
    path = tmp_path / "spans.json"
    path.write_text(json.dumps(document(client, server)))
    requests = otel.read(path)
    assert totals(requests) == (1, 17, 40)
    assert shows(requests.notes, "1 spans of servers without their parent")
    path.write_text(json.dumps(document(client, server, longer, later, elsewhere)))
    assert totals(otel.read(path)) == (4, 69, 124)


def server_span(number, start, seconds, tokens=(500, 20)):
    """A server's span whose parent was not exported."""
    exported = span(number, parent=f"http {number}", tokens=tokens, start=start, operation="")
    end = str((start + seconds) * 10**9)
    return exported | {"name": "llm_request", "kind": 2, "endTimeUnixNano": end}


def client_span(number, start, seconds, tokens=(500, 20), **more):
    exported = span(number, tokens=tokens, start=start, **more) | {"kind": 3}
    return exported | {"endTimeUnixNano": str((start + seconds) * 10**9)}


POST = named_span(9, "POST", {}) | {"parentSpanId": "1", "kind": 3}


@pytest.mark.parametrize(
    ("spans", "expected", "linked"),
    [
        # The client's child is no call, so the client has no server yet.
        ([client_span(1, 1, 9), POST, server_span(2, 2, 5)], (1, 500, 20), 1),
        # The server of the client's request has its parent: the other server is of another call.
        (
            [
                *(client_span(1, 1, 9), POST, server_span(2, 2, 5) | {"parentSpanId": "9"}),
                server_span(3, 3, 2),
            ],
            (2, 1000, 40),
            0,
        ),
        # A gateway and the server behind it, which ends first and so is exported first.
        ([server_span(3, 3, 2), server_span(2, 2, 5), client_span(1, 1, 9)], (1, 500, 20), 2),
        # The first server has the one behind it already.
        (
            [
                *(client_span(1, 1, 9), server_span(2, 2, 5), server_span(4, 4, 1)),
                server_span(3, 3, 2) | {"parentSpanId": "2"},
            ],
            (2, 1000, 40),
            1,
        ),
        # A client that tried again: the servers follow each other, and are two requests.
        ([client_span(1, 1, 9), server_span(2, 2, 1), server_span(3, 5, 1)], (2, 1000, 40), 1),
        # Two clients at once with a gateway and a server each.
        (
            [
                *(client_span(1, 1, 9), server_span(2, 2, 5), server_span(3, 3, 2)),
                *(client_span(4, 1, 19), server_span(5, 12, 5), server_span(6, 13, 2)),
            ],
            (2, 1000, 40),
            4,
        ),
        # The first server ends before its client, which ends before the second server begins.
        (
            [
                *(client_span(1, 1, 20), client_span(4, 1, 3)),
                *(server_span(2, 2, 1), server_span(3, 6, 1)),
            ],
            (2, 1000, 40),
            2,
        ),
        # A client that the server called in the same instant is within the server.
        (
            [
                server_span(2, 2, 5),
                client_span(3, 2, 5, parent=2),
                span(4, start=20, tokens=(7, 1)),
            ],
            (2, 507, 21),
            0,
        ),
        # An agent's sum is of the call below it, whose server this is.
        (
            [
                client_span(1, 1, 6, operation="invoke_agent"),
                client_span(4, 1, 9, parent=1),
                server_span(2, 2, 3),
            ],
            (1, 500, 20),
            1,
        ),
    ],
    ids=[
        *(
            "http",
            "linked-already",
            "gateway",
            "gateway-linked",
            "retry",
            "two-clients",
            "first-to-end",
            "within",
        ),
        "agent",
    ],
)
def test_servers_without_their_parent(tmp_path, spans, expected, linked):
    path = tmp_path / "spans.json"
    path.write_text(json.dumps(document(*spans)))
    requests = otel.read(path)
    assert totals(requests) == expected
    note = "spans of servers without their parent are taken"
    assert shows(requests.notes, f"{linked} {note}" if linked else note) == bool(linked)


def test_servers_of_the_same_times_are_of_two_clients(tmp_path):
    of = "gen_ai.conversation.id"
    clients = [client_span(1, 1, 9, **{of: "a"}), client_span(2, 1, 9, **{of: "b"})]
    servers = [server_span(3, 2, 5), server_span(4, 2, 5)]
    path = tmp_path / "spans.json"
    path.write_text(json.dumps(document(*clients, *servers)))
    requests = otel.read(path)
    assert totals(requests) == (2, 1000, 40)
    assert requests.session_id.tolist() == [0, 1]
    assert shows(requests.notes, "2 spans enclose … call")


def test_servers_that_may_be_counted_twice_are_named(tmp_path):
    # The server counts two tokens more than its client: by another template of the chat.
    client, server = client_span(1, 1, 9, (498, 20)), server_span(2, 2, 5)
    path = tmp_path / "spans.json"
    path.write_text(json.dumps(document(client, server)))
    requests = otel.read(path)
    assert totals(requests) == (2, 998, 40)
    assert shows(requests.notes, "1 spans of servers without their parent … count by themselves")
    # Servers one after the other, as a server alone exports them, are no call of each other.
    path.write_text(json.dumps(document(server, server_span(3, 20, 5))))
    requests = otel.read(path)
    assert totals(requests) == (2, 1000, 40)
    assert not shows(requests.notes, "count by themselves")


def values_of(exported):
    """The attributes of a span of `span` as plain values."""
    return {a["key"]: next(iter(a["value"].values())) for a in exported["attributes"]}


def of_console(exported):
    """The same span as the console exporter of the SDK for Python prints it."""
    start, end = (
        f"1970-01-01T00:00:{int(exported[name]) // 10**9:02}.000000Z"
        for name in ("startTimeUnixNano", "endTimeUnixNano")
    )
    return {
        "name": exported["name"],
        "context": {"trace_id": exported["traceId"], "span_id": exported["spanId"]},
        "kind": "SpanKind.CLIENT",
        "parent_id": exported["parentSpanId"] or None,
        "start_time": start,
        "end_time": end,
        "attributes": values_of(exported),
    }


def of_jaeger(exported):
    """The same span as Jaeger has it, with times in us."""
    start, end = (int(exported[name]) // 1000 for name in ("startTimeUnixNano", "endTimeUnixNano"))
    parent = exported["parentSpanId"]
    return {
        "traceID": exported["traceId"],
        "spanID": exported["spanId"],
        "operationName": exported["name"],
        "references": [{"refType": "CHILD_OF", "traceID": "t", "spanID": parent}] if parent else [],
        "startTime": start,
        "duration": end - start,
        "tags": [{"key": k, "type": "x", "value": v} for k, v in values_of(exported).items()],
    }


@pytest.mark.parametrize(
    "layout",
    [
        *("line", "indented", "batches", "array", "tempo-2", "one-after-the-other"),
        *("jaeger", "console"),
    ],
)
def test_layouts_of_otlp_give_the_same_requests(tmp_path, layout):
    spans = [
        span(1, tokens=(17, 40)),
        span(2, start=5, tokens=(3, 4)),
        span(3, parent=2, start=5, tokens=(3, 4)),
    ]
    path = tmp_path / "spans.json"
    text = {
        "line": json.dumps(document(*spans)),
        "indented": json.dumps(document(*spans), indent=2),
        "batches": json.dumps(document(*spans, key="batches"), indent=2),
        "array": json.dumps([document(spans[0]), document(*spans[1:])], indent=1),
        "tempo-2": json.dumps({"trace": document(*spans)}, indent=2),
        "one-after-the-other": "\n".join(json.dumps(document(one), indent=2) for one in spans),
        "jaeger": json.dumps({"data": [{"traceID": "t", "spans": list(map(of_jaeger, spans))}]}),
        "console": "\n".join(json.dumps(of_console(one), indent=4) for one in spans),
    }[layout]
    path.write_text(text)
    assert detect(path) == "otel"
    requests = otel.read(path)
    assert totals(requests) == (2, 20, 44)
    assert requests.arrival_ns.tolist() == [0, 4 * 10**9]
    assert requests.answered_ns.tolist() == [10**9, 5 * 10**9]


def test_whole_floats_and_null_attributes_of_spans(tmp_path):
    call = span(1, tokens=(17, 40))
    for attribute in call["attributes"][1:]:
        attribute["value"] = {"doubleValue": float(attribute["value"]["intValue"])}
    path = tmp_path / "spans.json"
    path.write_text(json.dumps(document(call, span(2) | {"attributes": None})))
    assert totals(otel.read(path)) == (1, 17, 40)
    call["attributes"][1]["value"] = {"doubleValue": 1.5}
    path.write_text(json.dumps(document(call)))
    with pytest.raises(TraceError, match=r"1\.5 is not a count"):
        otel.read(path)


def test_an_operation_that_no_convention_has_is_named(tmp_path):
    path = tmp_path / "spans.json"
    path.write_text(json.dumps(document(span(1, operation="summarise", tokens=(17, 40)))))
    requests = otel.read(path)
    assert totals(requests) == (1, 17, 40)
    assert shows(requests.notes, "1 spans of operation 'summarise'")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
def test_requests_of_any_encoding_are_equal(tmp_path, encoding):
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    rows = [
        {"timestamp": t, "input_length": 600, "output_length": 8, "hash_ids": [0, t + 1]}
        for t in (0, 1)
    ]
    path = tmp_path / "m.jsonl"
    path.write_text(mark + "".join(json.dumps(row) + "\n" for row in rows), encoding=encoding)
    assert totals(read_requests(path)) == (2, 1200, 16)
    table = tmp_path / "azure.csv"
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"
    table.write_text(mark + text, encoding=encoding)
    assert totals(read_requests(table)) == (1, 4808, 10)


def event(name, *, arrival=None, ended=None, took=None, replay=True):
    request = {"request_id": name, "output_tokens": 4}
    request |= {} if arrival is None else {"request_received_ms": arrival}
    request |= {} if took is None else {"total_time_ms": took}
    blocks = {"trace_block_size": 2, "input_length": 3, "input_sequence_hashes": [11, 12]}
    request |= {"replay": blocks} if replay else {"input_tokens": 100}
    found = {"schema": SCHEMA, "event_type": "request_end", "request": request}
    return found | ({} if ended is None else {"event_time_unix_ms": ended})


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_dynamo_events_are_read_in_their_envelope(tmp_path):
    rows = [event("a", arrival=1000), event("b", arrival=2000)]
    plain = write_lines(tmp_path / "plain.jsonl", rows)
    wrapped = [{"timestamp": 12, "event": row} for row in rows]
    enveloped = write_lines(tmp_path / "enveloped.jsonl", wrapped)
    assert detect(enveloped) == "dynamo"
    both = [dynamo.read(path) for path in (plain, enveloped)]
    assert both[0].arrival_ns.tolist() == both[1].arrival_ns.tolist() == [0, 10**9]
    assert both[0].block_ids.tolist() == both[1].block_ids.tolist()


@pytest.mark.parametrize("layout", ["array", "indented"])
def test_dynamo_events_that_jq_wrote_are_read(tmp_path, layout):
    rows = [event("a", arrival=1000), event("b", arrival=2000)]
    path = tmp_path / "events.json"
    indented = "\n".join(json.dumps(row, indent=2) for row in rows)
    path.write_text(json.dumps(rows) if layout == "array" else indented)
    assert detect(path) == "dynamo"
    assert totals(dynamo.read(path)) == (2, 6, 8)


def test_dynamo_arrivals_follow_from_end_and_duration(tmp_path):
    rows = [
        event("a", arrival=1000),
        event("b", ended=3000, took=500),
        event("c", ended=4000),
        event("d", replay=False, ended=2000),
    ]
    requests = dynamo.read(write_lines(tmp_path / "d.jsonl", rows))
    assert requests.arrival_ns.tolist() == [0, 1500 * 10**6]
    assert requests.origin["requests_left_out"] == 2


def test_a_dynamo_request_that_is_there_twice_counts_once(tmp_path):
    rows = [event("a", arrival=1000), event("b", arrival=1500), event("a", arrival=1000)]
    requests = dynamo.read(write_lines(tmp_path / "d.jsonl", rows))
    assert totals(requests) == (2, 6, 8)
    assert requests.origin["requests_left_out"] == 1
    assert shows(requests.notes, "1 requests … id of an earlier one")


def record(conversation, start_ns, tokens, phase="profiling"):
    lengths = ("input_sequence_length", "output_sequence_length")
    metrics = {
        name: {"value": n, "unit": "tokens"} for name, n in zip(lengths, tokens, strict=False)
    }
    metadata = {
        "request_start_ns": start_ns,
        "request_end_ns": start_ns + 10**9,
        "conversation_id": conversation,
        "benchmark_phase": phase,
    }
    return {"metadata": metadata, "metrics": metrics}


def test_aiperf_records_are_requests(tmp_path, monkeypatch):
    rows = [
        record("w", 1, (9, 9), "warmup"),
        record("a", 10**18, (1048, 332)),
        record("a", 10**18 + 5 * 10**9, (1476, 286)),
        record("b", 10**18 + 7 * 10**9, ()),
    ]
    path = write_lines(tmp_path / "profile_export.jsonl", rows)
    assert detect(path) == "aiperf"
    requests = aiperf.read(path)
    assert totals(requests) == (2, 2524, 618)
    assert requests.arrival_ns.tolist() == [0, 5 * 10**9]
    assert requests.session_id.tolist() == [0, 0]
    assert requests.answered_ns.tolist() == [10**9, 6 * 10**9]
    assert requests.origin["records_left_out"] == 2
    output = tmp_path / "o.parquet"
    assert kvtrace(monkeypatch, "import", str(path), "-o", str(output)) == 0


def test_aiperf_records_of_failures_and_of_reasoning(tmp_path):
    reasoning = record("a", 10**18, (17,))
    counts = {"output_token_count": {"value": 30}, "reasoning_token_count": {"value": 10}}
    reasoning["metrics"] |= counts
    rows = [
        record("w", 10**18, (9, 9), "WARMUP"),
        record("f", 10**18, ()) | {"metrics": None, "error": {"code": 500}},
        reasoning,
        record("b", 10**18, (5,)),
    ]
    requests = aiperf.read(write_lines(tmp_path / "profile_export.jsonl", rows))
    assert totals(requests) == (2, 22, 40)
    assert requests.origin["records_left_out"] == 2
    assert shows(requests.notes, "1 records … no length of an answer")


def test_spans_without_a_call_are_refused(tmp_path):
    path = tmp_path / "spans.jsonl"
    path.write_text(json.dumps(document(span(1, operation="invoke_agent", tokens=(1, 1)))))
    with pytest.raises(TraceError, match="1 spans"):
        otel.read(path)
