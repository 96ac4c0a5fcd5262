"""Counting tokens of text: with tiktoken where it is installed, else a quarter of the characters."""

from __future__ import annotations

import importlib
from enum import StrEnum
from typing import TYPE_CHECKING

from kvtrace.core.errors import ConfigError, ProbeUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    Counter = Callable[[str], int]

ENCODING = "cl100k_base"
CHARACTERS_PER_TOKEN = 4


class Tokenizer(StrEnum):
    """How tokens are counted."""

    AUTO = "auto"
    TIKTOKEN = "tiktoken"
    CHARACTERS = "characters"


def token_counter(tokenizer: str) -> tuple[Counter, str]:
    """Return a function from text to its tokens, and words for what it counts.

    Raises:
        ConfigError: no such tokenizer.
        ProbeUnavailable: `tiktoken` was asked for and cannot be had; `auto` falls back to characters.

    """
    if tokenizer not in tuple(Tokenizer):
        raise ConfigError(f"unknown tokenizer {tokenizer!r}; use {', '.join(Tokenizer)}")
    if tokenizer != Tokenizer.CHARACTERS:
        try:
            encoding = importlib.import_module("tiktoken").get_encoding(ENCODING)
        except (ImportError, OSError) as error:
            # OSError: it fetches its vocabulary once, and there may be no network.
            if tokenizer == Tokenizer.TIKTOKEN:
                raise ProbeUnavailable(
                    f"tiktoken is not to be had ({error}); pip install tiktoken, or --tokenizer characters"
                ) from None
        else:
            return lambda text: len(encoding.encode(text, disallowed_special=())), f"tiktoken's {ENCODING}"
    return _quarter, f"estimated as characters / {CHARACTERS_PER_TOKEN}, rounded up"


def _quarter(text: str) -> int:
    return -(-len(text) // CHARACTERS_PER_TOKEN)
