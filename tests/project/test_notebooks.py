"""The tutorials as notebooks: every command of a page is a cell, in order."""

import subprocess
import sys
from pathlib import Path

import pytest
from pages import steps_of

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebooks")
    subprocess.run([sys.executable, ROOT / "docs" / "notebooks.py", folder], check=True)
    return folder


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_every_command_of_a_tutorial_is_a_cell(written, page):
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(written / f"{page.stem}.ipynb", as_version=4)
    nbformat.validate(notebook)
    cells = [
        [line for line in cell.source.splitlines()[1:] if line.strip() and line[0] != "#"]
        for cell in notebook.cells
        if cell.cell_type == "code" and cell.source.startswith("%%bash")
    ]
    assert cells == [step.commands for step in steps_of(page.read_text(encoding="utf-8"))]
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert "](../" not in prose
    assert "--8<--" not in prose
