"""LMCache's in-process engine is found where 0.5.6 and where 0.5.7 have it."""

import sys
import types

import pytest

from engine_drivers.lmcache_disk import _part


def installed(monkeypatch, *names):
    """Put modules called `names`, and the packages above them, in place of LMCache's."""
    for module in [name for name in sys.modules if name.partition(".")[0] == "lmcache"]:
        monkeypatch.delitem(sys.modules, module)
    for name in names:
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            above = ".".join(parts[:depth])
            if above not in sys.modules:
                module = types.ModuleType(above)
                module.__path__ = []
                monkeypatch.setitem(sys.modules, above, module)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["lmcache.v1.cache_engine"], "lmcache.v1.cache_engine"),
        (
            ["lmcache.v1.config", "lmcache.inprocess.v1.cache_engine"],
            "lmcache.inprocess.v1.cache_engine",
        ),
    ],
)
def test_the_engine_is_found_in_both_layouts(monkeypatch, names, found):
    installed(monkeypatch, *names)
    assert _part("cache_engine").__name__ == found


def test_a_part_that_is_nowhere_is_named(monkeypatch):
    installed(monkeypatch, "lmcache.v1.config")
    with pytest.raises(ModuleNotFoundError, match="cache_engine"):
        _part("cache_engine")
