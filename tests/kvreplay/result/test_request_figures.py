"""Whole requests.

The time to the first token and the classes of service, against values worked by hand.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import run_cli, trace_batch, trace_meta, write_trace
from phrases import shows
from taken import planned, take
from whole import read_table

from kvreplay.engine.setting import Setting
from kvreplay.plan.pacing import Pacer
from kvreplay.plan.replay_config import Config, Criteria, Targets
from kvreplay.plan.window import compile_window, read_request_table
from kvreplay.result.summarize import NO_RATE, NO_REQUESTS, compute_ns, not_modelled
from kvreplay.tiers.files import FileTier
from kvreplay.tiers.tier import StorageOptions
from kvtrace.core.errors import ConfigError
from kvtrace.core.limit import Limit
from kvtrace.core.metadata import Metadata, describe
from kvtrace.core.metrics.requests import RequestTimes
from kvtrace.core.metrics.warmup import Warmup
from kvtrace.core.schema import REQUESTS, SERVED, TRACE, arrow_schema, enum_array
from kvtrace.core.tables import create, open_table

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.core.run.figures import RequestFigures

MS = 1_000_000
NS_PER_TOKEN = 1000
CONFIG = {
    "hierarchy": {
        "entry": "chunk",
        "chunk_tokens": 256,
        "prefill_ns_per_token": NS_PER_TOKEN,
        "tiers": [],
    }
}
MODEL = {"bytes_per_token": 4, "objects_per_chunk": 2}


def test_what_is_not_loaded_computes_as_the_trace_models_it():
    hierarchy = CONFIG["hierarchy"] | {
        "prefill_attention": [
            {"pair_fs": 2_000_000, "window_tokens": 0, "is_aligned": False},
            {"pair_fs": 500_000, "window_tokens": 100, "is_aligned": False},
        ]
    }
    meta = Metadata(
        table="trace",
        program="kvtrace",
        argv=[],
        config={"hierarchy": hierarchy},
        config_sha256="",
        model=MODEL,
    )
    # 700 tokens of which two chunks are loaded, as two objects each; 300 of which none is; 200 of
    # which more is loaded.
    found = compute_ns(meta, np.array([700, 300, 200]), np.array([4, 0, 2]), np.zeros(3, np.int64))
    by_hand = [
        sum(1000 + 2 * (n + 1) + min(n + 1, 100) / 2 for n in range(first, end))
        for first, end in ((512, 700), (0, 300), (199, 200))  # the last token is computed again
    ]
    assert found.tolist() == pytest.approx(by_hand, abs=1)


@pytest.mark.parametrize(
    ("knob", "value"), [("prefill_ns_per_token", 5), ("prefill_attention", [{"pair_fs": 1}])]
)
def test_either_part_of_a_prompts_time_is_a_model_of_it(knob, value):
    def reason(hierarchy: dict[str, Any]) -> str | None:
        config = {"hierarchy": hierarchy}
        meta = Metadata(
            table="trace", program="kvtrace", argv=[], config=config, config_sha256="", model=MODEL
        )
        return not_modelled(meta, None)

    none = {"entry": "chunk", "prefill_ns_per_token": 0}
    assert (reason(none), reason(none | {knob: value})) == (NO_RATE, NO_REQUESTS)


def row(
    ts: int, op: str, obj: int, request: int, stage: int, *, phase: str = "load", tier: int = 2
) -> Any:
    return (ts, op, tier, phase, obj, 0, 512, request, stage, 0)


# Request 0 loads two chunks of two objects each, 1 none, 2 one from a tier that is not replayed.
ROWS = [
    *(row(0, "read", i, 0, 0) for i in range(4)),
    row(MS, "write", 4, 0, 1, phase="store"),
    row(2 * MS, "write", 5, 1, 0, phase="prefill"),
    row(4 * MS, "read", 6, 2, 0, tier=0),
    row(4 * MS, "read", 7, 2, 0, tier=0),
    row(5 * MS, "write", 8, 2, 1),
]
SUBMITTED = (0, 0, 1, 2, 6, 7, 9)
COMPLETED = (3, 4, 5, 4, 8, 8, 10)


def requests_table(path: Path, *, config: dict[str, Any] = CONFIG) -> Path:
    """Requests 0 to 2 at 0, 1 and 4 ms with 700, 300 and 600 tokens.

    Interactive, batch and no class.
    """
    columns: dict[str, Any] = {
        "arrival_ns": [0, MS, 4 * MS],
        "request_id": [0, 1, 2],
        "session_id": [None] * 3,
        "turn": [0] * 3,
        "input_tokens": [700, 300, 600],
        "output_tokens": [1] * 3,
        "block_ids": [None] * 3,
    }
    schema = arrow_schema(REQUESTS)
    arrays = [
        (
            enum_array(
                REQUESTS, "qos", np.array([0, 2, 0], np.int8), np.array([False, False, True])
            )
            if c.name == "qos"
            else (
                enum_array(REQUESTS, "kind", np.zeros(3, np.int8))
                if c.name == "kind"
                else pa.array(columns[c.name], schema.field(c.name).type)
            )
        )
        for c in REQUESTS.columns
    ]
    with create(path, REQUESTS, describe(REQUESTS, "kvtrace", [], config)) as out:
        out.write(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return path


def setting(tmp_path: Path, pacer: Pacer, **meta: Any) -> tuple[Setting, Any]:
    base = trace_meta()
    fields = {
        "config": CONFIG,
        "config_sha256": describe(TRACE, "", [], CONFIG).config_sha256,
        "model": MODEL,
    } | meta
    trace = tmp_path / "t.parquet"
    with create(
        trace,
        TRACE,
        type(base)(table="trace", program="kvtrace", argv=[], tiers=base.tiers, **fields),
    ) as out:
        out.write(trace_batch(ROWS))
    reader = open_table(trace, TRACE)
    window = compile_window(reader, trace, {2: 1}, Limit())
    asked = read_request_table(requests_table(tmp_path / "r.parquet"), reader.meta)
    tiers = [None, None, FileTier("nvme", tmp_path, StorageOptions())]
    made = Setting(Config(tiers={}), pacer, reader, window, tiers, trace, [], asked)
    return made, planned(
        made,
        submitted_ns=np.array(SUBMITTED) * MS,
        completed_ns=np.array(COMPLETED) * MS,
        outcome=0,
    )


def served(tmp_path: Path, made: Setting, rows: Any) -> list[dict[str, Any]]:
    take(made, rows, tmp_path / "run")
    return read_table(tmp_path / "run" / "requests.parquet", SERVED).to_pylist()


def requests(
    tmp_path: Path, made: Setting, rows: Any, criteria: Criteria | None = None
) -> RequestFigures:
    config = Config(tiers={}, criteria=criteria or Criteria())
    return take(replace(made, config=config), rows, tmp_path / "run").requests


def test_the_first_token_waits_for_loads_and_prefill(tmp_path: Path) -> None:
    found = served(tmp_path, *setting(tmp_path, Pacer()))
    # 700 tokens, 512 of them in the two chunks that were loaded from 0 to 5 ms; 300 that were all
    # computed.
    assert [r["first_token_ns"] for r in found] == [
        5 * MS + 188 * NS_PER_TOKEN,
        300 * NS_PER_TOKEN,
        None,
    ]
    assert [r["qos"] for r in found] == ["interactive", "batch", None]


def test_in_an_open_loop_it_counts_from_the_arrival(tmp_path: Path) -> None:
    made, rows = setting(tmp_path, Pacer(0.5))
    rows["submitted_ns"][:4] += MS
    rows["completed_ns"][:4] += MS
    # The arrival is at 0, 1 ms before the first load was submitted.
    assert served(tmp_path, made, rows)[0]["first_token_ns"] == 6 * MS + 188 * NS_PER_TOKEN


def test_entries_of_a_turn_hold_the_tokens_of_their_bytes(tmp_path: Path) -> None:
    config = {"hierarchy": {**CONFIG["hierarchy"], "entry": "turn"}}
    found = served(tmp_path, *setting(tmp_path, Pacer(), config=config))
    # Four loads of 512 bytes at 4 bytes a token are 512 tokens.
    assert found[0]["first_token_ns"] == 5 * MS + 188 * NS_PER_TOKEN


def test_a_load_that_failed_leaves_it_unknown(tmp_path: Path) -> None:
    made, rows = setting(tmp_path, Pacer())
    rows["outcome"][2] = 1
    assert served(tmp_path, made, rows)[0]["first_token_ns"] is None


def test_classes_are_judged_by_their_targets(tmp_path: Path) -> None:
    made, rows = setting(tmp_path, Pacer())
    criteria = Criteria(qos_batch=Targets("900us", "1s", "1s", "1s"))
    found = requests(tmp_path, made, rows, criteria)
    # In flight: 0 to 5 and 6 to 8 ms; 7 to 8; 9 to 10.
    assert (found.storage.count, found.storage.max_ns, found.storage.p50_ns) == (3, 7 * MS, MS)
    assert [
        (c.qos, c.storage.max_ns, c.share_within_p95_target, c.verdict) for c in found.classes
    ] == [
        ("interactive", 7 * MS, 1.0, "not measured"),
        ("batch", MS, 0.0, "not measured"),
    ]
    assert found.first_token is not None
    assert (found.first_token.count, found.first_token_unknown, found.first_token_reason) == (
        2,
        1,
        None,
    )


def test_an_open_loop_judges_classes_by_response_time(tmp_path: Path) -> None:
    made, rows = setting(tmp_path, Pacer(1.0))
    criteria = Criteria(qos_interactive=Targets("8ms", "1s", "1s", "1s"))
    found = requests(tmp_path, made, rows, criteria)
    # Request 0 is in flight from 0 to 5 and from 6 to 8 ms, its write due at 1 ms; 1 is due at 2,
    # done at 8 ms.
    assert found.response is not None
    assert (found.storage.max_ns, found.response.max_ns) == (7 * MS, 8 * MS)
    assert [
        (c.storage.max_ns, c.response and c.response.max_ns, c.share_within_p95_target)
        for c in found.classes
    ] == [
        (7 * MS, 8 * MS, 1.0),
        (MS, 6 * MS, 1.0),
    ]


def test_a_request_that_did_not_end_has_no_storage_time(tmp_path: Path) -> None:
    made, rows = setting(tmp_path, Pacer())
    rows["outcome"][2] = 1
    found = requests(tmp_path, made, rows)
    assert (
        found.storage.count,
        found.storage.max_ns,
        [c.storage.count for c in found.classes],
    ) == (2, MS, [0, 1])
    assert found.classes[0].share_within_p95_target is None


def test_a_class_with_enough_requests_passes_or_fails() -> None:
    for target, verdict in (("7ms", "pass"), ("6999us", "fail")):
        times = RequestTimes(Criteria(qos_interactive=Targets(target, "1s", "1s", "1s")).targets_ns)
        for _ in range(4):
            times.add(np.full(5, 7 * MS), None, np.full(5, -1), np.zeros(5, np.int8))
        found = times.figures(None, is_open_loop=False)
        assert (found.requests, found.first_token_unknown) == (20, 20)
        assert [(c.storage.p95_ns, c.verdict) for c in found.classes] == [(7 * MS, verdict)]


def test_requests_that_the_warm_up_touches_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, rows = setting(tmp_path, Pacer())
    monkeypatch.setattr(Setting, "warmup", Warmup(rows=5))
    found = requests(tmp_path, made, rows)
    assert (found.requests, [c.qos for c in found.classes]) == (2, ["batch"])


def test_why_there_is_no_first_token_is_said(tmp_path: Path) -> None:
    made, rows = setting(tmp_path, Pacer(), config={}, model=None)
    assert [row["first_token_ns"] for row in served(tmp_path, made, rows)] == [None] * 3
    found = requests(tmp_path, made, rows)
    assert found.first_token_reason is not None
    assert shows(found.first_token_reason, "computing time")


def test_requests_of_another_simulation_are_refused(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.parquet", ROWS)
    other = requests_table(tmp_path / "r.parquet", config={"other": 1})
    with pytest.raises(ConfigError, match="simulation"):
        read_request_table(other, open_table(trace, TRACE).meta)


def test_a_run_says_what_requests_got(tmp_path: Path) -> None:
    gen = [
        "gen",
        "--users",
        "4",
        "--duration",
        "4s",
        "--set",
        f"prefill_ns_per_token={NS_PER_TOKEN}",
    ]
    small = [
        "--model",
        "tiny-1b",
        "--set",
        "tiers.gpu.capacity=0",
        "--set",
        "tiers.cpu.capacity=8GiB",
    ]
    trace, asked = tmp_path / "t.parquet", tmp_path / "r.parquet"
    run_cli("kvtrace", *gen, *small, "-o", trace, "--requests-out", asked)
    targets = [f"--tier={name}=sim:bandwidth=1TB" for name in ("cpu", "nvme")]
    run_cli("kvreplay", "run", trace, *targets, "--requests", asked, "-o", tmp_path / "run")
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    found = manifest["requests"]
    assert (found["first_token_unknown"], found["first_token"]["count"]) == (0, found["requests"])
    # Nothing but simulated tiers: no request has measured storage time, so no class is judged.
    assert {c["verdict"] for c in found["classes"]} == {"not measured"}
