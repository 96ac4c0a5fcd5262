"""Pages whose commands are run as a reader runs them, and what they print compared with the page."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from browser import shown
from conftest import REASONS
from pages import run, steps_of, tables_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_COMMANDS = [page for page in PAGES if steps_of(page.read_text(encoding="utf-8"))]

MAY_LACK = ("tier | op | figure | side | trial 1",)
"""Tables that are printed only where trials disagree."""


@pytest.mark.full
@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_run_and_print_what_it_says(page, tmp_path):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for step in steps_of(page.read_text(encoding="utf-8")):
        lacking = [reason for need in step.needs if (reason := REASONS[need]()) is not None]
        if lacking:
            continue
        printed = [run(line, tmp_path) for line in step.commands][-1]
        if step.shown is None:
            continue
        if step.is_measured:
            # Figures of one machine, and what they make the command say: the page shows the form.
            assert printed.strip()
            assert_same_form(printed, step.shown)
        else:
            assert printed.rstrip("\n") == step.shown.rstrip("\n")


def assert_same_form(printed, shown):
    """The page's tables are there by their headings, and figures of rows by the same names are of
    the same units.
    """
    ours, theirs = tables_of(printed), tables_of(shown)
    lacking = {
        headings for headings in theirs.keys() - ours.keys() if not headings.startswith(MAY_LACK)
    }
    assert not lacking, (lacking, list(ours))
    for headings in ours.keys() & theirs.keys():
        for names in ours[headings].keys() & theirs[headings].keys():
            pairs = zip(ours[headings][names], theirs[headings][names], strict=False)
            assert all(a == b for a, b in pairs if a is not None and b is not None), (
                headings,
                names,
            )


def test_another_unit_is_another_form():
    shown = "Sweep\ndepth  rate      p99\n    1  9 MB/s  3 ms\n    2  2 GB/s  -\n"
    assert_same_form("Sweep\ndepth  rate      p99\n    1  1.5 GB/s  -\n", shown)
    for other in ("depth  rate  p99\n    1  9 MiB/s  3 ms", "depth  rate\n    1  9 MB/s", ""):
        with pytest.raises(AssertionError):
            assert_same_form(other, shown)


def test_the_readme_shows_every_program_at_work():
    steps = steps_of((ROOT / "README.md").read_text(encoding="utf-8"))
    assert {line.split()[0] for step in steps for line in step.commands} >= {
        "kvtrace",
        "kvreplay",
        "kvdistill",
    }


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.full
@pytest.mark.chromium
@pytest.mark.parametrize("page", ["index.html", "how-to/size.html"])
def test_the_sites_search_works_from_a_file(site, page, tmp_path):
    """A browser starts no worker there; from a server it is the theme's own, with this index."""
    assert (
        shown(f"{(site / page).as_uri()}?q=endurance", tmp_path).count("md-search-result__item") > 1
    )
    assert "endurance" in (site / "search" / "search_index.json").read_text(encoding="utf-8")


@pytest.mark.full
def test_the_site_is_built_without_a_warning(site):
    pages = {str(path.relative_to(site)) for path in site.rglob("*.html")}
    assert {
        "tutorials/drive-vendor.html",
        "reference/commands.html",
        "reference/tables.html",
    } <= pages
    # No page of it needs another host.
    text = (site / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<(?:script|link)[^>]*(?:src|href)=\"https?://(?!github)", text)


def test_the_changelog_names_the_version():
    from kvtrace import __version__

    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
