"""No command writes over what is there without --force.

The rule is one, in `kvtrace.core.app`, for files.
"""

from __future__ import annotations

import pytest
from conftest import run_cli
from kvdistill_rows import write_hand
from test_help import commands

OUTPUTS = {"--output", "--plot", "--requests-out", "--html", "--fio", "OUT"}
"""What outputs are called; `OUT` is an argument."""
GO_ON = {("kvtrace", "study"), ("kvtrace", "plan")}
"""Their folder is there to go on with.

It keeps what was simulated, and a table of it is made anew.
"""


def outputs():
    """Yield each output of each command, and whether it is a folder."""
    for program, name, command in commands():
        for parameter in command.params:
            flags = {*parameter.opts, parameter.metavar or ""}
            if flags & OUTPUTS:
                said = (parameter.help or "").lower()
                yield (
                    program,
                    name,
                    parameter,
                    any(word in said for word in ("folder", "directory", "where results")),
                )


def is_marked(parameter):
    return parameter.type_descriptor.parameter_info.writable


FILES = [
    (program, name, of.opts[-1]) for program, name, of, is_folder in outputs() if not is_folder
]
NEEDED = {"--zmq": "tcp://localhost:1"}
"""Of options without a default, values that do no harm."""
AT_ONCE = {"record": ["--duration", "0s"]}
"""Lets a command end that would go on for long."""


def test_every_output_that_is_a_file_is_marked_and_no_folder_is():
    assert {(p, n, of.opts[-1]) for p, n, of, _ in outputs() if is_marked(of)} == set(FILES)
    assert len(FILES) >= 12


@pytest.mark.parametrize(("program", "name", "output"), FILES)
def test_a_file_that_is_there_stays_as_it_is(tmp_path, monkeypatch, program, name, output):
    monkeypatch.chdir(tmp_path)
    command = next(c for p, n, c in commands() if (p, n) == (program, name))
    there = tmp_path / "there.parquet"
    there.write_text("mine")
    argv = list(AT_ONCE.get(name, []))
    for parameter in command.params:
        flag = parameter.opts[-1]
        if flag == output:
            argv += [there] if parameter.param_type_name == "argument" else [flag, there]
        elif parameter.required and parameter.param_type_name == "argument":
            argv.append(tmp_path / "none.parquet")
        elif parameter.required:
            argv += [flag, NEEDED.get(flag, tmp_path / "other.parquet")]
    refused = run_cli(program, name, *argv, check=False)
    assert (refused.returncode, there.read_text()) == (4, "mine"), refused.stderr
    assert f"{there}" in refused.stderr
    assert refused.stderr.count("\n") == 1
    if (program, name) != ("kvtrace", "gen"):
        # With it, something else is wrong: there is nothing to read.
        assert "already" not in run_cli(program, name, *argv, "--force", check=False).stderr
    assert "--force" in run_cli(program, name, "--help-all").stdout


def test_several_outputs_are_looked_at_before_any_is_written(tmp_path):
    trace, page = write_hand(tmp_path), tmp_path / "r.md"
    page.write_text("mine")
    argv = ("kvdistill", "report", trace, "-o", tmp_path / "new.csv", "-o", page)
    assert "r.md" in run_cli(*argv, check=False).stderr
    assert (page.read_text(), (tmp_path / "new.csv").exists()) == ("mine", False)
    run_cli(*argv, "--force")
    assert page.read_text().startswith("# hand.parquet")


FOLDERS = {
    ("kvdistill", "fio"): ["{trace}", "--tier", "nvme"],
    ("kvdistill", "warp"): ["{trace}", "--tier", "nvme"],
    ("kvdistill", "sai3"): ["{trace}", "--tier", "nvme"],
    ("kvdistill", "import"): ["fio-iolog", "{iolog}"],
    ("kvreplay", "run"): ["{trace}", "--tier", "nvme={drive}"],
    ("kvreplay", "compare"): ["{trace}", "--tier", "nvme={drive}", "--against", "nvme={other}"],
    ("kvreplay", "sweep"): ["{trace}", "--tier", "nvme={drive}"],
    ("kvreplay", "scorecard"): ["{drive}"],
}
"""Commands whose output is a folder, with arguments that are well.

Engines, probes and MLPerf's options need more than a test has, and ask the same function.
"""


@pytest.mark.parametrize(("program", "name"), FOLDERS)
def test_a_folder_with_an_earlier_result_is_asked_for(tmp_path, program, name):
    folder, drive, trace = tmp_path / "out", tmp_path / "drive", write_hand(tmp_path)
    for made in (drive, folder, tmp_path / "other"):
        made.mkdir()
    iolog = tmp_path / "a.iolog"
    iolog.write_text("fio version 3 iolog\n0 f add\n0 f open\n1 f read 0 4096\n2 f close\n")
    if name == "import":
        run_cli("kvdistill", "import", "fio-iolog", iolog, "-o", folder)
    else:
        (folder / "profile.json").write_text("{}")
        (folder / "run.json").write_text('{"program": "kvreplay"}')
    before = {path: path.read_bytes() for path in folder.iterdir()}
    argv = [
        part.format(trace=trace, drive=drive, other=tmp_path / "other", iolog=iolog)
        for part in FOLDERS[program, name]
    ]
    refused = run_cli(program, name, *argv, "-o", folder, check=False)
    assert (refused.returncode, "--force" in refused.stderr) == (4, True), refused.stderr
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_each_folder_is_of_a_command_that_asks():
    found = {(program, name) for program, name, _, is_folder in outputs() if is_folder}
    assert found - set(FOLDERS) - GO_ON == {
        ("kvreplay", "engine"),
        ("kvreplay", "mlperf"),
        ("kvreplay", "probe"),
        ("kvtrace", "examples"),  # other files there are no reason to ask; its own are
    }
