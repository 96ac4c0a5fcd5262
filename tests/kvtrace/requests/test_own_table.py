"""The requests table as a source.

Out and back exactly, the same trace, faults by row; and `kvtrace import`.
"""

from __future__ import annotations

import json
from dataclasses import fields, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import TRACES, trace_meta
from phrases import shows
from simulated import kvtrace
from whole import read_table

from kvtrace.core.errors import TraceError
from kvtrace.core.metadata import describe
from kvtrace.core.schema import REQUESTS, TRACE
from kvtrace.core.tables import create, open_table
from kvtrace.requests import own_table
from kvtrace.requests.own_table import account
from kvtrace.requests.requests import Requests, batches


def ints(*values):
    return np.array(values, dtype=np.int64)


FULL = Requests(
    arrival_ns=ints(5, 5, 9), input_tokens=ints(8, 3, 4), output_tokens=ints(1, 0, 2),
    block_offsets=ints(0, 2, 2, 3), block_ids=ints(2**52, 0, 7), block_tokens=4,
    origin={"kind": "test", "block_tokens": 4}, notes=("a note",), session_id=ints(4, -1, 2**40), turn=ints(0, -1, 9),
    qos=ints(0, -1, 2), kind=ints(0, 3, 2),
)  # fmt: skip
BARE = replace(
    FULL, block_offsets=ints(0, 0, 0, 0), block_ids=ints(), block_tokens=0, origin={"kind": "bare", "block_tokens": 0},
    session_id=None, turn=None, qos=None, kind=None,
)  # fmt: skip


@pytest.mark.parametrize("suffix", [".parquet", ".csv.zst"])
@pytest.mark.parametrize("requests", [FULL, BARE], ids=["full", "bare"])
def test_requests_come_back_exactly(tmp_path, requests, suffix):
    path = tmp_path / f"r{suffix}"
    own_table.write(path, requests, ["kvtrace", "import"], 42)
    found = own_table.read(path)
    for field in fields(Requests):
        before, after = getattr(requests, field.name), getattr(found, field.name)
        if isinstance(before, np.ndarray):
            assert (after.dtype, after.tolist()) == (before.dtype, before.tolist()), field.name
        elif field.name == "origin":
            assert (after["kind"], after["requests"], after["of"]) == ("requests", 3, before)
        else:
            assert after == before, field.name


def test_ids_of_a_table_behind_two_prefixes_are_renamed(tmp_path):
    path = tmp_path / "r.parquet"
    lengths = {"input_tokens": ints(8, 0, 12), "block_offsets": ints(0, 2, 2, 5)}
    own_table.write(path, replace(FULL, block_ids=ints(1, 2, 3, 2, 9), **lengths), ["kvtrace"], 42)
    requests = own_table.read(path)
    assert len(set(requests.block_ids.tolist())) == 5
    assert requests.origin["rechained_ids"] == 1
    assert shows(requests.notes, "1 block ids … request 2")
    again = Requests.from_arrow(
        requests.to_arrow().select(["arrival_ns", "input_tokens", "output_tokens", "block_ids"]),
        block_tokens=4,
    )
    assert not again.notes
    table = FULL.to_arrow().select(["arrival_ns", "input_tokens", "output_tokens"])
    ids = pa.array([[1, 2], [], [2]], pa.list_(pa.int64()))
    assert shows(
        Requests.from_arrow(table.append_column("block_ids", ids), block_tokens=4).notes,
        "1 block ids … request 2",
    )


