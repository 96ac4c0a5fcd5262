"""What packages say beside pyproject.toml, and what shells complete."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kvtrace import __version__

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CONTAINERFILE = re.sub(r"(?m)^#.*\n|\\\n", "", (ROOT / "Containerfile").read_text(encoding="utf-8"))
STEPS = [tuple(line.split(" ", 1)) for line in CONTAINERFILE.splitlines() if line]
"""The instructions of the Containerfile: each one's word, and the rest, its lines joined."""
PROGRAMS = sorted(PROJECT["project"]["scripts"])
ON_CONDA = {"duckdb": "python-duckdb"}
"""What conda-forge calls otherwise: its duckdb is the program."""
BASH = r"""
source <("$1" --show-completion)
COMP_WORDS=("$1" "$2"); COMP_CWORD=1
complete -p "$1" > /dev/null && "_$1_completion" "$1" && printf '%s\n' "${COMPREPLY[@]}"
"""
FISH = '$argv[1] --show-completion | source; complete --do-complete "$argv[1] $argv[2]"'
VERBS = {"kvtrace": ("ge", "gen"), "kvreplay": ("swe", "sweep"), "kvdistill": ("repo", "report")}


def test_the_conda_recipe_says_what_pyproject_says():
    yaml = pytest.importorskip("yaml")
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
    project = PROJECT["project"]
    assert recipe["context"]["version"] == __version__
    assert (recipe["package"]["name"], recipe["about"]["summary"]) == (
        project["name"],
        project["description"],
    )
    assert recipe["about"]["license"] == project["license"]
    wanted = {f"python {project['requires-python']}"}
    for one in project["dependencies"]:
        name, version = re.fullmatch(r"([\w-]+)(.*)", one).groups()
        wanted.add(f"{ON_CONDA.get(name, name)} {version}")
    assert set(recipe["requirements"]["run"]) == wanted
    builds = {re.sub(r"(?=>=)", " ", one) for one in PROJECT["build-system"]["requires"]}
    assert builds <= set(recipe["requirements"]["host"])


def test_the_container_has_the_wheels_sources_and_runs_unrooted():
    copied = {source for word, rest in STEPS if word == "COPY" for source in rest.split()[:-1]}
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {
        *wheel["packages"],
        wheel["hooks"]["custom"]["path"],
        "pyproject.toml",
        "README.md",
        "LICENSE",
    } <= copied
    assert all(
        (ROOT / source).exists() for source in copied if not source.startswith(("--from", "/"))
    )
    assert [rest for word, rest in STEPS if word == "USER"] == ["kvtrace"]
    final = STEPS[[word for word, _ in STEPS].index("FROM", 3) :]
    assert "gcc" not in str(final), "the compiler stays behind"
    minor = int(re.search(r"PYTHON=3\.(\d+)", str(STEPS))[1])
    assert minor >= int(re.fullmatch(r">=3\.(\d+)", PROJECT["project"]["requires-python"])[1])


def completed(shell: list[str], tmp_path: Path, program: str, word: str) -> str:
    # A home of its own: no shell's files, and nothing of ours is written to one.
    env = {
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TERM": "dumb",
    }
    done = subprocess.run(
        [*shell, program, word], capture_output=True, text=True, check=True, env=env, timeout=60
    )
    return done.stdout


@pytest.mark.first(program=1)
@pytest.mark.parametrize("program", PROGRAMS)
def test_bash_completes_a_command(program, tmp_path):
    word, command = VERBS[program]
    assert completed(["bash", "--norc", "-c", BASH, "bash"], tmp_path, program, word).split() == [
        command
    ]


@pytest.mark.first(program=1)
@pytest.mark.parametrize("program", PROGRAMS)
def test_fish_completes_a_command(program, tmp_path):
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    word, command = VERBS[program]
    lines = completed(["fish", "--no-config", "-c", FISH], tmp_path, program, word).splitlines()
    assert [line.split("\t")[0] for line in lines] == [command]


@pytest.mark.star
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_program_prints_a_script_that_the_shell_takes(program, shell, tmp_path):
    printed = completed(
        ["env", f"_{program.upper()}_COMPLETE=source_{shell}"], tmp_path, program, ""
    )
    assert f"_{program.upper()}_COMPLETE=complete_{shell}" in printed
    if shutil.which(shell) is not None:
        script = tmp_path / "script"
        script.write_text(printed, encoding="utf-8")
        subprocess.run([shell, "-n", script], check=True, capture_output=True)
