"""`kvtrace presets`: what is listed is what the structs say, and `--set` takes it."""

from __future__ import annotations

import json

import pytest
from phrases import Saying, shows
from simulated import kvtrace

from kvtrace.core.config import bounds_of
from kvtrace.core.errors import ConfigError
from kvtrace.requests.users import LoadDefaults, Workload
from kvtrace.sim.presets.preset import (
    Preset,
    as_config,
    knobs_of,
    load_basis,
    load_preset,
    preset_names,
)
from kvtrace.sim.presets.tier import FleetSetting, TierSetting


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_says_what_it_imitates(name):
    basis = load_basis(name)
    assert all((basis.engine, basis.version, basis.read, basis.executed))
    assert "basis" not in as_config(load_preset(name))


@pytest.mark.first(name=6)
@pytest.mark.parametrize("name", preset_names())
def test_every_knob_has_a_meaning_and_is_what_set_takes(name):
    knobs, usual = knobs_of(name), as_config(load_preset(name))
    assert len({knob.name for knob in knobs}) == len(knobs)
    for knob in knobs:
        assert knob.meaning, knob.name
        if isinstance(knob.value, bool | int | float | str) and not isinstance(knob.value, tuple):
            text = str(knob.value).lower() if isinstance(knob.value, bool) else knob.value
            assert as_config(load_preset(name, [f"{knob.name}={text}"])) == usual


_BOUNDS = {
    prefix + field: bounds
    for kind, prefix in ((Preset, ""), (TierSetting, "tiers.nvme."), (Workload, "workload."),
                         (LoadDefaults, "load."), (FleetSetting, "fleet."))
    for field, bounds in bounds_of(kind).items()
    if not bounds.words
}  # fmt: skip


@pytest.mark.parametrize("name", _BOUNDS)
def test_a_range_that_is_shown_is_held(name):
    bounds, field = _BOUNDS[name], name.rpartition(".")[2]
    is_list = field in ("prompt_tokens", "rag_document_tokens")
    is_share = (
        (bounds.minimum, bounds.maximum) == (0, 1) or field.endswith("_weight") or "price" in field
    )
    shown = next(knob for knob in knobs_of("vllm-fs") if knob.name == name)
    assert (shown.least, shown.most) == (bounds.minimum, bounds.maximum)
    for wrong in (bounds.minimum - 1, bounds.maximum + 1):
        said = float(wrong) if is_share else wrong
        with pytest.raises(ConfigError, match=rf"{field}\(={said}\).*{bounds.minimum}"):
            load_preset("vllm-fs", [f"{name}={[wrong, wrong] if is_list else wrong}"])


def test_the_list(monkeypatch, capsys):
    assert kvtrace(monkeypatch, "presets", "--json") == 0
    found = json.loads(capsys.readouterr().out)["presets"]
    assert [preset["name"] for preset in found] == [*preset_names(), "checkpoint"]
    assert next(p for p in found if p["name"] == "lmcache-disk")["version"] == "0.5.6"


def test_the_knobs_of_one(monkeypatch, capsys):
    assert kvtrace(monkeypatch, "presets", "vllm-fs", "--json") == 0
    knobs = {knob["name"]: knob for knob in json.loads(capsys.readouterr().out)["knobs"]}
    assert knobs["chunk_tokens"] == {
        "name": "chunk_tokens", "value": 16, "default": 256, "type": "int", "least": 1, "most": 2**31 - 1,
        "meaning": Saying("chunk … entry=turn"),
    }  # fmt: skip
    assert (knobs["tiers.cpu.capacity"]["value"], knobs["tiers.cpu.capacity"]["type"]) == (
        "128GiB",
        "size",
    )
    assert knobs["promotion"]["type"] == "never | always | second-touch | temporary"
    assert knobs["workload.prompt_tokens"]["type"] == "list"


def test_an_unknown_preset_names_the_nearest(monkeypatch, capsys):
    assert kvtrace(monkeypatch, "presets", "vlm-fs") == 2
    assert shows(capsys.readouterr().err, "preset 'vlm-fs' … vllm-fs")


@pytest.mark.first(name=6)
@pytest.mark.parametrize("name", preset_names())
def test_the_knobs_of_a_preset_are_no_wider_than_a_screen(name, monkeypatch, capsys):
    assert kvtrace(monkeypatch, "presets", name) == 0
    _, table = capsys.readouterr().out.split("--set KNOB=VALUE\n")
    assert max(map(len, table.split("\n\n")[0].splitlines())) <= 180


def test_a_preset_says_what_differs_from_its_base(tmp_path):
    own = tmp_path / "own.toml"
    tiers = '[[tiers]]\nname = "cpu"\ncapacity = "1GiB"\n[[tiers]]\nname = "tape"\n'
    own.write_text(f'base = "lmcache-s3"\nmatch = "prefix"\n{tiers}')
    found, base = load_preset(str(own)), load_preset("lmcache-s3")
    assert [tier.name for tier in found.tiers] == ["gpu", "cpu", "nvme", "s3", "tape"]
    assert (found.match, found.placement, found.tiers[1].capacity_bytes) == (
        "prefix",
        base.placement,
        1 << 30,
    )
    assert found.tiers[1].staging
    assert found.tiers[2:4] == base.tiers[2:4]
    for wrong in ('base = "nothing"', 'base = "mlperf"\ntiers = "nvme"', "base = 1"):
        own.write_text(wrong)
        with pytest.raises(ConfigError, match=r"own\.toml: base:.*kvbm"):
            load_preset(str(own))
