"""LiteLLM's and Langfuse's exports: each call counts once, and what is left out is counted.

The rows have the fields, values and encodings of files that LiteLLM 1.110.2 wrote, and of the
exports that Langfuse 3 documents.
"""

import csv
import io
import json

import pytest
from phrases import show_each, shows
from simulated import kvtrace

from kvtrace.core.errors import TraceError
from kvtrace.requests.langfuse import langfuse
from kvtrace.requests.litellm import litellm
from kvtrace.requests.registry import detect

START_S = 1795955283.75


def totals(requests):
    return len(requests), int(requests.input_tokens.sum()), int(requests.output_tokens.sum())


def call(name, second, tokens, *, session="", status="success", hit=None, kind="acompletion"):
    prompt, answer = tokens
    return {
        "id": name,
        "trace_id": session or f"trace of {name}",
        "session_id": "",
        "call_type": kind,
        "status": status,
        "cache_hit": hit,
        "total_tokens": prompt + answer,
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "startTime": START_S + second,
        "endTime": START_S + second + 0.5,
        "model": "llama",
        "messages": [{"role": "user", "content": 'a "quoted",\ntext'}],
    }


CALLS = [
    call("c1", 0, (100, 20), session="s1"),
    call("c2-first-attempt", 1, (0, 0), session="s1", status="failure"),
    call("c2", 2, (140, 30), session="s1"),
    call("c2_cache_hit", 3, (140, 30), session="s1", hit=True),
    call("e1", 4, (10, 0), kind="embedding"),
    call("b1", 5, (9000, 900), kind="aretrieve_batch"),
    call("c2", 6, (140, 30), session="s1"),
    call("c3", 7, (50, 5), kind="text_completion"),
]


def spend_log(payload):
    """The payload as a row of the table of spend logs, with its text for times and booleans."""

    def text(seconds):
        whole, part = divmod(round((seconds - 1795955283) * 10**6), 10**6)
        return f"2026-11-29 12:28:{3 + whole:02}.{part:06}+00:00"

    row = {name: value for name, value in payload.items() if name not in ("id", "trace_id")}
    return row | {
        "request_id": payload["id"],
        "session_id": payload["trace_id"],
        "cache_hit": str(payload["cache_hit"]),
        "startTime": text(payload["startTime"]),
        "endTime": text(payload["endTime"]),
        "messages": "{}",
    }


def written(path, rows, layout):
    """Write `rows` as JSON lines, an array, a page of an API, or CSV."""
    if layout == "csv":
        text = io.StringIO()
        table = csv.DictWriter(text, rows[0], quoting=csv.QUOTE_ALL)
        table.writeheader()
        for row in rows:
            table.writerow(
                {
                    name: value if isinstance(value, str) else json.dumps(value)
                    for name, value in row.items()
                    if value is not None
                }
            )
        path.write_text(text.getvalue())
        return path
    path.write_text(
        {
            "lines": "".join(json.dumps(row) + "\n" for row in rows),
            "array": json.dumps(rows, indent=2),
            "page": json.dumps({"data": rows, "total": len(rows), "page": 1}),
        }[layout]
    )
    return path


@pytest.mark.parametrize("layout", ["lines", "array", "page", "csv"])
@pytest.mark.parametrize("form", ["payload", "spend log"])
def test_litellm_calls_count_once(tmp_path, form, layout):
    rows = CALLS if form == "payload" else [spend_log(row) for row in CALLS]
    path = written(tmp_path / "litellm.log", rows, layout)
    assert detect(path) == "litellm"
    requests = litellm.read(path)
    assert totals(requests) == (3, 290, 55)
    assert requests.arrival_ns.tolist() == [0, 2 * 10**9, 7 * 10**9]
    assert requests.answered_ns.tolist() == [ns + 5 * 10**8 for ns in requests.arrival_ns.tolist()]
    assert requests.session_id.tolist() == [0, 0, 1]
    assert requests.turn.tolist() == [0, 1, 0]
    assert requests.origin["rows_left_out"] == 5
    notes = [note for note in requests.notes if "one page" not in note]
    expected = "no block ids|1 calls … failed|1 calls … own cache|1 rows … earlier row"
    expected += "|1 calls … aretrieve_batch|1 calls … embedding"
    assert show_each(notes, expected.split("|"))
    assert (len(notes) < len(requests.notes)) == (layout == "page")


def test_litellm_rows_that_look_odd_are_named(tmp_path):
    rows = [
        call("c1", 0, (100, 20), session="s"),
        call("c2", 2, (50, 5), session="s") | {"model": "other"},
        call("c3", 3, (50, 5)) | {"total_tokens": 99},
        call("c4", 4, (0, 7)),
        call("c5", 5, (10, 1)) | {"status": None, "metadata": {"status": "failure"}},
    ]
    requests = litellm.read(written(tmp_path / "l.jsonl", rows, "lines"))
    assert totals(requests) == (3, 200, 30)
    assert shows(requests.notes, "1 later prompts … shorter")
    assert shows(requests.notes, "1 rows … total")
    assert shows(requests.notes, "1 calls … length of their prompt")
    assert shows(requests.notes, "1 calls … failed")
    assert shows(requests.notes, "2 models … llama (2), other (1)")


