"""Names of parameters in messages, as in Python code or as options of a command.

A message of the library says `sample=0.5`. While a command runs, the same message says
`--sample 0.5`, because the command line registers its options here (`app.run`, `app.Command`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

_FLAGS = {
    "endpoints": "--endpoint",
    "events": "--event",
    "keep_files": "--keep",
    "knobs": "--set",
    "max_requests": "--limit",
    "prefix_tokens": "--tokens",
    "prices": "--price",
    "stores": "--store",
    "models": "--model",
    "gpus": "--gpu",
    "tensor_parallel": "--tp",
    "tiers": "--tier",
}
"""Options whose names do not follow from their parameters, in all commands."""


_PARAMETERS = {
    "force": ("overwrite",),
    "output": ("path",),
    "set": ("knobs", "settings"),
    "dram": ("capacities",),
    "nvme": ("capacities",),
    "policy": ("policies",),
    "save_traces": ("traces",),
}
"""Parameters of the library for options that have no parameter of their name."""

P = ParamSpec("P")
R = TypeVar("R")


class _Naming:
    """The state of naming: if a command runs, and the options that it has registered."""

    is_command = False
    options: dict[str, str] = {}  # noqa: RUF012 - replaced as a whole, never shared


@contextmanager
def named_as_options() -> Iterator[None]:
    """Name parameters as options of a command within the block."""
    before = _Naming.is_command
    _Naming.is_command, _Naming.options = True, {}
    try:
        yield
    finally:
        _Naming.is_command, _Naming.options = before, {}


def add_options(options: Mapping[str, str]) -> None:
    """Register the options of a command, by the names of its parameters."""
    _Naming.options = {**_Naming.options, **options}


def named(parameter: str, value: object = None) -> str:
    """Return the name of `parameter` for a message, with its value if that is given.

    >>> named("sample"), named("sample", 0.5)
    ('sample', 'sample=0.5')
    >>> with named_as_options():
    ...     named("sample"), named("sample", 0.5)
    ('--sample', '--sample 0.5')
    """
    if not _Naming.is_command:
        return parameter if value is None else f"{parameter}={value}"
    default_flag = _FLAGS.get(parameter) or f"--{parameter.replace('_', '-')}"
    flag = _Naming.options.get(parameter, default_flag)
    return flag if value is None else f"{flag} {value}"


def entry(parameter: str, key: object, value: object) -> str:
    """Return the text for one entry of `parameter`, a mapping, in a message.

    >>> entry("tiers", "nvme", "ram")
    "tiers={'nvme': 'ram'}"
    >>> with named_as_options():
    ...     entry("tiers", "nvme", "ram")
    '--tier nvme=ram'
    """
    if _Naming.is_command:
        return named(parameter, f"{key}={value}")
    return f"{parameter}={{{str(key)!r}: {str(value)!r}}}"


def setting(text: str) -> str:
    """Return the text for the knob that `text` sets as KEY=VALUE, in a message.

    >>> setting("chunk_tokens=64")
    "knobs={'chunk_tokens': '64'}"
    """
    key, equals, value = text.partition("=")
    return entry("knobs", key, value) if equals else named("knobs", text)


def suggest_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function`, which names the right argument if it is called with a wrong one.

    A user of the command line tries the option's name: `limit`, where Python has `max_requests`.

    >>> @suggest_keywords
    ... def simulate(*, max_requests: int = 0) -> int:
    ...     return max_requests
    >>> simulate(limit=5)
    Traceback (most recent call last):
    TypeError: simulate() has no argument 'limit'; use max_requests
    """
    code = function.__code__
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    known = frozenset(parameters)

    @wraps(function)
    def checked(*args: P.args, **keywords: P.kwargs) -> R:
        if not known.issuperset(keywords):
            wrong = next(name for name in keywords if name not in known)
            raise TypeError(wrong_keyword(function.__name__, wrong, parameters))
        return function(*args, **keywords)

    return checked


def wrong_keyword(function: str, wrong: str, parameters: Sequence[str]) -> str:
    """Return an error on the argument `wrong`: which of `parameters` is meant, or all of them."""
    from difflib import get_close_matches

    flag = f"--{wrong.replace('_', '-')}"
    meant = [name for name in parameters if _FLAGS.get(name) == flag]
    meant += [name for name in _PARAMETERS.get(wrong, ()) if name in parameters]
    meant += get_close_matches(wrong, parameters, 1)
    remedy = f"use {meant[0]}" if meant else f"it has {', '.join(parameters)}"
    return f"{function}() has no argument {wrong!r}; {remedy}"
