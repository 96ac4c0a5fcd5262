"""Names of parameters in messages, as in Python code or as options of a command.

A message of the library says `sample=0.5`. While a command runs, the same message says
`--sample 0.5`, because the command line registers its options here (`app.run`, `app.Command`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

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
