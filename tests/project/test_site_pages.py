"""The pages of the built site: no code fence or table is left as text, and no link is dead."""

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.full


class Page(HTMLParser):
    """The ids, links and visible text of a page; text outside code, by paragraph."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.prose: list[str] = []
        self._within: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.ids.update(value for name in ("id", "name") if (value := values.get(name)))
        self.links += [value for name in ("href", "src") if (value := values.get(name))]
        if tag in ("pre", "code", "script", "style"):
            self._within.append(tag)
        elif tag in ("p", "li", "td"):
            self.prose.append("")

    def handle_endtag(self, tag):
        if self._within and self._within[-1] == tag:
            self._within.pop()

    def handle_data(self, data):
        if not self._within and self.prose:
            self.prose[-1] += data


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[Path, Page]:
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site").resolve()
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        check=True,
    )
    found = {
        path: Page(path.read_text(encoding="utf-8"))
        for path in folder.rglob("*.html")
        if path.name != "404.html"
    }
    assert len(found) > 40
    return found


def unrendered(paragraph: str) -> bool:
    """Return whether `paragraph` is Markdown that should have become code or a table."""
    return (
        "```" in paragraph
        or "--8<--" in paragraph
        or any(line.lstrip().startswith("|") for line in paragraph.splitlines())
    )


def test_markdown_that_was_not_rendered_is_seen():
    page = Page("<p>```text measured\nx\n```</p><p>a | b</p><p>| a | b |\n|---|---|</p>")
    assert [unrendered(paragraph) for paragraph in page.prose] == [True, False, True]
    assert not any(map(unrendered, Page("<p>run <code>```</code></p><pre>| a |</pre>").prose))


def test_no_fence_table_or_include_is_left_as_text(pages):
    found = {
        path.name: paragraph
        for path, page in pages.items()
        for paragraph in page.prose
        if unrendered(paragraph)
    }
    assert not found


def test_no_link_within_the_site_is_dead(pages):
    dead = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or (not parts.path and not parts.fragment):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            is_found = target.exists() and (
                not parts.fragment
                or target not in pages
                or unquote(parts.fragment) in pages[target].ids
            )
            if not is_found:
                dead.append(f"{path.name}: {link}")
    assert not dead
