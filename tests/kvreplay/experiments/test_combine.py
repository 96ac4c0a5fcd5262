"""Ranks taken together, worked by hand from Rules.md 6.3.4."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from conftest import run_cli
from phrases import pattern, shows

from kvreplay.experiments.mlperf_result import (
    READ_P95,
    READ_RATE,
    WRITE_P95,
    WRITE_RATE,
    Client,
    MlperfTrial,
    result_of,
)
from kvreplay.experiments.mlperf_rules import OPTIONS, Kept, Rule
from kvreplay.experiments.mlperf_submit import combine
from kvtrace.core.errors import ConfigError
from kvtrace.core.files import write_json
from kvtrace.core.run.figures import Criterion

READ = [(1.0, 80.0), (3.0, 60.0)], [(10.0, 20.0), (20.0, 90.0)]
"""Of two ranks, two trials each: GiB/s, P95 in ms."""


def criterion(verdict: str, measured: float | None, name: str = "storage_read_p95_ns") -> Criterion:
    return Criterion(
        name=name,
        threshold=200,
        measured=measured,
        verdict=verdict,
        definition="",
        shown=f"{measured}",
    )


def trial(
    number: int, read: tuple[float | None, float | None], start_s: int = 0, **changed: Any
) -> MlperfTrial:
    row = {
        "Timestamp": f"2026-11-22T08:{number:02}:{start_s:02}+00:00",
        "Elapsed Time (s)": 30.0,
        READ_RATE: read[0],
        WRITE_RATE: 0.5,
        READ_P95: read[1],
        WRITE_P95: 100.0 + number,
        "Storage Throughput (tok/s)": 7.0,
        "Tier Storage KV Bytes Read (GiB)": 1.0,
    }
    known = {"run": f"trials/trial-{number}", "status": "complete", "row": row, "summary": {},
             "criteria": [criterion("pass", 5.0)]}  # fmt: skip
    return MlperfTrial(**known | changed)


def write_rank(folder: Any, rank: int, trials: list[MlperfTrial], **changed: Any) -> Any:
    rule = Rule(rule="trials", reference="6.3.2.1", kept=Kept.YES, detail="2")
    fields = {"argv": [], "option": OPTIONS[0].name, "workload": "w", "seed_base": 42, "asked_trials": 2,
              "runtime_ns": 30 * 10**9, "queue_depth": 200, "rules": [rule], "space": ["s"], "trace": "t"}  # fmt: skip
    client = Client(rank=rank, seed=42 + rank, target="/mnt", capacity_bytes=1, trials=trials)
    folder.mkdir()
    write_json(folder / "mlperf.json", result_of(fields | changed, [client], 1, has_memory=False))
    return folder


@pytest.fixture
def ranks(tmp_path):
    return [
        write_rank(
            tmp_path / f"rank-{rank}",
            rank,
            [trial(at + 1, read, start_s=rank) for at, read in enumerate(of)],
        )
        for rank, of in enumerate(READ)
    ]


def test_bandwidths_add_up_per_trial_and_p95_is_the_greatest(ranks):
    (found,) = combine(ranks, [])
    together = found.aggregated
    # Trial 1: 1 + 10; trial 2: 3 + 20; the mean of 11 and 23.
    assert together.aggregated_read_bandwidth_gbps == 17
    assert together.aggregated_write_bandwidth_gbps == 1
    assert together.aggregated_storage_throughput_tokens_per_sec == 14
    assert (together.aggregated_total_read_p95_ms, together.aggregated_total_write_p95_ms) == (
        90,
        102,
    )
    assert together.aggregated_device_read_p95_ms is None
    assert (together.rank_count, together.trial_count, together.partial_failure) == (2, 2, False)
    # 18 GiB/s in decimal units.
    assert shows(
        found.answer,
        "v3-8b-stress: 19.3 GB/s … 18.3 GB/s read, 1.07 GB/s written … read P95 90.0 ms, write P95 102 ms … 2 trials … 2 ranks",
    )
    kept = {rule.rule: rule.kept for rule in found.rules}
    assert kept == {
        "trials": Kept.YES, "each client has its own rank": Kept.YES, "ranks ran at the same time": Kept.YES
    }  # fmt: skip


def test_the_worst_trial_of_all_ranks_decides_a_criterion(tmp_path):
    bad = trial(
        2, (1.0, 1.0), criteria=[criterion("fail", 300.0), criterion("pass", 1.0, "cpu_p95_ns")]
    )
    ranks = [
        write_rank(tmp_path / "a", 0, [trial(1, (1.0, 1.0)), trial(2, (1.0, 1.0))]),
        write_rank(tmp_path / "b", 1, [trial(1, (1.0, 1.0)), bad]),
    ]
    (found,) = combine(ranks, [])
    assert [(c.name, c.verdict, c.measured) for c in found.criteria] == [
        ("storage_read_p95_ns", "fail", 300)
    ]
    # They are the program's, not the rules': no part of the answer.
    assert "criteria" not in found.answer


def test_what_one_trial_does_not_know_nobody_knows(tmp_path):
    ranks = [
        write_rank(tmp_path / "a", 0, [trial(1, (1.0, None)), trial(2, (None, 1.0))]),
        write_rank(
            tmp_path / "b", 1, [trial(1, (1.0, 1.0)), trial(2, (1.0, 1.0), status="partial")]
        ),
    ]
    (found,) = combine(ranks, [])
    together = found.aggregated
    assert (together.aggregated_read_bandwidth_gbps, together.aggregated_total_read_p95_ms) == (
        None,
        None,
    )
    assert (found.status, together.missing_files) == ("partial", ["rank 1, trial 2"])
    assert "read P95 unknown" in found.answer
    assert "rank 1, trial 2" in found.answer


def test_ranks_that_ran_one_after_the_other_are_marked(tmp_path):
    ranks = [
        write_rank(tmp_path / "a", 0, [trial(1, (1.0, 1.0)), trial(2, (1.0, 1.0))]),
        write_rank(tmp_path / "b", 0, [trial(1, (1.0, 1.0)), trial(2, (1.0, 1.0), start_s=15)]),
    ]
    (found,) = combine(ranks, [])
    # 15 of 30 s; and both say that they are rank 0.
    assert shows(found.mark, "submission: rank 0 … 50%")
    assert found.answer.endswith(found.mark)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"option": "v3-70b"}, "v3-70b"),
        ({"seed_base": 7}, "seed 7 … 42"),
        ({"asked_trials": 3}, "trials 3 … 2"),
        ({"runtime_ns": 1}, "1 … 30000000000"),
    ],
)
def test_ranks_of_different_runs_are_refused(ranks, tmp_path, changed, said):
    other = write_rank(
        tmp_path / "other", 2, [trial(1, (1.0, 1.0)), trial(2, (1.0, 1.0))], **changed
    )
    with pytest.raises(ConfigError, match=pattern(said)):
        combine([*ranks, other], [])


def test_combine_writes_three_forms_and_refuses_in_one_line(ranks, tmp_path):
    done = run_cli("kvreplay", "mlperf", "combine", *ranks, "-o", tmp_path / "all")
    assert done.stdout.startswith("v3-8b-stress: 19.3 GB/s")
    kept = msgspec.json.decode((tmp_path / "all" / "mlperf.json").read_bytes())
    assert kept["aggregated"]["aggregated_read_bandwidth_gbps"] == 17
    header, *rows = [
        line.split(",") for line in (tmp_path / "all" / "mlperf.csv").read_text().splitlines()
    ]
    at = header.index(READ_RATE)
    assert [row[at] for row in rows] == ["1.0", "3.0", "10.0", "20.0", "17.0"]
    assert (tmp_path / "all" / "mlperf.xlsx").is_file()
    for folders, code, said in (
        ([ranks[0]], 2, "two ranks"),
        ([ranks[0], ranks[0]], 2, "twice"),
        ([ranks[0], tmp_path], 2, "all … rank-0 … v3-8b-stress"),
        ([ranks[0], ranks[0].parent / "none"], 3, "no mlperf.json"),
    ):
        refused = run_cli(
            "kvreplay", "mlperf", "combine", *folders, "-o", tmp_path / "no", check=False
        )
        assert (refused.returncode, refused.stderr.count("\n")) == (code, 1), refused.stderr
        assert shows(refused.stderr, said)
        assert not (tmp_path / "no").exists()
