"""The walls of the house: who may import whom, what stays out of start-up, what is generated."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("kvtrace", "kvreplay", "kvdistill")
HEAVY = {"numpy", "pyarrow", "polars", "duckdb", "numba", "dgen_py", "rich", "zstandard", "pandas"}


def imports(path: Path) -> set[str]:
    """Return the modules that the file at `path` imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def ours(module: str) -> bool:
    return module.split(".", maxsplit=1)[0] in PROGRAMS


@pytest.mark.parametrize("program", ["kvreplay", "kvdistill"])
def test_programs_share_only_the_core(program):
    allowed = (f"{program}.", "kvtrace.core")
    files = list((ROOT / program).rglob("*.py"))
    assert files
    for path in files:
        foreign = {m for m in imports(path) if ours(m) and not m.startswith(allowed)}
        foreign -= {program, "kvtrace.__version__"}
        assert not foreign, f"{path.relative_to(ROOT)} imports {foreign}"


def test_the_core_imports_no_program():
    for path in (ROOT / "kvtrace" / "core").glob("*.py"):
        foreign = {m for m in imports(path) if ours(m) and not m.startswith("kvtrace.core")}
        assert foreign <= {"kvtrace.__version__"}, f"{path.name} imports {foreign}"


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_loads_no_heavy_library(program):
    code = (
        f"import sys\nfrom {program}.cli import main\nsys.argv = ['{program}', '--help']\n"
        "try:\n    main()\nexcept SystemExit as e:\n    print('code', e.code)\nprint('loaded', *sys.modules)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "code 0" in out
    assert "Commands:" in out
    loaded = out.partition("loaded ")[2].split()
    assert not HEAVY & set(loaded)


def test_the_simulator_reads_no_clock():
    banned = {"time", "datetime", "random", "secrets", "uuid"}
    for path in (ROOT / "kvtrace").rglob("*.py"):
        assert not banned & {m.split(".")[0] for m in imports(path)}, path.name


@pytest.mark.parametrize("program", PROGRAMS)
def test_library_code_neither_prints_nor_exits(program):
    for path in (ROOT / program).rglob("*.py"):
        if path.name == "app.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("print", "sys.exit", "exit", "os._exit"), f"{path.name}:{node.lineno} {called}"


def test_schemas_and_command_pages_are_up_to_date():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    for path, text in generate.pages().items():
        assert (ROOT / path).read_text(encoding="utf-8") == text, f"{path} is out of date: run make docs"
