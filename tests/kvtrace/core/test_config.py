from __future__ import annotations

import msgspec
import pytest
from phrases import shows

from kvtrace.core.config import load_toml, override, sha256, to_struct
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.parameters import named_as_options

TREE = {
    "name": "x",
    "size": 1,
    "deep": {"er": {"value": 2}},
    "tiers": [{"name": "a", "n": 1}, {"name": "b", "n": 2}],
}


def test_overrides_apply_in_order_and_to_a_copy():
    changed = override(
        TREE,
        ["size=5", "deep.er.value=true", "tiers.b.n=7", "tiers.b.n=8", "name=some words", "new=1"],
    )
    assert changed == {
        "name": "some words", "size": 5, "deep": {"er": {"value": True}}, "new": 1,
        "tiers": [{"name": "a", "n": 1}, {"name": "b", "n": 8}],
    }  # fmt: skip
    assert TREE["size"] == 1
    assert TREE["tiers"][1]["n"] == 2


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("1.5", 1.5),
        ('"1"', "1"),
        ("2TiB", "2TiB"),
        ("false", False),
        ("[1, 2]", [1, 2]),
        ("a=b", "a=b"),
        ("", ""),
    ],
)
def test_values_are_toml_else_text(text, value):
    assert override(TREE, [f"size={text}"])["size"] == value


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("size", "KEY=VALUE"), ("=5", "KEY=VALUE"),
        ("tiers.c.n=1", "'c'"),
        ("depth.er=1", "'depth'"), ("tiers.a=1", "tiers"),
        ("size.x=1", "size"), ("size.x.y=1", "'x'"),
        ("a..b=1", "'a'"),
    ],
)  # fmt: skip
def test_what_cannot_be_set_is_named(setting, message):
    with named_as_options(), pytest.raises(ConfigError) as caught:
        override(TREE, [setting])
    assert f"--set {setting}: " in str(caught.value)
    assert shows(str(caught.value), message)


def test_toml_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "a.toml").write_text("x = 1\n[t]\ny = 'é'\n", encoding="utf-8")
    assert load_toml(tmp_path / "a.toml") == {"x": 1, "t": {"y": "é"}}
    (tmp_path / "bad.toml").write_text("x = ")
    (tmp_path / "latin.toml").write_bytes(b"x = '\xe9'")
    for name in ("bad.toml", "latin.toml"):
        with pytest.raises(ConfigError, match=rf"{name}: not valid TOML"):
            load_toml(tmp_path / name)
    with pytest.raises(TraceError, match=r"none.toml:"):
        load_toml(tmp_path / "none.toml")


class Box(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    width: int
    name: str = "box"


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"width": "3"}, "`int` … `str` … `$.width`"),
        ({"width": 3, "hight": 4}, "`hight`"),
        ({}, "`width`"),
    ],
)
def test_what_does_not_fit_is_named(tree, message):
    assert to_struct({"width": 3}, Box, "b.toml") == Box(3)
    with pytest.raises(ConfigError) as caught:
        to_struct(tree, Box, "b.toml")
    assert str(caught.value).startswith("b.toml: ")
    assert shows(str(caught.value), message)


def test_the_hash_is_of_the_content():
    assert sha256({"a": 1, "b": [2]}) == sha256({"b": [2], "a": 1})
    assert sha256({"a": 1}) != sha256({"a": 2})
    assert len(sha256({})) == 64
