"""Write the tutorials as notebooks, whose commands are cells: `make notebooks`.

A page's text becomes text cells, a block of commands a cell that bash runs, a block of Python a
code cell. What a page prints of a command is left out, because the notebook prints its own. The
commands read the folder `examples`, which `kvtrace examples` writes.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import nbformat
from nbformat import v4

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r"(?ms)^``` ?\{? ?\.?(\w+)[^\n]*\n(.*?)^```$\n?")
_INCLUDE = re.compile(r'(?m)^--8<-- "(.+)"$')
_SITE = "https://github.com/kvtrace/kvtrace/blob/main/docs/"


def notebook_of(page: Path) -> nbformat.NotebookNode:
    """Return the page as a notebook."""
    folder = page.parent.relative_to(ROOT / "docs")
    text = _INCLUDE.sub(
        lambda match: (ROOT / match[1]).read_text(encoding="utf-8").rstrip(),
        page.read_text(encoding="utf-8"),
    )
    cells, at = [], 0
    for block in _BLOCK.finditer(text):
        prose = text[at : block.start()].strip()
        at = block.end()
        language, code = block[1], block[2].rstrip()
        if prose:
            cells.append(v4.new_markdown_cell(_with_whole_links(prose, folder)))
        if language == "sh":
            cells.append(v4.new_code_cell(f"%%bash\n{code}"))
        elif language == "python":
            cells.append(v4.new_code_cell(code))
        elif language != "text":
            cells.append(v4.new_markdown_cell(f"```{language}\n{code}\n```"))
    if rest := text[at:].strip():
        cells.append(v4.new_markdown_cell(_with_whole_links(rest, folder)))
    for number, cell in enumerate(cells):
        # Equal for equal pages; nbformat's own ids are random.
        cell["id"] = f"cell-{number}"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


def _with_whole_links(text: str, folder: Path) -> str:
    """Return `text` with links to other pages that work outside the site."""

    def whole(match: re.Match[str]) -> str:
        target = (folder / match[1]).as_posix()
        parts: list[str] = []
        for part in target.split("/"):
            if part == ".." and parts:
                parts.pop()
            elif part not in ("..", "."):
                parts.append(part)
        return f"]({_SITE}{'/'.join(parts)})"

    return re.sub(r"\]\((?!https?://|#)([^)]+)\)", whole, text)


def main() -> None:
    """Write a notebook for each tutorial into the folder that the command line names."""
    output = Path(sys.argv[1])
    output.mkdir(parents=True, exist_ok=True)
    for page in sorted((ROOT / "docs" / "tutorials").glob("*.md")):
        nbformat.write(notebook_of(page), output / f"{page.stem}.ipynb")
    sys.stdout.write(f"wrote {len(list(output.glob('*.ipynb')))} notebooks to {output}\n")


if __name__ == "__main__":
    main()