@pytest.mark.full
def test_prompts_of_many_blocks_are_in_readable_row_groups(tmp_path):
    # 49,334 requests of coding agents, with 94 million ids, once became one row group that no
    # reader of ours took.
    rows, ids_each = 1 << 10, 20_000
    long = replace(
        BARE, arrival_ns=np.arange(rows), input_tokens=np.full(rows, 4 * ids_each), output_tokens=np.ones(rows, int),
        block_offsets=np.arange(rows + 1) * ids_each, block_ids=np.zeros(rows * ids_each, np.int64), block_tokens=4,
        origin={"kind": "test", "block_tokens": 4},
    )  # fmt: skip
    own_table.write(tmp_path / "long.parquet", long, [], 1)
    footer = pq.ParquetFile(tmp_path / "long.parquet").metadata
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    assert len(groups) == 3
    assert max(group.total_byte_size for group in groups) <= 64 << 20
    assert sum(group.num_rows for group in groups) == rows


def test_what_is_unknown_is_null_in_the_table(tmp_path):
    own_table.write(tmp_path / "f.parquet", FULL, [], 1)
    own_table.write(tmp_path / "b.parquet", BARE, [], 1)
    full, bare = (read_table(tmp_path / name, REQUESTS) for name in ("f.parquet", "b.parquet"))
    assert full["session_id"].to_pylist() == [4, None, 2**40]
    assert full["turn"].to_pylist() == [0, None, 9]
    assert full["qos"].to_pylist() == ["interactive", None, "batch"]
    assert full["kind"].to_pylist() == ["chatbot", "trace", "document"]
    assert full["block_ids"].to_pylist() == [[2**52, 0], [], [7]]
    for name in ("session_id", "turn", "qos", "block_ids"):
        assert bare[name].to_pylist() == [None] * 3
    assert bare["kind"].to_pylist() == ["trace"] * 3


def test_more_rows_than_a_batch_come_back(tmp_path, monkeypatch):
    monkeypatch.setattr("kvtrace.requests.requests.BATCH_ROWS", 2)
    own_table.write(tmp_path / "r.parquet", FULL, [], 1)
    found = own_table.read(tmp_path / "r.parquet")
    assert found.block_ids.tolist() == FULL.block_ids.tolist()
    assert found.block_offsets.tolist() == FULL.block_offsets.tolist()


def write(path, requests, source):
    meta = describe(REQUESTS, "kvtrace", [], {}, source=source)
    with create(path, REQUESTS, meta) as out:
        for batch in batches(requests):
            out.write(batch)
    return path


WITH_BLOCKS = {"block_tokens": 4}


@pytest.mark.parametrize(("changes", "source", "message"), [
    ({"arrival_ns": ints(5, 4, 9)}, WITH_BLOCKS, "row 1, column arrival_ns: 4"),
    ({"arrival_ns": ints(-5, 4, 9)}, WITH_BLOCKS, "row 0, column arrival_ns: -5"),
    ({"arrival_ns": ints(5, 6, 2**62)}, WITH_BLOCKS, "row 2, column arrival_ns: "),
    ({"input_tokens": ints(8, 3, -4)}, WITH_BLOCKS, "row 2, column input_tokens: -4"),
    ({"output_tokens": ints(8, 2**40, 4)}, WITH_BLOCKS, "row 1, column output_tokens: "),
    ({"input_tokens": ints(9, 3, 9)}, WITH_BLOCKS, "row 0, column input_tokens: 9 tokens" ),
    ({"session_id": ints(0, -7, 0)}, WITH_BLOCKS, "row 1, column session_id: -7"),
    ({"kind": ints(0, 1, 1), "turn": ints(0, -3, 0)}, WITH_BLOCKS, "row 1, column turn: -3"),
    ({}, None, "row 0, column block_ids: … block_tokens"),
    ({"block_tokens": 0}, WITH_BLOCKS, "row 0, column block_ids:"),
])  # fmt: skip
def test_tables_that_no_source_makes_are_refused(tmp_path, changes, source, message):
    changed = replace(FULL, **changes)
    if message.startswith("row 0, column input_tokens"):
        changed = replace(changed, block_offsets=ints(0, 1, 2, 3))
    with pytest.raises(TraceError) as caught:
        own_table.read(write(tmp_path / "r.parquet", changed, source))
    assert shows(str(caught.value), message)


