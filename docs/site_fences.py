"""A hook of mkdocs, which renders the fences of the pages as GitHub does.

A fence says after its language what its commands need, or that its output was measured
(```` ```sh needs=fio ````, ```` ```text measured ````): `docs/outputs.py` and the tests read that.
The site's Markdown takes no such words, and would show the whole block as a paragraph.
"""

import re


def on_page_markdown(markdown: str, **_page: object) -> str:
    """Return the Markdown of a page without what its fences say after their language."""
    return re.sub(r"(?m)^( *```\w+) [^\n{]*$", r"\1", markdown)
