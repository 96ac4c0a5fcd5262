"""The help of commands: every option in one place, the common ones first."""

from __future__ import annotations

import importlib
import re

import pytest
import typer.main
from conftest import run_cli

from kvtrace.core.app import SECTIONS

PROGRAMS = ("kvtrace", "kvreplay", "kvdistill")


def commands():
    for program in PROGRAMS:
        group = typer.main.get_command(importlib.import_module(f"{program}.cli").app)
        yield from ((program, name, group.get_command(None, name)) for name in group.commands)


def test_each_option_that_a_heading_names_exists():
    named = {f"--{name}" for names in SECTIONS.values() for name in names.split()}
    known = {option for _, _, command in commands() for parameter in command.params for option in parameter.opts}
    assert named <= known


@pytest.mark.parametrize(("program", "name"), [(program, name) for program, name, _ in commands()])
def test_help_lists_every_option_once_and_shows_an_example(program, name):
    text = run_cli(program, name, "--help").stdout
    command = next(c for p, n, c in commands() if (p, n) == (program, name))
    listed = re.findall(r"^  (?:-\w, )?(--[\w-]+)", text.partition("\nOptions:")[2], re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == {
        next(o for o in p.opts if o.startswith("--")) for p in command.params if p.opts[0][0] == "-"
    } | ({"--help"})
    assert f"{program} {name}" in text.partition("\n\n")[2]


def test_the_common_options_come_first():
    text = run_cli("kvreplay", "run", "--help").stdout
    headings = re.findall(r"^(\w+):$", text, re.MULTILINE)
    assert headings == ["Arguments", "Options", "Load", "Limits", "Target", "Data", "Checks", "Probes", "Output"]
    assert text.index("--tier") < text.index("--queue-depth") < text.index("Load:") < text.index("--fsync")
