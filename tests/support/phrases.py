"""Key phrases: what a test asks of a program's words, so that every other word may change.

A phrase names what the user needs: the option, the file, row or column, a figure with its unit.
`…` between two parts stands for any words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable


def pattern(phrase: str) -> str:
    """Return the regular expression that `phrase` stands for.

    A figure is whole: `8 ranks` is not found in `18 ranks`, nor `1.5` in `1.53`.
    """
    return ".*".join(_part(part) for part in phrase.split(" … "))


def shows(text: str | Iterable[str], phrase: str) -> bool:
    """Tell whether `text`, or one of several, holds the parts of `phrase` in their order."""
    if not isinstance(text, str):
        return any(shows(one, phrase) for one in text)
    return re.search(pattern(phrase), text, re.DOTALL) is not None


def show_each(texts: list[str], phrases: list[str]) -> bool:
    """Tell whether `texts` are as many as `phrases`, and each holds its phrase."""
    return len(texts) == len(phrases) and all(map(shows, texts, phrases))


def show_counts(counts: dict[str, int], phrases: dict[str, int]) -> bool:
    """Tell whether `counts` by reason are those of `phrases`, each of which names one reason."""
    return len(counts) == len(phrases) and all(
        [n for reason, n in counts.items() if shows(reason, phrase)] == [count]
        for phrase, count in phrases.items()
    )


class Saying:
    """Equal to any text that shows its phrase: for a text within a tuple or a list."""

    def __init__(self, phrase: str) -> None:
        self.phrase = phrase

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and shows(other, self.phrase)

    def __hash__(self) -> int:
        return hash(self.phrase)

    def __repr__(self) -> str:
        return f"saying {self.phrase!r}"


def _part(part: str) -> str:
    before = r"(?<!\d)(?<!\d[.,])" if part[:1].isdigit() else ""
    after = r"(?!\d)(?![.,]\d)" if part[-1:].isdigit() else ""
    return before + re.escape(part) + after
