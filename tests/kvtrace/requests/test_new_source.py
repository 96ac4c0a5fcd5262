"""A new source of requests is one file and one line of the registry.

Shown by adding one; a new preset is one file.
"""

from __future__ import annotations

import json
import sys
import types

import numpy as np
import pytest
from phrases import shows
from simulated import kvtrace

from kvtrace.core.schema import TRACE
from kvtrace.core.tables import open_table
from kvtrace.requests import registry
from kvtrace.requests.requests import Requests
from kvtrace.sim.presets import preset

TOY_MAGIC = b"toy requests\n"


def read(path):
    """Return the requests of the toy file at `path`.

    After its first line, a request's prompt length a line.
    """
    lengths = np.array([int(line) for line in path.read_bytes().split(b"\n")[1:] if line])
    n = len(lengths)
    none = np.zeros(0, dtype=np.int64)
    origin = {"kind": "toy", "file": path.name, "requests": n, "block_tokens": 0}
    return Requests(
        np.arange(n) * 10**9,
        lengths,
        np.full(n, 8),
        np.zeros(n + 1, dtype=np.int64),
        none,
        0,
        origin,
        (),
    )


def is_own(start):
    return start.text.startswith(TOY_MAGIC)


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """The file and the line: a module `kvtrace.requests.toy`, and a Source in SOURCES."""
    module = types.ModuleType("kvtrace.requests.toy")
    module.read, module.is_own = read, is_own
    monkeypatch.setitem(sys.modules, "kvtrace.requests.toy", module)
    monkeypatch.setitem(registry.SOURCES, "toy", registry.Source("toy"))
    path = tmp_path / "three.toy"
    path.write_bytes(TOY_MAGIC + b"512\n1024\n600\n")
    return path


@pytest.mark.parametrize("said", [["--source", "toy"], []], ids=["named", "known by its start"])
def test_a_new_source_is_simulated(tmp_path, monkeypatch, capsys, toy, said):
    out = tmp_path / "t.parquet"
    assert kvtrace(monkeypatch, "gen", toy, *said, "--model", "tiny-1b", "-o", out, "--json") == 0
    assert json.loads(capsys.readouterr().out)["stats"]["requests"] == 3
    meta = open_table(out, TRACE).meta
    assert meta.source["kind"] == "toy"
    assert meta.rows > 0


def test_a_new_source_refuses_options_that_it_does_not_list(monkeypatch, capsys, toy):
    assert kvtrace(monkeypatch, "gen", toy, "--source", "toy", "--tokenizer", "auto") == 2
    assert shows(capsys.readouterr().err, "--tokenizer … --source")


def test_every_source_has_what_the_registry_calls():
    for source in registry.SOURCES.values():
        module = source.load()
        assert callable(module.read)
        assert callable(module.is_own)


def test_a_new_preset_is_one_file(tmp_path, monkeypatch):
    text = (preset.PRESETS / "mlperf.toml").read_text(encoding="utf-8")
    (tmp_path / "own.toml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(preset, "PRESETS", tmp_path)
    assert preset.preset_names() == ["own"]
    out = tmp_path / "t.parquet"
    options = ["--preset", "own", "--users", 1, "--duration", "2s", "--model", "tiny-1b"]
    assert kvtrace(monkeypatch, "gen", *options, "-o", out) == 0
    assert open_table(out, TRACE).meta.preset == "own"
