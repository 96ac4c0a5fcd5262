"""Streams of writes.

Hand-worked, and beside plain Python whatever the preset and however often buffers are flushed.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import ONE_BYTE, kvtrace, mlperf_of, preset_of, requests_of
from stream_oracle import streams_of
from test_oracle import SEMANTICS, request_lists, rich_presets
from whole import read_table

from kvtrace.core.errors import ConfigError
from kvtrace.core.schema import TRACE
from kvtrace.core.tables import open_table
from kvtrace.llm.catalogue import find_model
from kvtrace.sim.output import StreamLabels, trace_batch
from kvtrace.sim.presets.preset import load_preset
from kvtrace.sim.presets.tier import Streams
from kvtrace.sim.simulation import Load, Simulation

S = 10**9


def labelled(preset, load, model=ONE_BYTE, *, ranks=1, rows=4096):
    """Return the rows of a simulation, the stream of each, what each tier counted, and the request
    log.
    """
    simulation = Simulation(preset, model, load, ranks=ranks, rows=rows)
    labels, batches, logs, other = StreamLabels(simulation), [], [], []

    def sink(flush):
        batches.append(trace_batch(flush.rows | {"stream": labels.label(flush)}, ("stream",)))
        logs.extend(flush.log.tolist())
        other.extend(
            np.zeros(len(flush.object_bytes), int) if flush.is_other is None else flush.is_other
        )

    simulation.run(sink)
    table = pa.Table.from_batches(batches).drop_columns("offset_bytes").to_pydict()
    streams = table.pop("stream")
    return simulation, list(zip(*table.values(), strict=True)), streams, labels, logs, other


def with_streams(preset, *streams, count=8):
    tiers = [
        msgspec.structs.replace(tier, streams=of, stream_count=count)
        for tier, of in zip(preset.tiers, streams, strict=True)
    ]
    return msgspec.structs.replace(preset, tiers=tuple(tiers))


@pytest.mark.parametrize("semantics", SEMANTICS, ids="-".join)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_every_stream_is_what_plain_python_says(semantics, data):
    preset, requests = data.draw(rich_presets(semantics)), data.draw(request_lists())
    count = len(requests)
    # Times of seconds and minutes, so that objects come to be of any age.
    requests = replace(
        requests, arrival_ns=requests.arrival_ns * data.draw(st.sampled_from([1, S, 100 * S]))
    )
    columns = {
        "kind": data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)),
        "qos": data.draw(st.lists(st.integers(-1, 2), min_size=count, max_size=count)),
        "session_id": data.draw(st.lists(st.integers(-1, 20), min_size=count, max_size=count)),
    }
    requests = replace(
        requests, **{name: np.array(values, dtype=np.int64) for name, values in columns.items()}
    )
    drawn = [data.draw(st.sampled_from(Streams)) for _ in preset.tiers]
    preset = with_streams(preset, *drawn, count=data.draw(st.sampled_from([1, 2, 8])))
    for room in (4096, 1):
        _, rows, streams, labels, _, _ = labelled(preset, Load(requests=requests), rows=room)
        expected = streams_of(
            preset, rows, lambda column, request: columns[column][request], lambda _key: 0
        )
        assert streams == expected
        tally = Counter()
        for (_, _, tier, _, _, length, *_), stream in zip(rows, expected, strict=True):
            if stream is not None:
                tally[tier, stream] += length
        counted = [msgspec.to_builtins(labels.counts(t) or []) for t in range(len(preset.tiers))]
        assert {
            (t, of["stream"]): of["written_bytes"]
            for t, found in enumerate(counted)
            for of in found
        } == tally


@pytest.mark.parametrize(
    "streams", [Streams.USER_KIND, Streams.QOS, Streams.SESSION, Streams.OBJECT_KIND]
)
@pytest.mark.parametrize(
    "options", [{}, {"prompt_share": 0.5, "rag_share": 0.5}], ids=["alone", "shared"]
)
def test_streams_of_users(streams, options):
    preset = mlperf_of(64 << 20, 256 << 20, 1 << 30)
    preset = msgspec.structs.replace(
        preset, workload=msgspec.structs.replace(preset.workload, **options)
    )
    preset = with_streams(preset, Streams.NONE, streams, streams, count=5)
    load = Load(users=6, seed=3, until_ns=60 * S)
    simulation, rows, found, _, log, other = labelled(preset, load, find_model("tiny-1b"), rows=500)
    names = (
        "arrival_ns",
        "request_id",
        "session_id",
        "turn",
        "input_tokens",
        "output_tokens",
        "qos",
        "kind",
    )
    asked = [dict(zip(names, line, strict=True)) for line in log]
    parts = simulation.sizes.parts
    library = [
        kind for kind, sizes in simulation.library_object_bytes() for _ in range(len(sizes) * parts)
    ]
    kinds = [{"prompt": 1, "document": 2}.get(kind, 0) for kind in library] + other
    expected = streams_of(
        preset, rows, lambda column, request: asked[request][column], kinds.__getitem__
    )
    assert found == expected
    assert len(set(expected)) > 2 or (streams is Streams.OBJECT_KIND and not options)
    # What is moved down serves no request, and keeps its stream.
    assert any(
        row[3] == "demote" and stream is not None for row, stream in zip(rows, found, strict=True)
    )


def test_a_bucket_is_of_a_kind_of_its_own():
    tiers = load_preset(
        "mooncake-store", ["tiers.nvme.streams=object-kind", "tiers.nvme.bucket_objects=2"]
    ).tiers
    preset = msgspec.structs.replace(preset_of(None, None, None), tiers=tiers)
    requests = requests_of([(0, 16, 0, [0, 1, 2, 3]), (60 * S, 16, 0, [4, 5, 6, 7])])
    _, rows, streams, labels, _, _ = labelled(preset, Load(requests=requests))
    on_disk = [stream for row, stream in zip(rows, streams, strict=True) if row[2] == 2]
    assert on_disk == [3] * 4
    assert [stream.holds for stream in labels.counts(2)] == ["bucket"]


def test_ages_go_by_the_first_write_anywhere():
    preset = with_streams(preset_of(4, 64), Streams.NONE, Streams.AGE)
    # The second request finds its block below, and writes a new one; the first's is written only
    # once there.
    requests = requests_of([(0, 4, 0, [0]), (20 * S, 8, 0, [0, 1])])
    _, rows, streams, _, _, _ = labelled(preset, Load(requests=requests))
    assert [
        (row[0], row[4], stream)
        for row, stream in zip(rows, streams, strict=True)
        if row[1:3] == ("write", 1)
    ] == [(0, 0, 0), (20 * S, 1, 0)]  # fmt: skip


def test_of_objects_no_more_is_kept_than_streams_go_by():
    preset, held = preset_of(4, 64), {}
    requests = requests_of(
        [(i * S, 400, 0, list(range(100 * i, 100 * i + 100))) for i in range(10)]
    )
    for of in (Streams.PHASE, Streams.AGE):
        *_, labels, _, _ = labelled(with_streams(preset, of, of), Load(requests=requests))
        held[of] = sum(
            each.nbytes for each in vars(labels).values() if isinstance(each, np.ndarray)
        )
    assert held[Streams.PHASE] < 1000 < held[Streams.AGE]


def test_what_the_requests_do_not_say_is_refused():
    requests = requests_of([(0, 4, 0, [0])])
    simulation = Simulation(
        with_streams(preset_of(None), Streams.SESSION), ONE_BYTE, Load(requests=requests)
    )
    with pytest.raises(ConfigError, match=r"tiers.tier0.streams=session.*session_id.*phase, age"):
        StreamLabels(simulation)


def test_a_bucket_belongs_to_no_request():
    with pytest.raises(ConfigError, match="streams=session:"):
        load_preset("mooncake-store", ["tiers.nvme.streams=session"])


def test_gen_writes_the_stream_column_and_its_contents(monkeypatch, tmp_path, capsys):
    out, plain = tmp_path / "s.parquet", tmp_path / "p.parquet"
    options = [
        "--users",
        4,
        "--duration",
        "20s",
        "--model",
        "tiny-1b",
        "--preset",
        "lmcache-disk",
        "--gpu",
        "instant",
    ]
    options += ["--set", "tiers.gpu.capacity=0", "--set", "tiers.cpu.capacity=64MiB"]
    assert kvtrace(monkeypatch, "gen", *options, "-o", plain) == 0
    capsys.readouterr()
    assert (
        kvtrace(monkeypatch, "gen", *options, "--set", "tiers.nvme.streams=user-kind", "-o", out)
        == 0
    )
    assert "nvme: written" in capsys.readouterr().out
    rows, stats = open_table(out, TRACE), open_table(out).meta.stats["tiers"]
    assert rows.extras == ("stream",)
    # Nothing else depends on it.
    with_column = pa.Table.from_batches(rows.batches())
    assert with_column.drop_columns("stream") == read_table(plain, TRACE)
    written = sum(of["written_bytes"] for of in stats[2]["streams"])
    assert written == stats[2]["written_bytes"] > 0
    assert {of["holds"] for of in stats[2]["streams"]} <= {"chatbot", "coding", "document"}
    hierarchy = json.loads(json.dumps(open_table(out).meta.config))["hierarchy"]["tiers"]
    assert [tier.get("streams") for tier in hierarchy] == [None, None, "user-kind"]
    assert kvtrace(monkeypatch, "validate", out) == 0
