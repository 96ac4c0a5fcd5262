"""The README's commands run, in its order, in one empty directory."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import run_cli

ROOT = Path(__file__).resolve().parents[2]


def readme_commands() -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def run_here(line: str, cwd: Path) -> None:
    program, *arguments = shlex.split(line)
    if program == "mkdir":
        (cwd / arguments[-1]).mkdir()
    else:
        run_cli(program, *arguments, cwd=cwd)


def run_in_a_shell(line: str, cwd: Path) -> None:
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(line, shell=True, cwd=cwd, env=env, capture_output=True, text=True, check=False)  # noqa: S602 - as a reader does
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("run", [run_here, pytest.param(run_in_a_shell, marks=pytest.mark.full)])
def test_the_commands_of_the_readme_run(tmp_path, run):
    lines = [
        {"timestamp": 3000 * i, "input_length": 1500, "output_length": 40, "hash_ids": [0, 1 + i % 2, 10 + i]}
        for i in range(20)
    ]
    (tmp_path / "conversation.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    commands = readme_commands()
    assert len(commands) >= 12
    assert {line.split()[0] for line in commands} == {"kvtrace", "kvreplay", "kvdistill", "mkdir"}
    for line in commands:
        run(line, tmp_path)
    made = {path.name for path in tmp_path.iterdir()}
    assert {"t.parquet", "conv.parquet", "imported.parquet", "run", "fio"} <= made


def test_the_changelog_names_the_version():
    from kvtrace import __version__

    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
