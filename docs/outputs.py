"""Run the commands of the documentation's pages and write what they print into the pages.

`make outputs`.

Outputs that are measured hold figures of the machine that this runs on; `python docs/outputs.py
PAGE…` runs some pages.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from pages import run, steps_of  # noqa: E402 - where the tests keep it


def rewritten(text: str, cwd: Path) -> str:
    """Return the page `text` with what its commands print in the directory `cwd`."""
    done, at = [], 0
    for step in steps_of(text):
        printed = [run(line, cwd) for line in step.commands][-1]
        if step.place is not None:
            done += [text[at : step.place[0]], printed.rstrip("\n") + "\n"]
            at = step.place[1]
    return "".join([*done, text[at:]])


def main() -> None:
    """Rewrite the pages that are named, or all."""
    named = [Path(name) for name in sys.argv[1:]] or sorted((ROOT / "docs").rglob("*.md"))
    for page in named:
        text = page.read_text(encoding="utf-8")
        if any(step.place for step in steps_of(text)):
            with tempfile.TemporaryDirectory() as scratch:
                shutil.copytree(ROOT / "examples", Path(scratch) / "examples")
                page.write_text(rewritten(text, Path(scratch)), encoding="utf-8")


if __name__ == "__main__":
    main()
