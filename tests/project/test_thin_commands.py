"""The commands parse, call the public API and print: what their files may import."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("kvtrace", "kvreplay", "kvdistill")

PARSING = {
    "kvtrace.core.app",
    "kvtrace.core.config",
    "kvtrace.core.errors",
    "kvtrace.core.files",
    "kvtrace.core.metadata",
    "kvtrace.core.parameters",
    "kvtrace.core.run.run_file",
    "kvtrace.core.temporary",
    "kvtrace.core.units",
    "kvtrace.studies.completion",  # values that the shell offers
    "kvtrace.studies.gen_options",  # the options of gen as typed groups, and their scenario
    "kvreplay.plan.replay_config",  # the options of a replay
    "kvreplay.run.real_engines",  # the options of `engine`
    "kvdistill.formats.formats",  # names of formats
    "kvdistill.jobs.job",  # the options of `fio`
}
PRINTING = {
    "kvtrace.core",
    "kvtrace.core.document.document",
    "kvtrace.core.document.drawing",
    "kvtrace.core.document.export",
    "kvtrace.core.document.terminal",
    "kvtrace.core.json_types",
    "kvreplay.run.watch",  # a run while it goes on
    "kvdistill.reports.jobs",  # documents of profiles and jobs
    "kvdistill.reports.output",  # names of report files
}
RANKS = {"kvreplay.ranks.helper", "kvreplay.ranks.rank_session", "kvreplay.run.replay"}
"""The session of a command that mpirun starts on several ranks."""
PROBES = {"kvreplay.probes", "kvreplay.probes.libbpf"}
"""Whether this kernel can be probed."""
WITHOUT_A_PUBLIC_FUNCTION = {
    "kvtrace/commands/curves.py": {"kvtrace.studies.plan"},
    "kvtrace/commands/tables.py": {
        "kvtrace.core.schema",
        "kvtrace.core.tables",
        "kvtrace.llm.catalogue",
        "kvtrace.requests.own_table",
        "kvtrace.requests.record",
        "kvtrace.sim.presets.preset",
        "kvtrace.trace.inventory",
        "kvtrace.trace.merge",
        "kvtrace.trace.mlperf_csv",
    },
    "kvreplay/commands/run.py": {
        "kvreplay.experiments.trials",
        "kvreplay.plan.memory_check",
        "kvreplay.probes.probe_session",
        "kvreplay.run.engine_run",
        "kvreplay.run.library",
        "kvreplay.run.recover",
        "kvreplay.run.run_document",
    },
    "kvreplay/commands/probe.py": {
        "kvreplay.plan.output_directory",
        "kvreplay.probes.probe_session",
        "kvreplay.run.discover",
    },
    "kvdistill/commands/fio.py": {"kvdistill.jobs.simulated_source"},
}
"""Commands that still call more than the public API, and what; the lists only get shorter."""


def command_files() -> list[str]:
    return sorted(
        str(path.relative_to(ROOT))
        for program in PROGRAMS
        for path in (ROOT / program / "commands").glob("*.py")
    )


def imported(path: str) -> set[str]:
    """Return the modules and public names of ours that the file imports, anywhere in it."""
    modules = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = ROOT / node.module.replace(".", "/") / alias.name
                is_module = inner.with_suffix(".py").is_file() or inner.is_dir()
                is_public = node.module in PROGRAMS and not is_module
                named = f"{node.module}.{alias.name}"
                modules.add(named if is_module or is_public else node.module)
    return {module for module in modules if module.partition(".")[0] in PROGRAMS}


def is_exported(name: str) -> bool:
    program, _, attribute = name.partition(".")
    return not attribute or attribute in importlib.import_module(program).__all__


@pytest.mark.parametrize("path", command_files())
def test_commands_import_the_public_api_and_helpers(path):
    helpers = PARSING | PRINTING | RANKS | PROBES | WITHOUT_A_PUBLIC_FUNCTION.get(path, set())
    commands = path.partition("/")[0] + ".commands"
    others = {
        module
        for module in imported(path)
        if module not in helpers and not module.startswith(commands) and not is_exported(module)
    }
    assert not others


def test_the_list_of_other_imports_has_no_stale_entry():
    stale = {path: modules - imported(path) for path, modules in WITHOUT_A_PUBLIC_FUNCTION.items()}
    assert not {path: modules for path, modules in stale.items() if modules}


@pytest.mark.parametrize("path", command_files())
def test_commands_use_only_exported_names_of_a_package(path):
    """`kvtrace.plan(...)` in a command is a name of the package's `__all__`."""
    wrong = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in PROGRAMS
            and not is_exported(f"{node.value.id}.{node.attr}")
        ):
            wrong.add(f"{node.value.id}.{node.attr}")
    assert not wrong
