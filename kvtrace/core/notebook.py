"""How objects of the public API show themselves in a notebook."""

from __future__ import annotations

import html
from collections.abc import Sequence


def html_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of text cells as HTML for a notebook."""

    def line(tag: str, cells: Sequence[str]) -> str:
        return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"

    return f"<table>{line('th', columns)}{''.join(line('td', row) for row in rows)}</table>"
