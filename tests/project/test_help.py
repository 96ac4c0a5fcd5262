"""The help of commands: every option in one place, the common ones first."""

from __future__ import annotations

import functools
import importlib
import re

import pytest
import typer.main
from conftest import run_cli

from kvtrace.core.app import SECTIONS

PROGRAMS = ("kvtrace", "kvreplay", "kvdistill")


@functools.cache
def commands():
    groups = [
        (of, typer.main.get_command(importlib.import_module(f"{of}.cli").app)) for of in PROGRAMS
    ]
    return [
        (program, name, group.get_command(None, name))
        for program, group in groups
        for name in group.commands
    ]


def test_each_option_that_a_heading_names_exists():
    named = {f"--{name}" for names in SECTIONS.values() for name in names.split()}
    known = {
        option
        for _, _, command in commands()
        for parameter in command.params
        for option in parameter.opts
    }
    assert named <= known


def test_summaries_are_the_first_paragraphs_of_the_help():
    for program in PROGRAMS:
        group = typer.main.get_command(importlib.import_module(f"{program}.cli").app)
        for name, summary in group.summaries.items():
            paragraph = group.get_command(None, name).help.split("\n\n")[0]
            assert summary == " ".join(paragraph.split())


NAMES = [(program, name) for program, name, _ in commands()]
MOST_COMMON = 18


def flags_in(text):
    return re.findall(r"^  (?:-\w, )?(--[\w-]+)", text.partition("\nOptions:")[2], re.MULTILINE)


@pytest.mark.parametrize(("program", "name"), NAMES)
def test_all_help_lists_every_option_once_and_shows_an_example(program, name):
    text = run_cli(program, name, "--help-all").stdout
    command = next(c for p, n, c in commands() if (p, n) == (program, name))
    listed = flags_in(text)
    assert len(listed) == len(set(listed))
    assert set(listed) == {
        next(o for o in p.opts if o.startswith("--")) for p in command.params if p.opts[0][0] == "-"
    } | {"--help", "--quiet"}
    assert f"{program} {name}" in text.partition("\n\n")[2]


@pytest.mark.parametrize(("program", "name"), NAMES)
def test_help_shows_common_options_and_counts_the_others(program, name):
    text, whole = (run_cli(program, name, flag).stdout for flag in ("--help", "--help-all"))
    listed, others = flags_in(text), re.search(r"Also show (\d+) more options", text)
    assert len(listed) <= MOST_COMMON
    assert len(flags_in(whole)) == len(listed) + (int(others[1]) - 1 if others else 0)
    kinds = r"<(str|int|float|path|int range|float range)>"
    assert not re.search(kinds, whole.partition("\nOptions:")[2])


def test_the_common_options_come_first():
    text = run_cli("kvreplay", "run", "--help-all").stdout
    headings = re.findall(r"^(\w+):$", text, re.MULTILINE)
    assert headings == [
        "Arguments",
        "Options",
        "Load",
        "Ranks",
        "Limits",
        "Target",
        "Data",
        "Checks",
        "Probes",
        "Output",
    ]
    assert (
        text.index("--tier")
        < text.index("--queue-depth")
        < text.index("Load:")
        < text.index("--fsync")
    )


def test_a_quiet_command_says_errors_alone_on_stderr(tmp_path):
    made = ("kvtrace", "gen", "--users", "2", "--duration", "2s", "-o", str(tmp_path / "t.parquet"))
    assert "note: " in run_cli(*made).stderr
    done = run_cli(*made, "--quiet", "--force")
    assert (done.returncode, done.stderr) == (0, "")
    assert "31 rows" in done.stdout
    line = '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}\n'
    (tmp_path / "r.jsonl").write_text(line + line)
    (tmp_path / "s.toml").write_text(
        '[base]\npreset = "lmcache-disk"\nfile = "r.jsonl"\n[grid]\nseed = [1]\n'
    )
    study = ("kvtrace", "study", "s.toml", "--workers", "1")
    assert "note: " in run_cli(*study, cwd=tmp_path).stderr
    (tmp_path / "r.jsonl").write_text(3 * line)  # what has been read once is not read again
    assert run_cli(*study, "-o", "again", "--quiet", cwd=tmp_path).stderr == ""
    refused = run_cli("kvtrace", "info", "--quiet", str(tmp_path / "absent.parquet"), check=False)
    assert refused.stderr.startswith("kvtrace: error: ")
