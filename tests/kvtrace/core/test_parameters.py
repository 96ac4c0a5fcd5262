"""Errors name the parameter in Python, and the option on the command line."""

from __future__ import annotations

import doctest

import pytest
from conftest import run_cli

import kvtrace as kt
from kvtrace.core import parameters
from kvtrace.core.errors import ConfigError

LOAD = {"preset": "lmcache-disk", "users": 2, "duration": "2s", "model": "tiny-1b"}


def test_the_examples_of_the_module_run():
    assert doctest.testmod(parameters).failed == 0


def test_the_library_names_the_parameter():
    with pytest.raises(ConfigError, match=r"^sample=2: "):
        kt.size(**LOAD, target_hit=0.5, sample=2)
    with pytest.raises(ConfigError, match=r"^target_hit=7: "):
        kt.size(**LOAD, target_hit="7")
    with pytest.raises(ConfigError, match=r"^events=oops"):
        kt.simulate(**LOAD, events=["oops"])


def test_the_command_names_the_option():
    load = ("--preset", "lmcache-disk", "--users", 2, "--duration", "2s", "--model", "tiny-1b")
    for options, message in (
        (("--target-hit", "0.5", "--sample", 2), "--sample 2: "),
        (("--target-hit", "7"), "--target-hit 7: "),
    ):
        done = run_cli("kvtrace", "size", *load, *options, check=False)
        assert (done.returncode, message in done.stderr) == (2, True)


def test_a_parameter_is_named_as_the_command_calls_it(tmp_path):
    out = tmp_path / "t.parquet"
    done = run_cli("kvtrace", "gen", "--duration", "1s", "--rack-nodes", 2, "-o", out, check=False)
    assert "--rack-nodes 2" in done.stderr
    assert parameters.named("tensor_parallel", 2) == "tensor_parallel=2"


def test_a_command_leaves_the_library_as_it_was():
    run_cli("kvtrace", "size", "--sample", 3, "--target-hit", "0.5", check=False)
    assert parameters.named("sample", 3) == "sample=3"