def test_other_tables_are_refused(tmp_path):
    with create(tmp_path / "t.parquet", TRACE, trace_meta()):
        pass
    with pytest.raises(TraceError, match=r"'trace'.*'requests'"):
        own_table.read(tmp_path / "t.parquet")
    with create(tmp_path / "r.parquet", REQUESTS, describe(REQUESTS, "kvtrace", [], {})):
        pass
    with pytest.raises(TraceError, match="no request"):
        own_table.read(tmp_path / "r.parquet")


def test_the_account_of_requests():
    times = ints(0, *range(1, 300), 40_000)
    many = Requests(
        arrival_ns=times, input_tokens=np.arange(1, 302), output_tokens=np.zeros(301, dtype=np.int64),
        block_offsets=np.arange(302), block_ids=np.arange(301) % 43, block_tokens=512,
        origin={"failures": 2, "orphans": 0, "unknown_columns": ["Region"]}, notes=(),
        session_id=np.where(np.arange(301) < 100, 5, -1),
    )  # fmt: skip
    found = account(many)
    assert (found["requests"], found["span_ns"], found["requests_per_s"]) == (
        301,
        40_000,
        300 / 40e-6,
    )
    assert found["input_tokens"] == {
        "sum": 45_451,
        "mean": 151.0,
        "p50": 151,
        "p95": 286,
        "max": 301,
    }
    assert (found["block_references"], found["distinct_blocks"], found["block_reuse"]) == (
        301,
        43,
        1 - 43 / 301,
    )
    assert found["conversations"] == 1
    # A mean interval is 133 ns; the last is 39,701.
    assert found["gaps"] == {
        "count": 1,
        "total_ns": 39_701,
        "longest_ns": 39_701,
        "longest_starts_ns": 299,
    }
    assert found["oddities"] == {"failures": 2, "unknown_columns": ["Region"]}
    assert found["nulls"] == {"session_id": 201, "turn": 301, "qos": 301}


def test_the_account_of_one_request_without_blocks():
    one = replace(
        BARE,
        **{f.name: getattr(BARE, f.name)[:1] for f in fields(Requests)[:3]},
        block_offsets=ints(0, 0),
    )
    found = account(one)
    assert (found["span_ns"], found["requests_per_s"], found["block_reuse"]) == (0, None, None)
    assert found["gaps"]["longest_ns"] is None


BAILIAN = [
    {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.0, "input_length": 600, "output_length": 9, "turn": 1,
     "type": "text", "hash_ids": [*range(38)]},
    {"chat_id": 2, "parent_chat_id": 1, "timestamp": 2.0, "input_length": 1000, "output_length": 9, "turn": 2,
     "type": "text", "hash_ids": [*range(37), *range(50, 76)]},
    {"chat_id": 3, "parent_chat_id": -1, "timestamp": 2.5, "input_length": 300, "output_length": 9, "turn": 1,
     "type": "text", "hash_ids": [*range(19)]},
]  # fmt: skip
SOURCES = {
    "mooncake": "".join(
        f'{{"timestamp": {t * 3000}, "input_length": 1100, "output_length": 70, "hash_ids": [1, {t}2, {t}3]}}\n'
        for t in range(1, 4)
    ),
    "bailian": "".join(json.dumps(line) + "\n" for line in BAILIAN),
    "burstgpt": "Timestamp,Session ID,Request tokens,Response tokens\n0,a,700,40\n3,b,300,9\n9,a,1500,40\n9,b,2,0\n",
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 00:00:00,600,1\n2023-11-16 00:00:03.5,900,80\n",
    "sharegpt": json.dumps(
        [{"conversations": [{"from": who, "value": "text " * 700} for who in ("human", "gpt") * 3]}] * 3
    ),
    "agentic": json.dumps({"block_size": 64, "requests": [
        {"t": 0.0, "type": "n", "in": 650, "out": 40, "hash_ids": [*range(10)]},
        {"t": 4.0, "type": "subagent", "requests": [{"t": 5.0, "type": "s", "in": 320, "out": 9,
                                                     "hash_ids": [*range(5)]}]},
        {"t": 9.0, "type": "n", "in": 1280, "out": 40, "hash_ids": [*range(10), *range(20, 30)]},
    ]}),
}  # fmt: skip
NAMES = {"mooncake": "x.jsonl", "bailian": "x.jsonl", "burstgpt": "x.csv", "azure": "x.csv"}