def test_litellm_rows_by_way_of_pandas_and_of_postgres(tmp_path):
    # pandas writes a column with a gap as floats, Postgres the zone of its session.
    rows = [
        call("a", 0, (100.0, 20.0)) | {"startTime": "2026-11-01 10:00:00.25+00"},
        call("b", 0, (50.0, 0))
        | {"startTime": "2026-11-01 11:00:01.25+01:00", "completion_tokens": None},
        call("c", 0, (7, 1)) | {"startTime": "2026-11-01T04:30:02.25-0530"},
    ]
    rows = [row | {"endTime": None} for row in rows]
    requests = litellm.read(written(tmp_path / "l.jsonl", rows, "lines"))
    assert totals(requests) == (3, 157, 21)
    assert requests.arrival_ns.tolist() == [0, 10**9, 2 * 10**9]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"startTime": None}, "row 1.*startTime"),
        ({"prompt_tokens": 1.5}, "row 1.*prompt_tokens"),
        ({"call_type": None}, "row 1.*call_type"),
        ({"startTime": "noon"}, "row 1.*startTime.*noon"),
        ({"startTime": 1e30}, "row 1.*startTime"),
        ({"prompt_tokens": -1}, "prompt_tokens"),
        ({"status": "failure"}, "none of its 1 calls"),
    ],
)
def test_litellm_rows_that_cannot_be_are_refused(tmp_path, change, message):
    path = written(tmp_path / "l.jsonl", [call("c", 0, (1, 1)) | change], "lines")
    with pytest.raises(TraceError, match=message):
        litellm.read(path)


def observation(name, second, usage=None, *, kind="GENERATION", parent=None, session=None):
    """An observation as Langfuse's page exports it."""
    return {
        "id": name,
        "traceId": "t",
        "startTime": f"2026-05-29T13:46:{second:02}.963Z",
        "endTime": f"2026-05-29T13:46:{second + 1:02}.963Z",
        "projectId": "p",
        "parentObservationId": parent,
        "type": kind,
        "sessionId": session,
        "input": 'a "quoted",\ntext',
        "model": "llama",
        "usageDetails": usage,
    }


def usage(prompt, answer, **more):
    return {"input": prompt, "output": answer, "total": prompt + answer + sum(more.values())} | more


OBSERVATIONS = [
    observation("agent", 0, usage(500, 90), kind="AGENT"),
    observation("gateway", 1, usage(100, 20), parent="agent"),
    observation("server", 2, usage(100, 20), parent="gateway"),
    observation("step", 4, kind="SPAN", parent="agent"),
    # 40 tokens of the prompt came from the provider's cache: the prompt has 140.
    observation("second", 5, usage(100, 30, input_cached_tokens=40), parent="step"),
    observation("second", 5, usage(100, 30, input_cached_tokens=40), parent="step"),
    observation("search", 7, usage(9, 0), kind="EMBEDDING", parent="agent"),
    observation("failed", 8, {}, parent="agent"),
]


def snake(row):
    """The observation as the export to blob storage has it; ClickHouse quotes 64-bit integers."""
    names = {
        "traceId": "trace_id",
        "startTime": "start_time",
        "endTime": "end_time",
        "projectId": "project_id",
        "parentObservationId": "parent_observation_id",
        "sessionId": "session_id",
        "model": "provided_model_name",
        "usageDetails": "usage_details",
    }
    found = {names.get(name, name): value for name, value in row.items()}
    for name in ("start_time", "end_time"):
        found[name] = found[name].replace("T", " ").replace("Z", "000")
    counts = found["usage_details"] or {}
    return found | {"usage_details": {kind: str(count) for kind, count in counts.items()}}


def page_csv(row):
    """The observation in the page's CSV, whose times are JSON texts."""
    return row | {name: json.dumps(row[name]) for name in ("startTime", "endTime")}


@pytest.mark.parametrize("layout", ["lines", "array", "page", "csv"])
@pytest.mark.parametrize("form", ["page", "blob storage"])
def test_langfuse_generations_count_once(tmp_path, form, layout):
    change = snake if form == "blob storage" else page_csv if layout == "csv" else dict
    path = written(tmp_path / "export", [change(row) for row in OBSERVATIONS], layout)
    assert detect(path) == "langfuse"
    requests = langfuse.read(path)
    assert totals(requests) == (2, 240, 50)
    assert requests.arrival_ns.tolist() == [0, 3 * 10**9]
    assert requests.answered_ns.tolist() == [10**9, 4 * 10**9]
    assert requests.session_id.tolist() == [0, 0]
    assert requests.origin["observations_left_out"] == 5
    notes = [note for note in requests.notes if "one page" not in note]
    expected = "no block ids|2 generations … no session|1 generations without … tokens"
    expected += "|1 generations enclose|1 embeddings|1 observations of agents"
    expected += "|1 spans and events|1 observations … again|40 input tokens … cache"
    assert show_each(notes, expected.split("|"))


