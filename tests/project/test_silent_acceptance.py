"""Input that means something else than it says is refused or named, never taken in silence."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import pytest
from conftest import run_cli

import kvtrace
from kvreplay.probes.libbpf import Filter
from kvtrace.core.errors import ConfigError

LOG = Path(__file__).parents[2] / "examples" / "conversation.jsonl"


@pytest.mark.parametrize(
    "arguments",
    [
        ("kvtrace", "mrc", LOG, "--policy", "lru", "--policy", "arc"),
        ("kvtrace", "mrc", LOG, "--policy=lru", "--policy=lru"),
        ("kvtrace", "gen", "--users", "1", "--users", "2", "-o", "t.parquet"),
        ("kvtrace", "gen", "-o", "a.parquet", "--output", "b.parquet"),
    ],
)
def test_an_option_of_one_value_is_given_once(tmp_path, arguments):
    done = run_cli(*arguments, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert "2 times" in done.stderr
    assert not list(tmp_path.iterdir())


def test_repeatable_options_are_repeated(tmp_path):
    run_cli(
        "kvtrace", "gen", "--users", "1", "--duration", "1s", "--model", "tiny-1b",
        "--set", "tiers.gpu.capacity=64MiB", "--set", "tiers.cpu.capacity=64MiB", "-o", tmp_path / "t.parquet",
    )  # fmt: skip


@pytest.mark.parametrize(("ranks", "is_right"), [(1, 1), (3, 0), (6, 0), (8, 1), (16, 1), (12, 0)])
def test_ranks_divide_the_heads_or_replicate_them(ranks, is_right):
    """Llama 3.1 8B has 8 key-value heads."""
    model = kvtrace.model("llama3.1-8b")
    if is_right:
        assert model.bytes_per_token_per_rank(ranks) == 131_072 // min(ranks, 8)
        return
    with pytest.raises(ConfigError, match="1, 2, 4, 8"):
        model.bytes_per_token_per_rank(ranks)
    done = run_cli("kvtrace", "models", "llama3.1-8b", "--tp", ranks, check=False)
    assert done.returncode == 2
    assert f"--tp {ranks}" in done.stderr


@pytest.mark.parametrize("text", ["", "\n", " ;\n"])
def test_sql_without_a_statement_is_no_success(tmp_path, monkeypatch, text):
    run_cli(
        "kvtrace", "gen", "--users", "1", "--duration", "1s", "--model", "tiny-1b", "-o", tmp_path / "t.parquet"
    )  # fmt: skip
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    done = run_cli("kvdistill", "sql", tmp_path / "t.parquet", check=False)
    assert done.returncode == 2
    assert "statement" in done.stderr


def test_a_probe_knows_whether_a_name_runs():
    own = (Path("/proc/self/task") / str(threading.get_native_id()) / "comm").read_text().strip()
    assert Filter(comm=own).is_running()
    assert not Filter(comm="no-such-name").is_running()