@pytest.mark.star
@pytest.mark.parametrize("preset", ["mlperf", "lmcache-disk"])
@pytest.mark.parametrize("source", SOURCES)
def test_every_sources_table_makes_the_same_valid_trace(tmp_path, monkeypatch, source, preset):
    monkeypatch.chdir(tmp_path)
    name = NAMES.get(source, "x.json")
    (tmp_path / name).write_text(SOURCES[source], encoding="utf-8")
    tiers = [
        f"--set=tiers.{tier}.capacity={size}MiB"
        for tier, size in (("gpu", 90), ("cpu", 150), ("nvme", 300))
    ]
    shaping = ["--cycles", "2", "--time-scale", "0.5"]
    options = ["--tokenizer", "characters"] if source == "sharegpt" else []
    gen = ["--preset", preset, *tiers]
    assert (
        kvtrace(
            monkeypatch,
            "gen",
            name,
            "--source",
            source,
            *gen,
            *shaping,
            *options,
            "-o",
            "a.parquet",
        )
        == 0
    )
    assert kvtrace(monkeypatch, "validate", "a.parquet") == 0
    assert kvtrace(monkeypatch, "import", name, *shaping, *options, "-o", "r.csv.zst") == 0
    assert kvtrace(monkeypatch, "gen", "r.csv.zst", *gen, "-o", "b.parquet") == 0
    rows, again = pq.read_table("a.parquet"), pq.read_table("b.parquet")
    assert rows.num_rows > 2
    assert rows.equals(again)


def test_what_gen_lists_is_what_it_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b.jsonl").write_text(SOURCES["bailian"], encoding="utf-8")
    kvtrace(
        monkeypatch,
        "gen",
        "b.jsonl",
        "--preset",
        "lmcache-disk",
        "--requests-out",
        "o.parquet",
        "-o",
        "t.parquet",
    )
    kvtrace(monkeypatch, "import", "b.jsonl", "-o", "i.parquet")
    listed, imported = (
        read_table(tmp_path / name, REQUESTS) for name in ("o.parquet", "i.parquet")
    )
    assert listed.select(REQUESTS.names).equals(imported)
    assert listed["session_id"].to_pylist() == [0, 0, 1]


def test_synthetic_requests_are_a_source_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    gen = [
        "gen",
        "--users",
        "3",
        "--duration",
        "20s",
        "--requests-out",
        "r.parquet",
        "-o",
        "t.parquet",
    ]
    assert kvtrace(monkeypatch, *gen) == 0
    found = own_table.read(tmp_path / "r.parquet")
    assert len(found) == open_table(tmp_path / "r.parquet", REQUESTS).meta.rows > 3
    assert found.session_id is not None
    assert found.kind is not None
    assert (
        kvtrace(monkeypatch, "gen", "r.parquet", "--preset", "lmcache-disk", "-o", "u.parquet") == 0
    )
    assert kvtrace(monkeypatch, "validate", "u.parquet") == 0