def test_langfuse_sessions_and_older_counts(tmp_path):
    rows = [
        observation("a", 0, session="s") | {"promptTokens": 7, "completionTokens": 3},
        observation("b", 2, session="s") | {"inputUsage": 12, "outputUsage": 4, "traceId": "u"},
        observation("c", 4, usage(5, 5)) | {"unit": "CHARACTERS"},
        observation("d", 5, {"input": 5, "output": 1, "total": 9}, session="s"),
    ]
    requests = langfuse.read(written(tmp_path / "e.json", rows, "array"))
    assert totals(requests) == (3, 24, 8)
    assert requests.session_id.tolist() == [0, 0, 0]
    assert shows(requests.notes, "1 generations … another unit")
    assert shows(requests.notes, "1 generations … total")
    assert shows(requests.notes, "1 later prompts … shorter")


def test_a_poorer_copy_of_an_observation_takes_nothing_away(tmp_path):
    first = observation("a", 0, usage(100, 5), session="s")
    other = observation("b", 2, usage(7, 1), session="s")
    of_characters = observation("a", 0, usage(400, 20)) | {"unit": "CHARACTERS"}
    wrong_total = observation("a", 0, {"input": 9, "output": 1, "total": 99})
    for copy, expected in (
        (observation("a", 0, {}), (2, 107, 6)),
        (of_characters, (2, 107, 6)),
        # Of two copies with tokens the later one counts.
        (observation("a", 0, usage(90, 5), session="s"), (2, 97, 6)),
    ):
        path = written(tmp_path / "e.json", [first, copy, other], "array")
        requests = langfuse.read(path)
        assert totals(requests) == expected
        assert not shows(requests.notes, "no session")
    for copy in (of_characters, wrong_total):
        requests = langfuse.read(written(tmp_path / "e.json", [copy, first, other], "array"))
        assert totals(requests) == (2, 107, 6)
        assert requests.origin["wrong_totals"] == 0
        assert not shows(requests.notes, "another unit")


def test_langfuse_observations_that_enclose_each_other_count(tmp_path):
    rows = [
        observation("a", 0, usage(100, 5), parent="b"),
        observation("b", 2, usage(7, 1), parent="a"),
    ]
    requests = langfuse.read(written(tmp_path / "e.json", rows, "array"))
    assert totals(requests) == (2, 107, 6)
    assert shows(requests.notes, "2 observations enclose each other")


def test_langfuse_traces_and_sums_of_its_older_api(tmp_path):
    old = observation("a", 0) | {
        "usage": {"input": 17, "output": 40, "total": 57, "unit": "TOKENS"}
    }
    other = observation("b", 1) | {"usage": {"input": 9, "output": 9, "unit": "CHARACTERS"}}
    lower = observation("c", 2, usage(3, 2), kind="generation")
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"id": "t", "observations": [old, other, lower]}))
    assert detect(path) == "langfuse"
    requests = langfuse.read(path)
    assert totals(requests) == (2, 20, 42)
    assert shows(requests.notes, "1 generations … another unit")


def test_langfuse_maps_as_clickhouse_writes_them(tmp_path):
    path = tmp_path / "e.csv"
    path.write_text(
        "id,trace_id,type,start_time,end_time,parent_observation_id,usage_details\n"
        "a,t,GENERATION,2026-11-01 10:00:00.000,2026-11-01 10:00:01.000,,\"{'input':17,'output':40}\"\n"
    )
    assert totals(langfuse.read(path)) == (1, 17, 40)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": None}, "row 1.*`id`"),
        ({"startTime": None}, "row 1.*startTime"),
        ({"startTime": "noon"}, "startTime.*noon"),
        ({"usageDetails": {"input": -3}}, "usageDetails.*input"),
        ({"usageDetails": {"input": "many"}}, "usageDetails.*many"),
        ({"type": "SPAN"}, "none of its 1 observations"),
    ],
)
def test_langfuse_rows_that_cannot_be_are_refused(tmp_path, change, message):
    path = written(tmp_path / "e.jsonl", [observation("a", 0, usage(1, 1)) | change], "lines")
    with pytest.raises(TraceError, match=message):
        langfuse.read(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('id,type,traceId,startTime,parentObservationId\n"a",SPAN\n', "line|2 cells"),
        ("id,type,traceId,startTime,parentObservationId\na,SPAN,{x,2026,\n", "row 2.*JSON"),
        (b"id,type,traceId,startTime,parentObservationId\na,\xff,t,2026,\n", "UTF-8"),
    ],
)
def test_a_damaged_csv_is_refused(tmp_path, monkeypatch, capsys, text, message):
    path = tmp_path / "e.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(TraceError, match=message):
        langfuse.read(path)
    assert kvtrace(monkeypatch, "import", path, "-o", tmp_path / "o.parquet") == 3
    assert capsys.readouterr().err.count("error: ") == 1
