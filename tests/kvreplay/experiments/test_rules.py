"""Options, rules and names of the benchmark, by themselves: nothing runs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from conftest import ROOT
from phrases import show_each, shows

from kvreplay.experiments.mlperf_result import PLACES, as_summary
from kvreplay.experiments.mlperf_rules import (
    OPTIONS,
    RUNTIME_S,
    Attempt,
    Kept,
    UnderTest,
    mark_of,
    refuse_broken,
    resolve,
    rules_of,
    targets_of,
)
from kvreplay.plan.replay_config import Config
from kvtrace.core.errors import ConfigError
from kvtrace.core.units import NS_PER_S, parse_bytes, parse_duration_ns
from kvtrace.sim.presets.preset import load_preset

PLACE = UnderTest("/mnt/drive", 1000 << 20, frozenset({1}), 2)


def attempt(**changed: Any) -> Attempt:
    config = Config(tiers={"nvme": "/mnt/drive"}, queue_depth=200, runtime="300s")
    known = {"option": OPTIONS[0], "config": config, "place": PLACE, "trials": 3, "runtime_ns": 300 * NS_PER_S,
             "pause_ns": 90 * NS_PER_S}  # fmt: skip
    return Attempt(**known | changed)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_an_option_is_its_preset(option):
    preset = load_preset(option.preset)
    assert (preset.load.model, preset.load.users) == (option.model, option.users)
    assert parse_duration_ns(preset.load.duration) == RUNTIME_S * NS_PER_S
    capacities = {tier.name: tier.capacity for tier in preset.tiers}
    assert capacities["gpu"] == 0
    assert parse_bytes(str(capacities["cpu"])) == option.cpu_gib << 30


def test_options_are_found_by_name_number_and_preset():
    assert [o.number for o in resolve(["v3-8b"])] == [1]
    assert [o.number for o in resolve(["2", "mlperf-v3-70b", "V3-8B-stress"])] == [2, 3, 1]
    assert [o.number for o in resolve(["v3"])] == [1, 2, 3]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["v3-70"], "'v3-70' … v3-70b"),
        (["v3-8b-througput"], "v3-8b-throughput"),
        (["lmcache"], "'lmcache'"),
        (
            ["zzz"],
            ("'zzz' … v3-8b-stress, v3-8b-throughput, v3-70b … v3"),
        ),
        (["v3", "v3-8b"], "v3-8b: v3-8b-stress"),
        ([], "v3-8b-stress, v3-8b-throughput, v3-70b … v3"),
    ],
)
def test_what_is_no_option_is_refused_with_the_nearest(names, said):
    with pytest.raises(ConfigError) as caught:
        resolve(names)
    assert shows(str(caught.value), said)


def test_a_drive_named_as_an_option_gets_its_argument(tmp_path):
    with pytest.raises(ConfigError) as caught:
        resolve(["v3-8b", str(tmp_path)])
    assert f"tiers={{'nvme': '{tmp_path}'}}" in str(caught.value)


def kept(found: Attempt, phrase: str) -> Kept:
    """Return whether the rule that the phrase names is kept."""
    (rule,) = (rule for rule in rules_of(found) if shows(rule.rule, phrase))
    return rule.kept


def test_the_rules_as_they_stand_are_kept_and_nothing_is_marked():
    found = rules_of(attempt())
    assert Kept.NO not in {rule.kept for rule in found}
    assert mark_of(found) is None
    assert kept(attempt(), "all options") is Kept.UNKNOWN
    assert kept(attempt(options=3), "all options") is Kept.YES
    assert kept(attempt(options=3), "pause") is Kept.YES
    refuse_broken(found, is_allowed=False)


@pytest.mark.parametrize(
    ("changed", "rule", "mark"),
    [
        ({"runtime_ns": 5 * NS_PER_S}, "runtime", "5.00 s of 300 s"),
        ({"trials": 1}, "trials", "1 trial … 3"),
        ({"trials": 5}, "trials", "5 trials, not 3"),
        ({"seed_base": 7}, "seed", "seed 7, not 42"),
        (
            {"options": 2, "pause_ns": 0},
            "pause",
            "pause … 0 s … 90.0 s",
        ),
        (
            {"asked_bytes": 8 << 30},
            "storage tier",
            "8.59 GB",
        ),
    ],
)
def test_what_an_option_breaks_is_marked_and_goes_on(changed, rule, mark):
    found = rules_of(attempt(**changed))
    assert show_each([r.rule for r in found if r.kept is Kept.NO], [rule])
    assert shows(mark_of(found), f"not a submission: … {mark}")
    refuse_broken(found, is_allowed=False)


def test_results_on_the_storages_own_filesystem_are_refused():
    found = rules_of(attempt(place=replace(PLACE, results_filesystem=1)))
    with pytest.raises(ConfigError, match=r"6\.4\.1.*--break-rules"):
        refuse_broken(found, is_allowed=False)
    refuse_broken(found, is_allowed=True)
    assert shows(mark_of(found), "not a submission … filesystem")
    # A block device holds no results.
    assert mark_of(rules_of(attempt(place=replace(PLACE, filesystems=None)))) is None


def test_the_storage_tier_is_as_large_as_the_benchmarks():
    assert attempt().capacity_bytes == 950 << 20
    assert attempt(place=replace(PLACE, size_bytes=200 << 20)).capacity_bytes == 190 << 20
    assert attempt(asked_bytes=5).capacity_bytes == 5
    assert attempt(rank=3).seed == 45


def test_the_tiers_are_the_options():
    assert targets_of({"nvme": "/mnt/d"}, OPTIONS[0]) == {"nvme": "/mnt/d"}
    assert targets_of({"nvme": "/mnt/d"}, OPTIONS[1]) == {"nvme": "/mnt/d", "cpu": "ram"}
    for tiers in (
        {},
        {"nvme": "ram"},
        {"nvme": "/mnt/d", "disk": "/x"},
        {"nvme": "/mnt/d", "cpu": "/x"},
    ):
        with pytest.raises(ConfigError, match="--tier"):
            targets_of(tiers, OPTIONS[0])


def test_names_are_those_of_the_benchmarks_export():
    columns = json.loads((ROOT / "tests" / "golden" / "mlperf" / "export.json").read_text())[
        "columns"
    ]
    known = {name: PLACES[name] for name in columns}
    assert known == columns
    # What its JSON has and its export leaves out.
    assert set(PLACES) - set(columns) == {"Gen Latency P99.9 (ms)", "Gen Latency P99.99 (ms)"}
    assert as_summary({"Storage Tier Read Total P95 (ms)": 3.0, "Elapsed Time (s)": 4, "Model": "m"}) == {
        "cache_stats": {"storage_read_p95_ms": 3.0}, "elapsed_time": 4
    }  # fmt: skip