def test_import_reports_in_words_and_in_json(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b.csv").write_text(SOURCES["burstgpt"], encoding="utf-8")
    assert kvtrace(monkeypatch, "import", "b.csv", "-o", "r.parquet") == 0
    shown = capsys.readouterr()
    assert "requests                   3\n" in shown.out
    assert "failures                   1\n" in shown.out
    assert shows(shown.out, "qos … 3 rows … block_ids … 3 rows")
    assert shows(shown.err, "b.csv … --source burstgpt")
    assert "1 failed requests" in shown.err
    assert kvtrace(monkeypatch, "import", "b.csv", "--json", "-o", "r.parquet", "--force") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["requests"], found["conversations"], found["oddities"]) == (3, 2, {"failures": 1})
    meta = open_table(tmp_path / "r.parquet", REQUESTS).meta
    assert (meta.rows, meta.source["kind"], meta.stats["requests"]) == (3, "burstgpt", 3)
    assert shows(meta.notes, "1 failed requests")


@pytest.mark.parametrize(("options", "message"), [
    (["--source", "web"], "'web'"),
    (["--time-unit", "s"], "--time-unit … --source"),
    (["--time-scale", "0"], "time scale(=0)"),
    (["--cycles", "0"], "cycles(=0) … > 0"),
    (["--cycle-ids", "other"], "--cycle-ids other:"),
    (["--cycle-ids", "same"], "--cycle-ids … --cycles … 2"),
    (["--over-limit", "clip"], "--over-limit clip … --max-input-tokens … 8192"),
    (["--over-limit", "cut"], "--over-limit cut:"),
    (["--jitter", "3 ticks"], "unit 'ticks'"),
    (["--max-input-tokens", "5"], "prompt"),
])  # fmt: skip
def test_bad_options_are_one_line_and_leave_nothing(
    tmp_path, monkeypatch, capsys, options, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text(SOURCES["azure"], encoding="utf-8")
    assert kvtrace(monkeypatch, "import", "a.csv", *options, "-o", "r.parquet") == 2
    last = capsys.readouterr().err.strip().split("\n")[-1]
    assert last.startswith("kvtrace: error: ")
    assert shows(last, message)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.csv"]


def test_sim_needs_block_ids(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text(SOURCES["azure"], encoding="utf-8")
    assert kvtrace(monkeypatch, "sim", "a.csv", "--capacity-blocks", "5") == 2
    assert shows(capsys.readouterr().err, "a.csv … block ids")


@pytest.mark.full
@pytest.mark.first(name=1)
@pytest.mark.traces
@pytest.mark.parametrize("name", ["agentic", "azure_2023_code.csv", "burstgpt_sample54.csv"])
def test_real_traces_round_trip(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    gen = ["--preset", "mlperf", "--limit", "200"]
    assert kvtrace(monkeypatch, "gen", TRACES / name, *gen, "-o", "a.parquet") == 0
    assert kvtrace(monkeypatch, "validate", "a.parquet") == 0
    assert kvtrace(monkeypatch, "import", TRACES / name, "-o", "r.parquet") == 0
    assert kvtrace(monkeypatch, "gen", "r.parquet", *gen, "-o", "b.parquet") == 0
    assert pq.read_table("a.parquet").equals(pq.read_table("b.parquet"))


def requests_table(**columns) -> pa.Table:
    """Return a table of two requests, some columns of which are replaced."""
    plain = {"arrival_ns": [0, 1], "input_tokens": [8, 8], "output_tokens": [1, 1]}
    return pa.table(plain | columns)


@pytest.mark.parametrize(
    ("columns", "block_tokens"),
    [
        ({"input_tokens": [8, -1]}, 0),
        ({"output_tokens": [-1, 8]}, 0),
        ({"block_ids": [[0], [-1]]}, 8),
        ({"block_ids": [[1], [1 + 2**62]]}, 8),
    ],
)
def test_a_table_in_memory_with_impossible_values_is_refused(columns, block_tokens):
    with pytest.raises(TraceError, match="table in memory, row"):
        Requests.from_arrow(requests_table(**columns), block_tokens=block_tokens)


def test_requests_without_a_session_are_no_session():
    found = Requests.from_arrow(requests_table(session_id=[-1, 5]))
    assert (found.session_id.tolist(), found.turn.tolist()) == ([-1, 0], [-1, 0])
