"""Numeric options at the ends of their ranges, and one beyond: taken, or one line that names them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from conftest import run_cli, write_trace

from kvreplay.plan.replay_config import MAX_QUEUE_DEPTH, MAX_SEED
from kvtrace.core.app import UsageError
from kvtrace.core.errors import KvError

PROGRAMS = ("kvtrace", "kvreplay", "kvdistill")


def ranged_options() -> Iterator[tuple[str, str, str, int | None, int | None]]:
    """Yield program, command and option, and the least and the most that it takes."""
    for program in PROGRAMS:
        group = typer.main.get_command(importlib.import_module(f"{program}.cli").app)
        for name in group.list_commands(None):
            for parameter in group.get_command(None, name).params:
                if parameter.min is not None or parameter.max is not None:
                    yield program, name, parameter.opts[0], parameter.min, parameter.max


def command_of(program: str, name: str) -> Any:
    return typer.main.get_command(importlib.import_module(f"{program}.cli").app).get_command(
        None, name
    )


def refusal_of(program: str, name: str, option: str, value: object) -> str:
    """Return why a command refuses `option` alone, or what it lacks beside it; empty if it does not."""
    try:
        command_of(program, name).make_context(name, [option, str(value)])
    except UsageError as error:
        return str(error.format_message())
    except KvError:
        # The command itself begins: the output is there already, for example.
        return ""
    return ""


@pytest.mark.parametrize(("program", "name", "option", "least", "most"), list(ranged_options()))
def test_ends_of_a_range_are_taken_and_one_beyond_is_not(program, name, option, least, most):
    for value in {least, most} - {None}:
        assert f"'{option}'" not in refusal_of(program, name, option, value)
    beyond = [end + step for end, step in ((least, -1), (most, 1)) if end is not None]
    for value in [*beyond, "1.5", "1e3", "", "nan"]:
        done = run_cli(program, name, option, value, check=False)
        assert done.returncode == 2
        assert option in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("option", "taken", "refused"),
    [
        ("--queue-depth", [1, MAX_QUEUE_DEPTH], [0, -1, MAX_QUEUE_DEPTH + 1, 2**63, 2**64]),
        (
            "--io-bytes",
            ["4096B", "1MiB"],
            ["0B", "4095B", "4097B", "2GiB"],
        ),
        ("--seed", [0, MAX_SEED], [-1, MAX_SEED + 1, 2**64]),
        ("--speed", ["1e-9", "1e300"], ["0", "-1", "nan", "inf", "-inf", "1e999"]),
        ("--trials", [1, 2], [0, -1, 2**63]),
        ("--limit", [1, 2**62], [0, -1, "1.5", "nan"]),
        ("--warmup", ["1rows"], [0, -1, "-1s", "nan"]),
        ("--stall-timeout", ["0", "1s"], ["-1s", "nan"]),
    ],
)
def test_numbers_of_a_replay_at_their_ends(tmp_path, option, taken, refused):
    rows = [(0, "write", 2, "store", i, 0, 4096, i, 0, 0) for i in range(3)]
    trace = write_trace(tmp_path / "t.parquet", rows)
    words = ("kvreplay", "run", trace, "--tier", "nvme=null")
    speed = ("--speed", "1") if option == "--warmup" else ()
    for number, value in enumerate(taken):
        run_cli(*words, *speed, option, value, "-o", tmp_path / f"taken-{number}")
    for value in refused:
        done = run_cli(*words, option, value, "-o", tmp_path / "refused", check=False)
        assert (done.returncode, value) == (2, value)
        assert option in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert not (tmp_path / "refused").exists()
