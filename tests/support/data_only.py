"""What of an output is data: its figures, without the words around them.

Goldens hold this, so that every message, note, heading and comment may change.
"""

from __future__ import annotations

import csv
import re
from typing import Any

_FIGURE = re.compile(
    r"(?<![\w.])[<>]?\s?[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?"
    r"(?:\s?(?:%|[kMGTP]?i?B(?:/s)?\b|[nµm]?s\b))?"
)


def figures_of(text: str) -> list[str]:
    """Return the figures of `text` with their units, sorted: sentences may change their order."""
    return sorted(_figures(text))


def lines_of_figures(text: str) -> list[list[str]]:
    """Return the figures of each line of `text` that has any: those of a table by column."""
    lines = []
    for line in text.splitlines():
        is_row = "|" in line or "  " in line.strip()
        lines.append(_figures(line) if is_row else figures_of(line))
    return [figures for figures in lines if figures]


def csv_figures(text: str) -> list[str]:
    """Return the name, unit and value of each figure of a report as CSV, without its headings."""
    return [",".join(row[-3:]) for row in csv.reader(text.splitlines()[1:])]


def data_of(value: Any) -> Any:
    """Return `value` with the figures of each sentence in its place."""
    if isinstance(value, str):
        words = re.findall(r"(?<![\w./=-])[A-Za-z][a-z]+(?![\w./=-])", value)
        return figures_of(value) if len(words) > 2 else value
    if isinstance(value, dict):
        return {key: data_of(entry) for key, entry in value.items()}
    return [data_of(entry) for entry in value] if isinstance(value, list) else value


def without_comments(text: str) -> str:
    """Return the lines of a job file that are no comments."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return "\n".join(re.sub(r"\s+# .*", "", line) for line in lines)


def _figures(text: str) -> list[str]:
    return [" ".join(found.split()) for found in _FIGURE.findall(text)]
