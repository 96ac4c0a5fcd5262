"""The public API: what is exported, that its examples run, and that its types hold for a user."""

import ast
import doctest
import importlib
import inspect
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("kvtrace", "kvreplay", "kvdistill")
NAMES = [
    (package, name) for package in PACKAGES for name in importlib.import_module(package).__all__
]


@pytest.mark.parametrize(("package", "name"), NAMES)
def test_every_public_name_exists_and_is_documented(package, name):
    value = getattr(importlib.import_module(package), name)
    assert inspect.getdoc(value)


# The examples of kvdistill use files, which tests/kvdistill/test_library.py makes.
WITH_EXAMPLES = [(package, name) for package, name in NAMES if package != "kvdistill"]


@pytest.mark.parametrize(("package", "name"), WITH_EXAMPLES)
def test_examples_of_docstrings_run(package, name, tmp_path, monkeypatch):
    value = getattr(importlib.import_module(package), name)
    monkeypatch.chdir(tmp_path)
    finder = doctest.DocTestFinder(exclude_empty=True)
    examples = [test for test in finder.find(value, name) if test.examples]
    if inspect.isfunction(value):
        assert examples, f"{package}.{name} has no example"
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for example in examples:
        result = runner.run(example)
        assert result.failed == 0, example.name


@pytest.mark.parametrize("package", PACKAGES)
def test_examples_of_packages_run(package):
    assert doctest.testmod(importlib.import_module(package)).failed == 0


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_package_loads_no_library(package):
    code = f"import sys, {package}; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"numpy", "pyarrow", "polars", "duckdb", "typer", "rich"}
    assert not heavy & set(out.stdout.split())


@pytest.mark.parametrize("package", PACKAGES)
def test_exports_agree_with_the_imports_for_types(package):
    module = importlib.import_module(package)
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    guarded = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    named = {alias.name for node in guarded for alias in node.names}
    assert set(module.__all__) <= named
    assert (Path(module.__file__).parent / "py.typed").is_file()


USER_CODE = """
from pathlib import Path

import polars as pl

import kvreplay
import kvtrace as kt


def hit_ratio(folder: Path) -> float | None:
    trace = kt.simulate(preset="lmcache-disk", users=4, duration="10s", model="tiny-1b")
    frame: pl.DataFrame = trace.to_polars()
    run: kvreplay.Run = kvreplay.replay(trace, tiers={"nvme": folder})
    assert trace.stats is not None
    print(len(frame), run.verdict.on_time, kt.model("llama3.1-8b").bytes_per_token)
    return trace.stats.hit_ratio
"""


@pytest.mark.full
def test_a_users_strict_mypy_passes(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "user.py").write_text(USER_CODE)
    out = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "user.py"],
        cwd=tmp_path,
        env={"MYPYPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert out.returncode == 0, out.stdout


@pytest.mark.full
def test_a_users_wrong_type_is_found(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "user.py").write_text(
        textwrap.dedent(
            """
            import kvtrace as kt

            trace: int = kt.simulate(users=4)
            """
        )
    )
    out = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "user.py"],
        cwd=tmp_path,
        env={"MYPYPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert out.returncode == 1
    assert "Trace" in out.stdout


@pytest.mark.full
def test_the_notebook_runs(tmp_path):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(ROOT / "examples" / "notebook.ipynb", as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [output for output in outputs if output.output_type == "error"]
